"""Commands: who may, whether it is still about what is newest, and what it does. Each gets a reply."""

from __future__ import annotations

from gangflow.xce.core import inputs as inp
from gangflow.xce.core import standalone
from gangflow.xce.core.claims import announce
from gangflow.xce.core.counts import ACTIVE, RUNS
from gangflow.xce.core.events import CoordinatorStarted, GroupSubmitted, MemberStopped, ValueWritten
from gangflow.xce.core.inputs import Reply
from gangflow.xce.core.judge import end_group
from gangflow.xce.core.limits import VALUE_MAX, VALUES_MAX
from gangflow.xce.core.plan import REPORTABLE_CAUSES
from gangflow.xce.core.state import Exit, Group, GroupState, Next, Slot, SlotState, TaskKey
from gangflow.xce.core.teardown import change, stop
from gangflow.xce.core.turn import Turn

G, S = GroupState, SlotState
GROUP_COMMANDS = (
    inp.EndGroup
    | inp.ReportSlot
    | inp.RestartSlot
    | inp.TakeCoordination
    | inp.PutValue
    | inp.SuspendGroup
    | inp.ResumeGroup
    | inp.RestartGroup
    | inp.StopMember
    | inp.ScaleGroup
    | inp.DrainSlot
    | inp.LiftExclusion
)


NOTHING_TO_RESTART = {
    S.PENDING: "it waits for a place already; its reason says for what",
    S.STOPPING: "it is being stopped, and starts again as soon as it is gone",
    S.RELEASING: "it is being unprepared, and starts again after that",
    S.LOST: "its host is lost; it starts again when nothing of it can run there any more",
}
"""Why a slot that is nowhere near its end cannot be restarted by hand."""


def submit(turn: Turn, command: inp.SubmitGroup) -> Reply:
    """A new group, PENDING; the name of a group that lives is taken."""
    group = turn.living(command.plan.name)
    if group is not None:
        text = f"a group called {group.plan.name!r} lives already: {group.id} is {group.state.value}"
        return Reply(409, "conflict", text, (("id", group.id),))
    never = turn.never_fits(turn.before, command.plan) if turn.never_fits is not None else None
    if never is not None:
        return Reply(422, never.code.value.lower(), never.text)
    missing = standalone.missing(turn, command.plan)
    if missing is not None:
        return missing
    group_id = f"g{turn.draft.next_group}"
    turn.emit(GroupSubmitted(group_id, command.plan))
    announce(turn, turn.draft.groups[group_id])
    return Reply(201, fields=(("id", group_id),))


def addressed(turn: Turn, command: GROUP_COMMANDS) -> Group | Reply:
    """The group that a command is about, unless it is unknown or the coordinator that asks was superseded."""
    group = turn.group(command.group)
    if group is None:
        return Reply(404, "not_found", f"no group {command.group!r}")
    term = command.request.term
    if term and term != group.coordinator_term:
        text = f"coordinator term {term} is not the newest of {group.id}, {group.coordinator_term}"
        return Reply(409, "fenced", text, (("term", group.coordinator_term),))
    return group


def end(turn: Turn, command: inp.EndGroup) -> Reply:
    """Take a group down; one that ended already stays as it is."""
    group = addressed(turn, command)
    if isinstance(group, Reply):
        return group
    if command.goal not in (G.CANCELLED, G.FAILED):
        return Reply(422, "invalid", f"a group cannot be ended as {command.goal.value}")
    if group.state is G.SUSPENDED and command.goal is G.FAILED:
        text = f"{group.id} is SUSPENDED: nothing of it runs that could fail; it is resumed or cancelled"
        return Reply(409, "conflict", text, (("state", group.state.value),))
    if not group.state.terminal:
        default = "cancelled" if command.goal is G.CANCELLED else "failed"
        end_group(turn, group.id, command.goal, command.cause or default, command.message)
    return answered(turn, group.id)


def answered(turn: Turn, group_id: str) -> Reply:
    """What a command about a whole group answers with: its id, and its state now."""
    return Reply(fields=(("id", group_id), ("state", turn.draft.groups[group_id].state.value)))


def slot_of(group: Group, member: str, index: int, incarnation: int) -> Slot | Reply:
    """The slot, if it exists and the incarnation that the caller judged is still its newest."""
    slot = group.slots.get((member, index))
    if slot is None:
        return Reply(404, "not_found", f"{group.id} has no slot {member}[{index}]")
    if slot.incarnation != incarnation:
        text = f"{member}[{index}] is at incarnation {slot.incarnation}, not {incarnation}"
        return Reply(409, "superseded", text, (("incarnation", slot.incarnation),))
    return slot


def report(turn: Turn, command: inp.ReportSlot) -> Reply:
    """A coordinator's verdict: a failure that the rules judge with the others of this batch."""
    group = addressed(turn, command)
    if isinstance(group, Reply):
        return group
    if command.cause not in REPORTABLE_CAUSES:
        expected = ", ".join(sorted(cause.value for cause in REPORTABLE_CAUSES))
        return Reply(422, "invalid", f"cause {command.cause.value} cannot be reported; expected one of {expected}")
    slot = slot_of(group, command.member, command.index, command.incarnation)
    if isinstance(slot, Reply):
        return slot
    if slot.state in RUNS and group.state in ACTIVE:
        turn.fail(group, slot, Exit(command.cause, slot.incarnation, turn.now_ms, message=command.message))
    return Reply(fields=(("id", group.id), ("incarnation", slot.incarnation)))


