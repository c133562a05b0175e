"""From a journal to the state that it describes: the newest image that can be believed, then the decisions after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gangflow.errors import JournalCorrupt, JournalError
from gangflow.xce.core.events import Event
from gangflow.xce.core.state import State
from gangflow.xce.journal import image
from gangflow.xce.journal.store import Journal

Apply = Callable[[State, Event, int], State]


@dataclass(frozen=True, slots=True)
class Recovered:
    """What recovery found, and what it had to pass over on the way."""

    state: State
    seq: int
    image_seq: int
    """Where the image that it began with was taken; 0: none."""
    batches: int
    """Applied after the image."""
    notes: tuple[str, ...] = ()


def recover(journal: Journal, apply: Apply) -> Recovered:
    """The state after the journal's last event. JournalCorrupt if a record after the image, or all of what is needed to begin,
    cannot be trusted; nothing is written."""
    notes: list[str] = []
    start = _newest(journal, notes)
    if start is None and journal.horizon:
        reasons = "; ".join(notes) or "there is none"
        raise JournalCorrupt(
            f"no state image can be used ({reasons}), and the records up to seq {journal.horizon} are not kept any more",
            seq=journal.horizon,
        )
    state, seq = (start.state, start.seq) if start is not None else (State(), 0)
    image_seq, batches = seq, 0
    for batch in journal.batches(after=seq, inputs=False):
        try:
            for event in batch.events:
                state = apply(state, event, batch.now_ms)
        except (LookupError, ValueError, TypeError) as error:
            raise JournalError(
                f"the batch at seq {batch.first_seq}, decided by gangflow {batch.code}, cannot be applied: {error!r}"
            ) from error
        seq, batches = batch.last_seq, batches + 1
    return Recovered(state, seq, image_seq, batches, tuple(notes))


def _newest(journal: Journal, notes: list[str]) -> image.Image | None:
    for seq in journal.image_seqs():
        try:
            found = image.decode(journal.image(seq))
            if found.seq != seq or found.chain != journal.digest_at(seq):
                raise JournalError(f"the state image at seq {seq} does not belong to this journal")
        except JournalError as error:
            notes.append(f"{error}; falling back")
        else:
            return found
    return None
