"""Making a journal small: an image of the newest state, the old records forgotten, the file given back to the disk; verified.

A controller does the first two by itself (`options.image_every`, `retention_ms`, `retention_bytes`). This is the whole of it
for a journal that no controller uses. Each step is one transaction: whoever dies in between leaves a journal that recovers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gangflow.errors import JournalCorrupt
from gangflow.xce.core.state import State
from gangflow.xce.journal import image
from gangflow.xce.journal.image import Image
from gangflow.xce.journal.recovery import recover
from gangflow.xce.journal.sqlite import SqliteJournal


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did."""

    seq: int
    """Of the newest event: the state is the same before and after."""
    images: tuple[int, ...]
    """Where the kept state images were taken, newest first. A replay begins with the oldest of them."""
    horizon_before: int
    horizon: int
    """Events up to here are not kept any more; whoever watches from before is told so."""
    records_before: int
    records: int
    bytes_before: int
    bytes: int
    """Of the file."""


def compact(path: Path, before_ms: int, keep_bytes: int = 0, images: int = 2) -> Compacted:
    """Forget records from before that time, and the oldest beyond `keep_bytes` (0: no limit), as far as the older of the kept
    `images` covers them: should the newest image ever be damaged, the older one and the records after it are still there.

    Raises:
        JournalLocked: a controller uses the journal.
        JournalCorrupt: the chain of digests is broken somewhere; nothing was thrown away.
        JournalFull: there is no room to work in; what is there is whole.
    """
    journal = SqliteJournal(path)
    try:
        horizon, records, size = journal.horizon, _count(journal), path.stat().st_size
        found = recover(journal)
        _keep_image(journal, found.state, found.seq, images)
        while True:
            before = journal.horizon
            if journal.forget(before_ms, keep_bytes) == before:
                break
        journal.shrink()
        again = recover(journal)
        if (again.state, again.seq) != (found.state, found.seq):
            raise JournalCorrupt(f"{path}: after the compaction it recovers another state", seq=again.seq)
        return Compacted(
            found.seq,
            tuple(journal.image_seqs()),
            horizon,
            journal.horizon,
            records,
            _count(journal),
            size,
            path.stat().st_size,
        )
    finally:
        journal.close()


def _count(journal: SqliteJournal) -> int:
    """The records that are kept; each is checked against the chain, as nothing that cannot be trusted is to be thrown away."""
    return sum(1 for _ in journal.records())


def _keep_image(journal: SqliteJournal, state: State, seq: int, images: int) -> None:
    """An image of the newest state, read back before anything relies on it."""
    if seq in (0, journal.horizon):
        return
    taken = Image(state, seq, journal.digest_at(seq))
    journal.save_image(seq, image.encode(taken), images)
    if image.decode(journal.image(seq)) != taken:
        raise JournalCorrupt(f"{journal.path}: the state image at seq {seq} cannot be read back as it was written", seq=seq)
