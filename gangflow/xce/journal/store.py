"""What the controller needs from a journal. SQLite is one; a store that several controllers share can be another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gangflow.xce.core.events import Event
from gangflow.xce.journal.record import Batch


@dataclass(frozen=True, slots=True)
class Stamped:
    """An event with its place in the journal and the time of its batch (milliseconds since the Unix epoch)."""

    seq: int
    at_ms: int
    event: Event


class Record(NamedTuple):
    """A batch as it was written (`record.decode` reads it); it continues the chain of digests."""

    first_seq: int
    last_seq: int
    digest: bytes
    """Of everything up to and including it."""
    raw: bytes


class Records(Protocol):
    """What can be read of a journal: an append-only log of batches with a chained digest, and images of the state beside it.

    Blocking, and safe to call from several threads. Raises JournalLocked, JournalCorrupt or, for what cannot be told apart
    further, JournalError.
    """

    @property
    def cluster_id(self) -> str:
        """The name that this journal got when it was made."""
        ...

    @property
    def seq(self) -> int:
        """Of the last durable event; 0 when there is none."""
        ...

    @property
    def horizon(self) -> int:
        """Events up to here are not kept any more; 0 when all are."""
        ...

    def records(self, after: int = 0) -> Iterator[Record]:
        """The records from the one that holds `after + 1` on, each checked against the chain."""
        ...

    def batches(self, after: int = 0, *, inputs: bool = True) -> Iterator[Batch]:
        """Whole batches, from the one that holds `after + 1` on, each checked against the chain."""
        ...

    def events(self, after: int, limit: int) -> list[Stamped]:
        """At most about `limit` events after `after` (whole batches), from those that are kept."""
        ...

    def digest_at(self, seq: int) -> bytes:
        """The chain's digest after `seq`, the last event of some batch; empty when there is no such batch (any more)."""
        ...

    def image_seqs(self) -> list[int]:
        """The sequence numbers that images were made at, newest first."""
        ...

    def image(self, seq: int) -> bytes:
        """The bytes that `save_image` got."""
        ...

    def close(self) -> None:
        """Let go of the journal; it can be called twice."""
        ...


class Journal(Records, Protocol):
    """What a controller needs beside: to write. After JournalFull and JournalLocked nothing was written, and the call may be
    repeated."""

    def append(self, batch: Batch) -> Batch:
        """Make one batch durable, all of it or nothing; returns it with its digest. ValueError if it does not come next."""
        ...

    def save_image(self, seq: int, image: bytes, keep: int) -> None:
        """Keep the image, and the `keep` newest of all of them."""
        ...

    def forget(self, before_ms: int, keep_bytes: int = 0) -> int:
        """Drop batches from before that time, and the oldest of those that are more than `keep_bytes` (0: no limit), as far as
        the oldest image covers them; returns the new horizon."""
        ...
