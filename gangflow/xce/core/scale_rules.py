"""What bounds the targets of a group: members' own bounds, ratios, a budget of GPUs (design 3.7). They bind targets only."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from gangflow.xce.core.floors import watched
from gangflow.xce.core.inputs import Reply
from gangflow.xce.core.plan import GroupPlan, MemberKind, MemberPlan, Per, RatioPlan
from gangflow.xce.core.state import Group

GPUS = "gpus"
WHOLE = 1_000
Targets = Mapping[str, int]


def gpus_of(member: MemberPlan) -> int:
    """Thousandths of a GPU that one slot of the member takes at least (a use per host: of as few hosts as there must be)."""
    total = 0
    for term in member.terms:
        hosts = -(-term.count // term.ptile) if term.ptile and not term.one_host else 1
        times = {Per.TASK: term.count, Per.HOST: hosts, Per.JOB: 1}
        total += sum(use.amount * times[use.per] for use in term.uses if use.name == GPUS)
    return total


def gpus_wanted(plan: GroupPlan, targets: Targets) -> int:
    """Thousandths of a GPU that all targets together ask for."""
    return sum(gpus_of(member) * targets[member.name] for member in plan.members)


def gpus_text(thousandths: int) -> str:
    """`2`, `0.5`: GPUs for people."""
    whole, rest = divmod(thousandths, WHOLE)
    return f"{whole}.{rest:03}".rstrip("0") if rest else str(whole)


def ratio_text(ratio: RatioPlan) -> str:
    """`1/4 ≤ prefill/decode ≤ 1/2`."""
    least = f"{_fraction(ratio.least)} ≤ " if ratio.least[0] else ""
    most = f" ≤ {_fraction(ratio.most)}" if ratio.most[1] else ""
    return f"{least}{ratio.member}/{ratio.to}{most}"


def _fraction(value: tuple[int, int]) -> str:
    return str(value[0]) if value[1] == 1 else f"{value[0]}/{value[1]}"


def ratio_holds(ratio: RatioPlan, targets: Targets) -> bool:
    """Whether these targets keep the ratio; without division, so that a target of 0 is no special case."""
    one, other = targets[ratio.member], targets[ratio.to]
    low = ratio.least[0] * other <= one * ratio.least[1]
    return low and (not ratio.most[1] or one * ratio.most[1] <= ratio.most[0] * other)


def broken_limit(plan: GroupPlan, targets: Targets) -> str:
    """Which limit that spans members these targets break, with both numbers; empty: none."""
    for ratio in plan.scale.ratios:
        if not ratio_holds(ratio, targets):
            one, other = targets[ratio.member], targets[ratio.to]
            return f"the ratio {ratio_text(ratio)} does not hold for {ratio.member} {one} and {ratio.to} {other}"
    wanted = gpus_wanted(plan, targets)
    if 0 < plan.scale.max_gpus < wanted:
        return f"the targets ask for {gpus_text(wanted)} GPUs, and the group may have {gpus_text(plan.scale.max_gpus)}"
    return ""


def wrong_target(group: Group, name: str, count: int) -> str:
    """What is wrong with one member's target: path, value, what was expected and the nearest name; empty: nothing."""
    plan = group.plan
    names = [member.name for member in plan.members if member.kind is MemberKind.REPLICA_SET]
    member = next((member for member in plan.members if member.name == name), None)
    if member is None:
        near = get_close_matches(name, names, n=1)
        expected = f"; did you mean {near[0]!r}?" if near else f"; expected one of {', '.join(names) or 'none'}"
        return f"targets.{name}: {group.id} has no replica set of that name{expected}"
    if member.kind is MemberKind.JOB:
        return f"targets.{name}: a job has exactly one slot; expected a replica set: {', '.join(names) or 'there is none'}"
    if not member.min_replicas <= count <= member.max_replicas:
        bounds = f"from {member.min_replicas} (min_replicas) to {member.max_replicas} (max_replicas)"
        return f"targets.{name}: {count}; expected {bounds}"
    floor = _floor(group, member)
    if count < floor:
        # Nothing would ever bring it back above: after its grace the rule would fail what a user asked for.
        return f"targets.{name}: {count}; a failure rule watches that {floor} are ready; expected from {floor}"
    return ""


def _floor(group: Group, member: MemberPlan) -> int:
    found = watched(group, member)
    return min(found[1].floor, member.max_replicas) if found is not None else 0


def refusal(group: Group, asked: Targets, targets: Targets) -> Reply | None:
    """The reply to targets that the group's plan does not allow; None: it does."""
    for name, count in asked.items():
        wrong = wrong_target(group, name, count)
        if wrong:
            return Reply(422, "invalid", wrong, (("id", group.id), ("path", f"targets.{name}")))
    broken = broken_limit(group.plan, targets)
    if broken:
        return Reply(422, "invalid", broken, (("id", group.id), ("path", "targets")))
    return None
