"""Suspend and resume: everything is given back, finished work and submission time are kept (design 3.1)."""

from __future__ import annotations

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.commands import addressed, answered
from gangflow.xce.core.counts import at_rest, required, to_place
from gangflow.xce.core.events import GroupChanged
from gangflow.xce.core.inputs import Reply
from gangflow.xce.core.state import Group, GroupState, Next, SlotState
from gangflow.xce.core.teardown import stop, stop_all, unwanted
from gangflow.xce.core.turn import Turn

G, S = GroupState, SlotState


def suspend(turn: Turn, command: inp.SuspendGroup) -> Reply:
    """Suspend a group; one that is suspended already, or on its way there, stays so."""
    group = addressed(turn, command)
    if isinstance(group, Reply):
        return group
    if group.state is G.STOPPING or group.state.terminal:
        return Reply(409, "conflict", f"{group.id} is {group.state.value}: there is nothing left to suspend")
    if group.state not in (G.SUSPENDING, G.SUSPENDED):
        suspend_group(turn, group, "user", command.message)
    return answered(turn, group.id)


def suspend_group(turn: Turn, group: Group, cause: str, message: str) -> None:
    """Take down what there is. What waits gives back at once what it holds; what runs is SUSPENDING until it is gone."""
    at_once = group.state is G.PENDING and at_rest(group)
    turn.emit(GroupChanged(group.id, group.state, G.SUSPENDED if at_once else G.SUSPENDING, cause, message))
    stop_all(turn, group.id, Next.PLACE)
    follow(turn, group.id)


def follow(turn: Turn, group_id: str) -> None:
    """A group that is SUSPENDING is SUSPENDED when every slot is confirmed gone."""
    group = turn.draft.groups[group_id]
    if group.state is G.SUSPENDING and at_rest(group):
        turn.emit(GroupChanged(group_id, G.SUSPENDING, G.SUSPENDED))


def resume(turn: Turn, command: inp.ResumeGroup) -> Reply:
    """A SUSPENDED group waits for a place again."""
    group = addressed(turn, command)
    if isinstance(group, Reply):
        return group
    if group.state is not G.SUSPENDED:
        not_yet = "not yet: something of it is still to be stopped" if group.state is G.SUSPENDING else "it is not suspended"
        return Reply(409, "conflict", f"{group.id} is {group.state.value}: {not_yet}", (("state", group.state.value),))
    turn.emit(GroupChanged(group.id, G.SUSPENDED, G.PENDING))
    for key, slot in list(group.slots.items()):
        if slot.state is S.RETIRED and key not in group.tolerated and not unwanted(group, slot):
            stop(turn, group.id, key, Next.PLACE)
    _enough_to_start(turn, group.id)
    return answered(turn, group.id)


def _enough_to_start(turn: Turn, group_id: str) -> None:
    """Where a rule gave up so many replicas that the minimum is broken, as many as it lacks come back, lowest index first."""
    group = turn.draft.groups[group_id]
    for member in group.plan.members:
        lacking = required(group, member) - len(to_place(group, member))
        given_up = [slot.key for slot in group.slots.values() if slot.member == member.name and slot.state is S.RETIRED]
        for key in [key for key in given_up if not group.slots[key].out][: max(0, lacking)]:
            stop(turn, group_id, key, Next.PLACE)
