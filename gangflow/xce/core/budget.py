"""A group's budget of GPUs while a change of its targets is on its way: what goes away counts until it is gone (design 3.7).

The targets keep the budget (`scale_rules`), so only what is out of them and still there can make it too much.
"""

from __future__ import annotations

from collections.abc import Sequence

from gangflow.xce.core.counts import gone
from gangflow.xce.core.plan import MemberPlan, Per
from gangflow.xce.core.scale_rules import GPUS
from gangflow.xce.core.state import Group, Next, Slot, Task
from gangflow.xce.core.turn import SlotId


def gpus_in(tasks: Sequence[Task]) -> int:
    """Thousandths of GPUs that these tasks have."""
    return sum(share for task in tasks for _, share in task.gpus)


def gpus_used(group: Group) -> int:
    """Thousandths of GPUs that the group uses now; what is only held for a change is not used."""
    return sum(gpus_in(slot.tasks) for slot in group.slots.values() if _uses(slot))


def _uses(slot: Slot) -> bool:
    return not gone(slot) if slot.out else slot.next is not Next.SCALE


def within_budget(group: Group, gpus: int) -> bool:
    """Whether the group may use so many thousandths of GPUs beside what it uses now."""
    most = group.plan.scale.max_gpus
    return not most or gpus_used(group) + gpus <= most


def withheld(group: Group, waiting: Sequence[Slot]) -> tuple[SlotId, ...]:
    """Those of these slots that may not be placed yet, the last ones: what was scaled away still uses the group's GPUs."""
    most = group.plan.scale.max_gpus
    if not most or not going(group):
        return ()
    used = gpus_used(group)
    needs = {member.name: _most_gpus_of(member) for member in group.plan.members}
    found: list[SlotId] = []
    for slot in waiting:
        # What it still holds, it is placed on.
        need = needs[slot.member] if not slot.tasks else 0
        if need and used + need > most:
            found.append(slot.key)
        else:
            used += need
    return tuple(found)


def going(group: Group) -> list[Slot]:
    """Slots that were scaled away and still use GPUs."""
    return [slot for slot in group.slots.values() if slot.out and not gone(slot) and gpus_in(slot.tasks)]


def _most_gpus_of(member: MemberPlan) -> int:
    """Thousandths of a GPU that one slot of the member takes at most: a use per host, of as many hosts as it has tasks."""
    total = 0
    for term in member.terms:
        times = {Per.TASK: term.count, Per.HOST: 1 if term.one_host else term.count, Per.JOB: 1}
        total += sum(use.amount * times[use.per] for use in term.uses if use.name == GPUS)
    return total
