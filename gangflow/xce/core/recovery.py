"""Slots of a group that has started, one by one: backoff, restart in place, first claim on a lost place (design 3.5)."""

from __future__ import annotations

from gangflow.durations import lasting
from gangflow.xce.core.claims import release_bound
from gangflow.xce.core.counts import ACTIVE, AT_REST, BEFORE_START, required, slots_of
from gangflow.xce.core.events import GroupChanged
from gangflow.xce.core.overrun import ran_out, warn
from gangflow.xce.core.plan import Cause
from gangflow.xce.core.reach import on_usable_hosts
from gangflow.xce.core.start import (
    fit_to_start,
    missing,
    not_ready_message,
    note_void,
    place,
    replace_group,
    start_slot,
)
from gangflow.xce.core.state import Exit, Group, GroupState, Next, Slot, SlotState
from gangflow.xce.core.teardown import change, drained, stop_all
from gangflow.xce.core.turn import SlotId, Turn

G, S = GroupState, SlotState
MOVING = frozenset({S.PREPARED, S.BACKOFF, S.PENDING, S.DRAINING})
"""States of a slot of a started group from which it may go on by itself."""


def overdue(turn: Turn, group: Group) -> None:
    """Slots whose time to prepare, or to become ready, is over: failures, judged with the others of this batch."""
    if group.state not in ACTIVE:
        return
    for slot in group.slots.values():
        if not slot.until_ms and not slot.run_until_ms:
            continue
        if ran_out(turn, group, slot) or not turn.passed(slot.until_ms):
            continue
        plan = group.plan.member(slot.member)
        if slot.state in (S.STARTING, S.RUNNING):
            what = "was ready, broke, and is not ready again" if slot.ready_ms else "not ready"
            text = f"{what} after {lasting(plan.ready_timeout_ms)}: {not_ready_message(turn, group, slot)}"
            turn.fail(group, slot, Exit(Cause.NOT_READY, slot.incarnation, turn.now_ms, message=text))
        elif slot.state in BEFORE_START and not fit_to_start(turn, group, slot):
            text = f"not prepared after {lasting(group.plan.barrier.timeout_ms)}: {missing(turn, group)}"
            turn.fail(group, slot, Exit(Cause.START_FAILED, slot.incarnation, turn.now_ms, message=text))


def advance(turn: Turn, group_id: str) -> None:
    """Take every slot of a started group as far as it can go now."""
    for key in [key for key, slot in turn.draft.at(group_id).slots.items() if slot.state in MOVING or slot.run_until_ms]:
        group = turn.draft.at(group_id)
        slot = group.slots[key]
        if slot.run_until_ms:
            warn(turn, group, slot)
        if slot.state is S.PREPARED and fit_to_start(turn, group, slot):
            start_slot(turn, group_id, key)
        elif slot.state is S.BACKOFF and slot.until_ms <= turn.now_ms:
            _again(turn, group, slot)
        elif slot.state is S.PENDING and (slot.tasks or slot.until_ms) and slot.next is not Next.SCALE:
            _first_claim(turn, group, slot)
        elif slot.state is S.DRAINING and slot.until_ms <= turn.now_ms:
            drained(turn, group_id, key)


def _again(turn: Turn, group: Group, slot: Slot) -> None:
    """The backoff is over: in place while its hosts are up, else it wants another place and keeps a first claim on its own."""
    if slot.tasks and on_usable_hosts(turn, group, slot):
        place(turn, group.id, slot.key, slot.tasks)
        return
    excluded = any(task.host in group.excluded for task in slot.tasks)
    until = turn.now_ms + group.plan.recovery_timeout_ms
    change(turn, group, slot, S.PENDING, until_ms=until, freed=excluded)


