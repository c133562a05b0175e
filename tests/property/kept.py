"""A journal in memory, written from what a modelled world decided: real records and real images, without a disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gangflow.xce.core.events import TermStarted
from gangflow.xce.core.evolve import apply_all
from gangflow.xce.core.state import State
from gangflow.xce.journal import image, record
from gangflow.xce.journal.image import Image
from gangflow.xce.journal.record import Batch
from gangflow.xce.journal.store import Record, Stamped
from tests.property import world as modelled

ROOT = b"root"


class Kept:
    """`store.Records` of batches, with images after some of them."""

    cluster_id = "test-cluster"

    def __init__(self, batches: Sequence[Batch], images: Sequence[int] = (), horizon: int = 0) -> None:
        """`images`: after which batches (from 0) one is taken; `horizon`: so many batches at the beginning are forgotten."""
        self.kept: list[Record] = []
        self.images: dict[int, bytes] = {}
        self.states: list[State] = []
        """After each batch."""
        self.horizon, self.base = 0, ROOT
        digest, state = ROOT, State()
        for number, batch in enumerate(batches):
            raw = record.encode(batch)
            digest = record.chain(digest, raw)
            self.kept.append(Record(batch.first_seq, batch.last_seq, digest, raw))
            state = apply_all(state, batch.events, batch.now_ms)
            self.states.append(state)
            if number in images:
                self.images[batch.last_seq] = image.encode(Image(state, batch.last_seq, digest))
        if horizon:
            self.horizon, self.base = self.kept[horizon - 1].last_seq, self.kept[horizon - 1].digest
            del self.kept[:horizon]
        self.seq = self.kept[-1].last_seq if self.kept else self.horizon

    def records(self, after: int = 0) -> Iterator[Record]:
        return (each for each in self.kept if each.last_seq > after)

    def batches(self, after: int = 0, *, inputs: bool = True) -> Iterator[Batch]:
        return (record.decode(each.raw, each.digest, inputs=inputs) for each in self.records(after))

    def events(self, after: int, limit: int) -> list[Stamped]:
        raise NotImplementedError("nobody watches a journal in memory")

    def digest_at(self, seq: int) -> bytes:
        if seq == self.horizon:
            return self.base
        return next((each.digest for each in self.kept if each.last_seq == seq), b"")

    def image_seqs(self) -> list[int]:
        return sorted(self.images, reverse=True)

    def image(self, seq: int) -> bytes:
        return self.images.get(seq, b"")

    def close(self) -> None: ...


def batches_of(journal: Sequence[modelled.Batch]) -> list[Batch]:
    """What the controller would have written."""
    made: list[Batch] = []
    seq, term = 0, 0
    for each in journal:
        term = next((event.term for event in each.events if isinstance(event, TermStarted)), term)
        made.append(Batch(seq + 1, term, each.now_ms, each.inputs, each.events))
        seq += len(each.events)
    return made


def altered(batches: Sequence[Batch], number: int, position: int, **fields: object) -> list[Batch]:
    """The same batches with other values in one event."""
    changed = list(batches)
    events = list(changed[number].events)
    events[position] = replace(events[position], **fields)  # type: ignore[arg-type]
    changed[number] = replace(changed[number], events=tuple(events))
    return changed
