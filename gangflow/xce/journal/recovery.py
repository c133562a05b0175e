"""From a journal to the state that it describes: the newest image that can be believed, then the decisions after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gangflow.errors import JournalCorrupt, JournalError
from gangflow.xce.core.draft import Draft
from gangflow.xce.core.evolve import APPLY
from gangflow.xce.core.lifecycle import InvalidTransition
from gangflow.xce.core.state import State
from gangflow.xce.journal import image, record
from gangflow.xce.journal.store import Records


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


def recover(journal: Records) -> Recovered:
    """The state after the journal's last event. JournalCorrupt if a record after the image, or all of what is needed to begin,
    cannot be trusted; nothing is written."""
    notes: list[str] = []
    start = next(usable_images(journal, notes), None)
    if start is None and journal.horizon:
        reasons = "; ".join(notes) or "there is none"
        raise JournalCorrupt(
            f"no state image can be used ({reasons}), and the records up to seq {journal.horizon} are not kept any more",
            seq=journal.horizon,
        )
    state, seq = (start.state, start.seq) if start is not None else (State(), 0)
    image_seq, batches = seq, 0
    draft = Draft(state, state.now_ms)  # one for all: freezing after each batch would copy whole mappings for nothing
    for each in journal.records(seq):
        draft.now_ms, events = record.decisions(each.raw)
        draft.touch()
        try:
            for event in events:
                APPLY[type(event)](draft, event)
        except (InvalidTransition, LookupError, ValueError, TypeError) as error:
            where = f"the batch at seq {each.first_seq}, decided by gangflow {record.code_of(each.raw)},"
            raise JournalError(f"{where} cannot be applied: {error!r}") from error
        seq, batches = each.last_seq, batches + 1
    return Recovered(draft.freeze(), seq, image_seq, batches, tuple(notes))


def usable_images(journal: Records, notes: list[str]) -> Iterator[image.Image]:
    """The state images that can be believed, newest first; why one is passed over goes into `notes`."""
    for seq in journal.image_seqs():
        try:
            found = image.decode(journal.image(seq))
            if found.seq != seq or found.chain != journal.digest_at(seq):
                raise JournalError(f"the state image at seq {seq} does not belong to this journal")
        except JournalError as error:
            notes.append(f"{error}; falling back")
        else:
            yield found