def _first_claim(turn: Turn, group: Group, slot: Slot) -> None:
    """It waits, and the places that it lost are held for it should they come back."""
    if slot.tasks and on_usable_hosts(turn, group, slot):
        place(turn, group.id, slot.key, slot.tasks)
    elif slot.until_ms <= turn.now_ms:
        change(turn, group, slot, S.PENDING, freed=True)
    elif any(task.host in group.excluded for task in slot.tasks):
        change(turn, group, slot, S.PENDING, until_ms=slot.until_ms, freed=True)


def abandoned(group: Group) -> bool:
    """Nothing of a broken group runs, comes up, is held for it or is finished: all that it lost, it lost for good.

    What is finished would have to be done again, so a group that has some of it goes on waiting for its other slots one by one.
    """
    wanted = False
    for slot in group.slots.values():
        if slot.state is S.RETIRED:
            continue
        if slot.state is not S.PENDING or slot.tasks or slot.until_ms:
            return False
        wanted = True
    return wanted


def back_to_placement(turn: Turn, group: Group) -> None:
    """No job runs here any more: the group waits as a whole again, as one whose restart found no place."""
    text = f"nothing of it runs, and no lost place came back within {lasting(group.plan.recovery_timeout_ms)}"
    turn.emit(GroupChanged(group.id, group.state, G.RESTARTING, "recovery_timeout", text))
    stop_all(turn, group.id, Next.PLACE)


# --- a group that is RESTARTING ------------------------------------------------------------------------------------------


def restart(turn: Turn, group_id: str) -> None:
    """Once every old slot is confirmed gone: to PREPARING on the same places, or wait for lost ones, or back to placement."""
    group = turn.draft.groups[group_id]
    if group.until_ms and group.until_ms <= turn.now_ms:
        turn.emit(GroupChanged(group_id, G.RESTARTING, G.RESTARTING))
        group = turn.draft.groups[group_id]
    if not all_gone(group):
        return
    if not any(slot.next is Next.RESTART for slot in group.slots.values()):
        note_void(turn, group, group.cause, group.message)
        release_bound(turn, group)
        return
    if group.until_ms:
        return
    if not to_replace(turn, group):
        replace_group(turn, group_id, {})
        return
    _claim_lost_places(turn, group)


def all_gone(group: Group) -> bool:
    """No slot of the group is live, prepared, or between incarnations."""
    return all(slot.state in AT_REST for slot in group.slots.values())


def to_replace(turn: Turn, group: Group) -> list[SlotId]:
    """The slots of a restarting group that need another place before it can start: a minimum that is not held."""
    lacking: list[SlotId] = []
    for member in group.plan.members:
        slots = [slot for slot in slots_of(group, member) if slot.state is S.PENDING]
        kept = [slot for slot in slots if slot.tasks and on_usable_hosts(turn, group, slot)]
        without = [slot.key for slot in slots if not slot.tasks or not on_usable_hosts(turn, group, slot)]
        lacking.extend(without[: max(0, required(group, member) - len(kept))])
    return lacking


def _claim_lost_places(turn: Turn, group: Group) -> None:
    """First claim on what was lost; when that expires everything is released, and the group waits at its own place."""
    lacking = to_replace(turn, group)
    untils = [group.slots[key].until_ms for key in lacking if group.slots[key].until_ms]
    if untils and min(untils) <= turn.now_ms:
        names = ", ".join(f"{member}[{index}]" for member, index in lacking)
        text = f"no place for {names} within {lasting(group.plan.recovery_timeout_ms)}"
        turn.emit(GroupChanged(group.id, group.state, G.PENDING, "recovery_timeout", text))
        stop_all(turn, group.id, Next.PLACE)
        return
    for key, slot in list(group.slots.items()):
        if slot.until_ms and key not in lacking:
            # Its own place came back, or another slot does for the minimum: nothing is waited for here any more.
            change(turn, group, slot, S.PENDING, next=Next.RESTART)
    for key in lacking:
        slot = turn.draft.groups[group.id].slots[key]
        if not slot.until_ms:
            until = turn.now_ms + group.plan.recovery_timeout_ms
            change(turn, group, slot, S.PENDING, next=Next.RESTART, until_ms=until)
