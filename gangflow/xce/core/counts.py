"""Is it satisfied: what a group needs, counted over its slots. After the release, *required* is a count (design 3.1)."""

from __future__ import annotations

from gangflow.xce.core.plan import MemberKind, MemberPlan
from gangflow.xce.core.state import Group, GroupState, Next, Slot, SlotState, TaskPhase

STARTED = frozenset({SlotState.READY, SlotState.DONE})
UP = frozenset({SlotState.RUNNING, SlotState.READY, SlotState.DONE})
ACTIVE = frozenset({GroupState.STARTING, GroupState.RUNNING, GroupState.DEGRADED})
"""The barrier is open: slots start, fail and are judged one by one."""
BEFORE_START = frozenset({SlotState.PLACED, SlotState.PREPARED})
RUNS = frozenset({SlotState.STARTING, SlotState.RUNNING, SlotState.READY})
AT_REST = frozenset({SlotState.PENDING, SlotState.DONE, SlotState.RETIRED})
"""Between lives of the whole group: nothing is placed, runs, or is on its way down."""


def slots_of(group: Group, member: MemberPlan) -> list[Slot]:
    """The member's slots by index, without those that were scaled away."""
    slots, name = group.slots, member.name
    return [slot for index in range(extent(group, name)) if not (slot := slots[name, index]).out]


def target(group: Group, member: str) -> int:
    """How many slots the member is to have."""
    for name, count in group.targets:
        if name == member:
            return count
    return 0


def extent(group: Group, member: str) -> int:
    """One more than the highest index that the member ever had."""
    for name, count in group.extents:
        if name == member:
            return count
    return 0


def required(group: Group, member: MemberPlan) -> int:
    """How many places a start of the whole group needs for the member: its minimum, less what is finished or given up."""
    if member.name in group.stopped:
        return 0
    if member.kind is MemberKind.JOB:
        return 0 if group.slots[member.name, 0].state in (SlotState.DONE, SlotState.RETIRED) else 1
    return member.min_replicas


def to_place(group: Group, member: MemberPlan) -> list[Slot]:
    """The member's slots that a start of the whole group places: as many as are required, lowest index first."""
    waiting = [slot for slot in slots_of(group, member) if slot.state is SlotState.PENDING]
    return waiting[: required(group, member)]


def at_rest(group: Group) -> bool:
    """Every slot waits, is finished or is given up, and none holds anything: the group may be placed as a whole."""
    return all(slot.state in AT_REST and not slot.tasks for slot in group.slots.values())


def ready(group: Group, member: MemberPlan) -> int:
    """How many of its slots are READY now (or DONE, for a job: what finished is not missing)."""
    slots, name, count = group.slots, member.name, 0
    for index in range(extent(group, name)):
        slot = slots[name, index]
        if slot.state in STARTED and not slot.out:
            count += 1
    return count


def wanted(group: Group, member: MemberPlan) -> int:
    """How many of its slots are not given up, nor on their way to that."""
    slots = slots_of(group, member)
    return sum(1 for slot in slots if slot.state is not SlotState.RETIRED and slot.next is not Next.RETIRE)


def started(group: Group) -> bool:
    """What ends STARTING: every job is READY, DONE or tolerated; every replica set has its minimum ready."""
    return all(holds(group, member, STARTED) for member in group.plan.members)


def satisfied(group: Group) -> bool:
    """Satisfied now: every job runs, is DONE or tolerated; every replica set has its minimum ready."""
    return all(holds(group, member, UP) for member in group.plan.members)


def holds(group: Group, member: MemberPlan, enough: frozenset[SlotState]) -> bool:
    """Whether the member has what it needs, a job in a state that is `enough`; one that was stopped needs nothing."""
    if member.name in group.stopped:
        return True
    if member.kind is MemberKind.JOB:
        state = group.slots[member.name, 0].state
        return state in enough or (state is SlotState.RETIRED and (member.name, 0) in group.tolerated)
    return ready(group, member) >= member.min_replicas


def gone(slot: Slot) -> bool:
    """No process of it is left, and nothing is prepared for it: all its tasks are confirmed gone, or it has none."""
    return all(task.phase is TaskPhase.GONE for task in slot.tasks)