def restart(turn: Turn, command: inp.RestartSlot) -> Reply:
    """An operator's restart: no rule is asked and no budget spent."""
    group = addressed(turn, command)
    if isinstance(group, Reply):
        return group
    slot = slot_of(group, command.member, command.index, command.incarnation)
    if isinstance(slot, Reply):
        return slot
    if group.state not in ACTIVE:
        return Reply(409, "conflict", f"{group.id} is {group.state.value}: no slot of it can be restarted by itself")
    if slot.out:
        return Reply(409, "conflict", f"{command.member}[{command.index}] was scaled away: it comes back by a higher target")
    if slot.member in group.stopped:
        _bring_back(turn, group, slot)
        return Reply(fields=(("id", group.id), ("incarnation", slot.incarnation)))
    waits = slot.next is Next.BACKOFF and slot.until_ms > turn.now_ms
    if slot.state in RUNS or slot.next is Next.RETIRE or waits:
        # Of one that is on its way down: not given up after all, or without the pause that its rule gave it.
        stop(turn, group.id, slot.key, Next.BACKOFF, until_ms=turn.now_ms)
    elif slot.state in (S.DONE, S.RETIRED):
        stop(turn, group.id, slot.key, Next.PLACE)
    elif slot.state is S.BACKOFF and slot.until_ms > turn.now_ms:
        change(turn, group, slot, S.BACKOFF, until_ms=turn.now_ms, message="restarts now: an operator asked")
    else:
        why = NOTHING_TO_RESTART.get(slot.state, "it starts already")
        text = f"{command.member}[{command.index}] is {slot.state.value}: {why}"
        return Reply(409, "conflict", text, (("state", slot.state.value),))
    return Reply(fields=(("id", group.id), ("incarnation", slot.incarnation)))


def _bring_back(turn: Turn, group: Group, named: Slot) -> None:
    """A member that was stopped is wanted again: the slot that was named, and all of it that is not finished nor given up."""
    turn.emit(MemberStopped(group.id, named.member, stopped=False))
    for key, slot in list(group.slots.items()):
        if key[0] != named.member or slot.out or (key in group.tolerated and slot is not named):
            continue
        if slot.state is S.RETIRED or (slot.state is S.DONE and slot is named):
            stop(turn, group.id, key, Next.PLACE)
        elif slot.next is Next.RETIRE:
            stop(turn, group.id, key, Next.BACKOFF, until_ms=turn.now_ms)


def take_coordination(turn: Turn, command: inp.TakeCoordination) -> Reply:
    """A coordinator starts: from now on every older term is fenced."""
    group = addressed(turn, command)
    if isinstance(group, Reply):
        return group
    if group.state.terminal:
        return Reply(409, "conflict", f"{group.id} is {group.state.value}")
    term = group.coordinator_term + 1
    turn.emit(CoordinatorStarted(group.id, term))
    return Reply(fields=(("id", group.id), ("term", term)))


def put_value(turn: Turn, command: inp.PutValue) -> Reply:
    """Compare-and-set of a small durable value; a task that was superseded or is lost writes nothing."""
    group = addressed(turn, command)
    if isinstance(group, Reply):
        return group
    if command.writer is not None and not may_write(group, command.writer):
        return Reply(409, "superseded", f"{command.writer} is not the newest incarnation, or is lost")
    if len(command.value) > VALUE_MAX:
        return Reply(413, "too_large", f"{command.name}: {len(command.value)} characters, at most {VALUE_MAX}")
    old = turn.draft.values.get((group.id, command.name))
    version = old.version if old is not None else 0
    if command.expect not in (-1, version):
        text = f"{command.name} is at version {version}, not {command.expect}"
        return Reply(409, "conflict", text, (("version", version),))
    if old is None and sum(1 for owner, _ in turn.draft.values if owner == group.id) >= VALUES_MAX:
        return Reply(413, "too_large", f"{group.id} has {VALUES_MAX} values already")
    # Whoever knows the number is no coordinator by that: a task's token never writes under a term.
    term = command.request.term if command.writer is None else 0
    if old is not None and old.term and not term:
        text = f"{command.name} is written by the group's coordinator, under its term {group.coordinator_term}"
        return Reply(409, "fenced", text, (("term", group.coordinator_term),))
    turn.emit(ValueWritten(group.id, command.name, command.value, version + 1, term))
    return Reply(fields=(("version", version + 1),))


def may_write(group: Group, writer: TaskKey) -> bool:
    """Whether a task's token still counts: its incarnation is the newest, of its slot's epoch, and not lost."""
    slot = group.slots.get((writer.member, writer.index))
    if writer.group != group.id or slot is None:
        return False
    newest = slot.incarnation == writer.incarnation and slot.epoch == writer.epoch
    return newest and slot.live and slot.state is not S.LOST
