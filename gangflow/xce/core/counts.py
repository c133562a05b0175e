"""Is it satisfied: what a group needs, counted over its slots. After the release, *required* is a count (design 3.1)."""

from __future__ import annotations

from gangflow.xce.core.plan import MemberKind, MemberPlan
from gangflow.xce.core.state import Group, GroupState, Slot, SlotState, TaskPhase

STARTED = frozenset({SlotState.READY, SlotState.DONE})
UP = frozenset({SlotState.RUNNING, SlotState.READY, SlotState.DONE})
ACTIVE = frozenset({GroupState.STARTING, GroupState.RUNNING, GroupState.DEGRADED})
"""The barrier is open: slots start, fail and are judged one by one."""
BEFORE_START = frozenset({SlotState.PLACED, SlotState.PREPARED})
RUNS = frozenset({SlotState.STARTING, SlotState.RUNNING, SlotState.READY})


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


def minimum(member: MemberPlan) -> int:
    """How many of its slots are required: a job's one, a replica set's `min_replicas`."""
    return 1 if member.kind is MemberKind.JOB else member.min_replicas


def ready(group: Group, member: MemberPlan) -> int:
    """How many of its slots are READY now (or DONE, for a job: what finished is not missing)."""
    return sum(1 for slot in slots_of(group, member) if slot.state in STARTED)


def wanted(group: Group, member: MemberPlan) -> int:
    """How many of its slots are not RETIRED."""
    return sum(1 for slot in slots_of(group, member) if slot.state is not SlotState.RETIRED)


def started(group: Group) -> bool:
    """What ends STARTING: every job is READY, DONE or tolerated; every replica set has its minimum ready."""
    return all(_holds(group, member, STARTED) for member in group.plan.members)


def satisfied(group: Group) -> bool:
    """Satisfied now: every job runs, is DONE or tolerated; every replica set has its minimum ready."""
    return all(_holds(group, member, UP) for member in group.plan.members)


def _holds(group: Group, member: MemberPlan, enough: frozenset[SlotState]) -> bool:
    if member.kind is MemberKind.JOB:
        state = group.slots[member.name, 0].state
        return state in enough or (state is SlotState.RETIRED and (member.name, 0) in group.tolerated)
    return ready(group, member) >= member.min_replicas


def gone(slot: Slot) -> bool:
    """No process of it is left, and nothing is prepared for it: all its tasks are confirmed gone, or it has none."""
    return all(task.phase is TaskPhase.GONE for task in slot.tasks)
