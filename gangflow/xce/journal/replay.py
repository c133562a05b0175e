"""Replay: a journal's inputs through the machine once more, and its decisions compared byte for byte (design 3.8, I14).

What decides is pure, so a journal whose replay differs was decided by other code, was changed, or has found a fault in us. Only
the journal is read; nothing is written and nothing acts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from gangflow import __version__
from gangflow.errors import JournalCorrupt, JournalError, OtherVersion, Problem, UsageError
from gangflow.xce.core.draft import Draft
from gangflow.xce.core.evolve import absorb
from gangflow.xce.core.inputs import Input
from gangflow.xce.core.lifecycle import InvalidTransition
from gangflow.xce.core.state import State
from gangflow.xce.journal import image, record
from gangflow.xce.journal.divergence import Divergence, Kind, compare_states, differences
from gangflow.xce.journal.image import Image
from gangflow.xce.journal.record import Batch
from gangflow.xce.journal.recovery import usable_images
from gangflow.xce.journal.store import Record, Records
from gangflow.xce.machine import Decision, Machine

DECIDES_AS: frozenset[str] = frozenset()
"""Earlier versions of gangflow whose decisions this one makes in the same way. A release adds the one before it only when all
golden histories of that one replay (`tests/golden`)."""


class Decider(Protocol):
    """What is asked again: `xce.machine.Machine`."""

    def handle(self, inputs: Sequence[Input], now_ms: int) -> Decision: ...


@dataclass(slots=True)
class Replayed:
    """What a replay found."""

    state: State
    """After the last event that was read: what the journal says was true then."""
    seq: int
    began_after: int
    """Decisions were compared from the one after this on."""
    batches: int = 0
    events: int = 0
    """Compared, and the same."""
    reworded: int = 0
    """Batches among them that were written in another form, and so were compared in the form of this version."""
    versions: dict[str, int] = field(default_factory=dict)
    """Versions of gangflow that decided what was compared → their batches."""
    images: list[int] = field(default_factory=list)
    """Where state images were taken that say the same as the replay."""
    digest: str = ""
    """Of the chain at `seq`: it was verified from the horizon on."""
    notes: list[str] = field(default_factory=list)
    divergence: Divergence | None = None


def replay(
    journal: Records,
    *,
    after: int = 0,
    until: int = 0,
    force: bool = False,
    machine: Callable[[State], Decider] = Machine,
    watch: Callable[[int], None] = lambda seq: None,
) -> Replayed:
    """Compare every decision from `after + 1` (0: the beginning of what is kept) to the batch that holds `until` (0: the
    last that was written when the journal was opened), and stop at the first that differs.

    What is before `after` is taken as it was decided. `watch` is told the seq after each batch.

    Raises:
        SpecError: what was true at `until` is not kept any more.
        OtherVersion: another version of gangflow decided some of it (unless `force`, or that one is among `DECIDES_AS`).
        JournalCorrupt: a record does not continue the chain of digests, or there is nothing to begin with.
        JournalError: a record cannot be read, or cannot be applied; or nothing to begin with is kept from before `after`.
    """
    until = until or journal.seq
    begin, notes = _beginning(journal, after)
    if until < begin.seq:
        expected = f"a seq from {begin.seq} on, the earliest state that is kept: seq {until} is not kept any more"
        raise UsageError([Problem("--until", str(until), expected)])
    run = _Run(journal, begin, max(after, begin.seq), force, machine, notes)
    for each in journal.records() if until > begin.seq else ():
        if each.last_seq > begin.seq:
            run.take(each)
            watch(each.last_seq)
        if each.last_seq >= until or run.diverged:
            break
    return run.finish()


def _beginning(journal: Records, after: int) -> tuple[Image, list[str]]:
    """The state that a replay begins with: nothing, or the image that suits `after`."""
    notes: list[str] = []
    whole = journal.horizon == 0
    if whole and not after:
        return Image(State(), 0, journal.digest_at(0)), notes
    images = list(usable_images(journal, notes))
    if not after:
        # The oldest, so that as much as possible is replayed.
        suits = images[-1:]
    else:
        suits = [each for each in images if each.seq <= after][:1]
        if not suits and whole:
            return Image(State(), 0, journal.digest_at(0)), notes
    if not suits and images:
        remedy = f"--from {images[-1].seq + 1} is the earliest: an image was taken before it"
        raise JournalError(f"there is no state image to begin with at or before seq {after}", remedy=remedy)
    if not suits:
        reasons = "; ".join(notes) or "there is none"
        raise JournalCorrupt(
            f"the records up to seq {journal.horizon} are not kept any more, and no state image can be used to begin with"
            f" ({reasons})",
            seq=journal.horizon,
        )
    if not after:
        notes.append(
            f"records up to seq {journal.horizon} are not kept any more: it begins with the oldest image, of seq {suits[0].seq}"
        )
    return suits[0], notes


class _Run:
    """The fold over the records."""

    def __init__(
        self,
        journal: Records,
        begin: Image,
        after: int,
        force: bool,
        machine: Callable[[State], Decider],
        notes: list[str],
    ) -> None:
        self._found = Replayed(begin.state, begin.seq, after, digest=begin.chain.hex(), notes=notes)
        self._journal = journal
        self._images = frozenset(journal.image_seqs())
        self._after = after
        self._force = force
        self._make = machine
        self._machine: Decider | None = None
        self._draft = Draft(begin.state, begin.state.now_ms)

    @property
    def diverged(self) -> bool:
        return self._found.divergence is not None

    def take(self, each: Record) -> None:
        """One record: applied while it is before the place to compare from, else decided again."""
        batch = record.decode(each.raw, each.digest)
        if each.last_seq <= self._after:
            self._apply(batch)
        else:
            if self._machine is None:
                self._found.state = self._draft.freeze()
                self._found.began_after = batch.first_seq - 1
                self._machine = self._make(self._found.state)
            self._check_version(batch)
            self._found.divergence = self._compare(self._machine, batch, each)
        if not self.diverged:
            self._found.seq, self._found.digest = each.last_seq, each.digest.hex()

    def finish(self) -> Replayed:
        """What was found."""
        if self._machine is None:
            self._found.state = self._draft.freeze()
        return self._found

    def _check_version(self, batch: Batch) -> None:
        code = batch.code
        known = code == __version__ or code in DECIDES_AS
        if not known and not self._force:
            ours = next((r.first_seq for r in self._journal.records(batch.last_seq) if record.code_of(r.raw) == __version__), 0)
            remedy = "--force compares all the same"
            if ours:
                remedy = f"--from {ours} begins where gangflow {__version__} took over; {remedy}"
            who = f"gangflow {code or '(it does not say which)'}"
            raise OtherVersion(
                f"the batch at seq {batch.first_seq} was decided by {who}, this is {__version__}",
                seq=batch.first_seq,
                remedy=remedy,
            )
        self._found.versions[code] = self._found.versions.get(code, 0) + 1

    def _apply(self, batch: Batch) -> None:
        self._draft.now_ms = batch.now_ms
        try:
            for event in batch.events:
                absorb(self._draft, event)
        except (InvalidTransition, LookupError, ValueError, TypeError) as error:
            raise JournalError(f"the batch at seq {batch.first_seq} cannot be applied: {error!r}") from error

    def _compare(self, machine: Decider, batch: Batch, each: Record) -> Divergence | None:
        try:
            decision = machine.handle(batch.inputs, batch.now_ms)
        except Exception as error:  # whatever it is, the one who decided did not meet it
            return Divergence.of(Kind.FAULT, batch, fault=f"{type(error).__name__}: {error}")
        replayed = record.plain_events(decision.events)
        if record.written_events(each.raw) != replayed:
            # Another version, or another build of this one, may have written the same in other words (a field less, say).
            recorded = record.plain_events(batch.events)
            if recorded != replayed:
                return Divergence.of(Kind.EVENTS, batch, decision.events, _first_difference(recorded, replayed))
            self._found.reworded += 1
        if (decision.now_ms, decision.state.term) != (batch.now_ms, batch.term):
            found = differences(
                {"now_ms": batch.now_ms, "term": batch.term}, {"now_ms": decision.now_ms, "term": decision.state.term}
            )
            return replace(Divergence.of(Kind.BATCH, batch, decision.events), differences=tuple(found))
        self._found.state = decision.state
        self._found.batches += 1
        self._found.events += len(batch.events)
        return self._look_at_image(batch, decision) if batch.last_seq in self._images else None

    def _look_at_image(self, batch: Batch, decision: Decision) -> Divergence | None:
        try:
            taken = image.decode(self._journal.image(batch.last_seq))
        except JournalError as error:
            self._found.notes.append(error.message)
            return None
        found = tuple(compare_states(taken.state, decision.state))
        if found:
            return replace(Divergence.of(Kind.IMAGE, batch, decision.events), differences=found)
        self._found.images.append(batch.last_seq)
        return None


def _first_difference(recorded: Sequence[bytes], replayed: Sequence[bytes]) -> int:
    for position, (old, new) in enumerate(zip(recorded, replayed, strict=False)):
        if old != new:
            return position
    return min(len(recorded), len(replayed))
