"""What an operator does to a group that runs: restart it, stop a member, drain a slot. Only the last is judged by rules."""

from __future__ import annotations

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.commands import addressed, answered, slot_of
from gangflow.xce.core.counts import ACTIVE, BEFORE_START, RUNS
from gangflow.xce.core.ending import outcome
from gangflow.xce.core.events import FloorCrossed, GroupChanged, HostReadmitted, MemberStopped
from gangflow.xce.core.inputs import Reply
from gangflow.xce.core.judge import end_group
from gangflow.xce.core.plan import Cause, MemberKind
from gangflow.xce.core.state import Exit, Group, GroupState, Next, SlotState
from gangflow.xce.core.teardown import move_away, stop, stop_all
from gangflow.xce.core.turn import Turn

G, S = GroupState, SlotState
USER = "user"


def restart_group(turn: Turn, command: inp.RestartGroup) -> Reply:
    """An operator restarts a group that has started: on its places, in its next epoch."""
    group = addressed(turn, command)
    if isinstance(group, Reply):
        return group
    if group.state not in ACTIVE:
        text = f"{group.id} is {group.state.value}: only a group that has started can be restarted"
        return Reply(409, "conflict", text, (("state", group.state.value),))
    turn.emit(GroupChanged(group.id, group.state, G.RESTARTING, USER, command.message))
    stop_all(turn, group.id, Next.RESTART)
    return answered(turn, group.id)


def stop_member(turn: Turn, command: inp.StopMember) -> Reply:
    """A user stops one member; what of it finished stays finished. Without a primary job left, that is the end of the group."""
    group = addressed(turn, command)
    if isinstance(group, Reply):
        return group
    if all(member.name != command.member for member in group.plan.members):
        return Reply(404, "not_found", f"{group.id} has no member {command.member!r}")
    if group.state is G.STOPPING or group.state.terminal:
        return Reply(409, "conflict", f"{group.id} is {group.state.value}: nothing of it is wanted any more")
    if command.member not in group.stopped:
        turn.emit(MemberStopped(group.id, command.member))
        if dict(group.below_floor_ms).get(command.member):
            turn.emit(FloorCrossed(group.id, command.member, 0))
        for key, slot in list(group.slots.items()):
            # What is being scaled away goes on so: the change gives its place to others.
            if key[0] == command.member and slot.state not in (S.DONE, S.RETIRED) and not slot.out:
                stop(turn, group.id, key, Next.RETIRE)
        # It asks for less from now on: what did not fit before may.
        turn.freed = turn.freed or group.state in (G.PENDING, G.RESTARTING)
        if _nothing_left(turn.draft.groups[group.id]):
            end_group(turn, group.id, G.CANCELLED, USER, f"its member {command.member} was stopped")
    return Reply(fields=(("id", group.id), ("member", command.member)))


def _nothing_left(group: Group) -> bool:
    """No primary job is left that runs, waits or is DONE; or, where there never was one, no member at all."""
    primary = [member for member in group.plan.members if member.kind is MemberKind.JOB and member.primary]
    if not primary:
        return all(member.name in group.stopped for member in group.plan.members)
    return outcome(group) is G.FAILED


def drain_slot(turn: Turn, command: inp.DrainSlot) -> Reply:
    """Drain one incarnation: a failure `drained`, judged with the others of this batch; one that never started moves."""
    group = addressed(turn, command)
    if isinstance(group, Reply):
        return group
    slot = slot_of(group, command.member, command.index, command.incarnation)
    if isinstance(slot, Reply):
        return slot
    if group.state in ACTIVE and slot.state in RUNS:
        turn.fail(group, slot, Exit(Cause.DRAINED, slot.incarnation, turn.now_ms, message="an operator drains it"))
    elif group.state in ACTIVE and slot.state in BEFORE_START:
        move_away(turn, group.id, slot.key)
    elif slot.state is not S.DRAINING:
        where = f"{command.member}[{command.index}] is {slot.state.value}, and {group.id} {group.state.value}"
        text = f"{where}: nothing runs that could be drained"
        return Reply(409, "conflict", text, (("state", slot.state.value),))
    return Reply(fields=(("id", group.id), ("incarnation", slot.incarnation)))


def lift(turn: Turn, command: inp.LiftExclusion) -> Reply:
    """The group may use the host again, and nothing that happened there before counts against it."""
    group = addressed(turn, command)
    if isinstance(group, Reply):
        return group
    if command.host not in group.excluded:
        return Reply(404, "not_found", f"{command.host!r} is not excluded for {group.id}")
    turn.emit(HostReadmitted(group.id, command.host))
    turn.freed = True
    return Reply(fields=(("id", group.id), ("host", command.host)))
