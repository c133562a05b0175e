"""Floors: how few ready replicas a rule allows, for how long, and what then (design 3.5).

A rule with a `floor_grace` watches how many replicas are ready; one without it bounds only what may be tolerated, since any
restart takes a ready replica away for a moment. Without one, too, nothing is waited for without end: each replica that is not
ready has a deadline of its own (`ready_timeout`, also for one that was ready and broke), and then the rules are asked.
"""

from __future__ import annotations

from gangflow.xce.core.counts import ready
from gangflow.xce.core.plan import MemberKind, MemberPlan, RulePlan
from gangflow.xce.core.state import Group, GroupState


def floor_of(member: MemberPlan, rule: RulePlan) -> int:
    """The fewest replicas under this rule: a rule may ask for more than the member's own minimum, never for less."""
    return max(rule.floor, member.min_replicas)


def watched(group: Group, member: MemberPlan) -> tuple[int, RulePlan] | None:
    """The rule (and its number) that watches the member's ready replicas: the first with a grace that speaks of it."""
    if member.kind is MemberKind.JOB or member.name in group.stopped:
        return None
    for number, rule in enumerate(group.plan.rules):
        if rule.floor_grace_ms > 0 and rule.member in ("", member.name) and rule.slot < 0:
            return number, rule
    return None


def below(group: Group, member: MemberPlan, rule: RulePlan) -> bool:
    """Whether fewer replicas are ready than the rule asks for."""
    return ready(group, member) < floor_of(member, rule)


def floor_deadline(group: Group) -> int:
    """When the first member that is below its floor has been so for too long; 0 means never."""
    if group.state is not GroupState.DEGRADED and group.state is not GroupState.RUNNING:
        return 0
    first = 0
    for name, since in group.below_floor_ms:
        found = watched(group, group.plan.member(name))
        if found is not None and (not first or since + found[1].floor_grace_ms < first):
            first = since + found[1].floor_grace_ms
    return first
