"""Invariants of targets and their changes: I12, and what a change holds (I3, I6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gangflow.xce.core import events as ev
from gangflow.xce.core.changes import granted, keeps, open_change
from gangflow.xce.core.counts import ACTIVE, slots_of, target
from gangflow.xce.core.invariants_capacity import capacity
from gangflow.xce.core.state import ChangeState, Group, Next, SlotState, State

S = SlotState
GOES = frozenset({S.RETIRED, S.DRAINING, S.STOPPING, S.LOST, S.RELEASING, S.EXIT})


def changes(state: State) -> Iterator[str]:
    """What is wrong with targets and changes, over the whole state."""
    for group in state.groups.values():
        for fault in (*_targets(group), *_slots(group), *_open(state, group)):
            yield f"{fault} [{group.id} {group.state.value}]"
    # The proof of every change still holds: all of them may come true at once.
    for fault in capacity(_come_true(state)):
        yield f"{fault}, once every change is done"


def _targets(group: Group) -> Iterator[str]:
    for member in group.plan.members:
        slots, wanted = slots_of(group, member), target(group, member.name)
        if len(slots) != wanted:
            yield f"I12 {member.name} has {len(slots)} slots, and {wanted} are its target"
        if not member.min_replicas <= wanted <= member.max_replicas:
            yield f"I12 {member.name} has a target of {wanted}"
    if len(group.slots) != sum(extent for _, extent in group.extents):
        yield "I12 the extents are not those of the slots"


def _slots(group: Group) -> Iterator[str]:
    promised = granted(group)
    for key, slot in group.slots.items():
        where = f"{slot.member}[{slot.index}]"
        if slot.out and slot.state not in GOES:
            yield f"I12 {where} is out of the target, and {slot.state.value}"
        if slot.state is S.RETIRED and slot.tasks and not keeps(group, key):
            yield f"I6 {where} is gone, and holds something for no change"
        if slot.state is S.PENDING and slot.next is Next.SCALE and key not in promised:
            yield f"I6 {where} waits, and holds something for no change"


def _open(state: State, group: Group) -> Iterator[str]:
    if any(not change.state.over for change in group.changes[:-1]):
        yield "I12 an older change is not over"
    change = open_change(group)
    if change is None:
        return
    if group.state not in ACTIVE or change.state is ChangeState.ACCEPTED:
        yield f"I12 change {change.id} is {change.state.value}"
    if max(change.until_ms, state.grace_until_ms) <= state.now_ms:
        yield f"I6 the deadline of change {change.id} passed"
    for key in change.ups:
        if group.slots[key].state is not S.PENDING or group.slots[key].out:
            yield f"I12 {key} of change {change.id} does not wait any more"
    for key in change.downs:
        if not group.slots[key].tasks or not group.slots[key].out:
            yield f"I12 {key} of change {change.id} has nothing to give any more"
    for key in granted(group):
        if key not in change.ups:
            yield f"I12 {key} has a place in change {change.id}, and does not wait"


def _come_true(state: State) -> State:
    groups = dict(state.groups)
    for group in state.groups.values():
        change = open_change(group)
        if change is None:
            continue
        slots = dict(group.slots)
        for key in change.downs:
            slots[key] = replace(slots[key], tasks=())
        for member, index, tasks in change.grants:
            slots[member, index] = replace(slots[member, index], tasks=tasks)
        groups[group.id] = replace(group, slots=slots)
    return replace(state, groups=groups)


def targets_kept(before: State, event: ev.Event, after: State) -> Iterator[str]:
    """I12, of one event: targets change by the event that says so, and become what it says."""
    if isinstance(event, ev.TargetsSet):
        if after.groups[event.group].targets != event.targets:
            yield f"I12 the targets are not what {event} says"
        return
    group = getattr(event, "group", "")
    old, new = before.groups.get(group), after.groups.get(group)
    if old is not None and new is not None and old.targets != new.targets:
        yield f"I12 {type(event).__name__} changes targets"
