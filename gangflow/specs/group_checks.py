"""What must agree across the members of a group: names, rules, the coordinator, ratios. Faults have paths from the group."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gangflow.specs.failure import FailureRule
from gangflow.specs.faults import Fault, Loc, nearest
from gangflow.specs.member import Job, ReplicaSet

if TYPE_CHECKING:
    from gangflow.specs.group import CoStartGroup


def member_faults(group: CoStartGroup) -> Iterator[Fault]:
    """Claims and address variables that would meet."""
    taken: dict[str, str] = {}
    shared = [claim.name for claim in group.claims]
    made: dict[str, str] = {}
    for name, member in group.members.items():
        for index, claim in enumerate(member.claims):
            at = ("members", name, member.tag, "claims", index, "name")
            # A slot's claim is made as `<claim>-<member>-<index>`.
            stem = f"{claim.name}-{name}"
            if claim.name in shared or any(re.fullmatch(f"{stem}-[0-9]+", other) for other in shared):
                yield Fault(at, claim.name, "a claim of another name: a claim of the group has this one")
            elif made.setdefault(stem, name) != name:
                yield Fault(at, claim.name, f"a claim of another name: one of member {made[stem]} is made as {stem}, too")
        for index, port in enumerate(member.ports):
            # XCE_ADDRS_<MEMBER>_<PORT>: member `a-b` with port `c` would hide member `a` with port `b-c`.
            variable = f"{name}-{port}"
            if taken.setdefault(variable, name) != name:
                loc = ("members", name, member.tag, "ports", index)
                yield Fault(loc, port, f"another name: member {taken[variable]} has the same address variable")


def rule_faults(group: CoStartGroup) -> Iterator[Fault]:
    """Rules that name what the group does not have."""
    for index, rule in enumerate(group.failure):
        yield from _one_rule(group, ("failure", index), rule, rule.match.member)
    for name, member in group.members.items():
        for index, rule in enumerate(member.on_failure):
            loc = ("members", name, member.tag, "on_failure", index)
            if rule.match.member not in (None, name):
                expected = f"no `member`: on_failure is about {name} only"
                yield Fault((*loc, "match", "member"), rule.match.member, expected)
            else:
                yield from _one_rule(group, loc, rule, name)


def _one_rule(group: CoStartGroup, loc: Loc, rule: FailureRule, name: str | None) -> Iterator[Fault]:
    slot = rule.match.slot
    if name is None:
        if slot is not None:
            yield Fault((*loc, "match", "slot"), slot, "a `member` beside it")
        if rule.floor is not None:
            yield Fault((*loc, "floor"), rule.floor, "a `match.member` that names a replica set")
        return
    member = group.members.get(name)
    if member is None:
        expected = "a member of the group: " + ", ".join(group.members)
        yield Fault((*loc, "match", "member"), name, expected, nearest(name, group.members))
        return
    slots = member.most if isinstance(member, ReplicaSet) else 1
    if slot is not None and slot >= slots:
        yield Fault((*loc, "match", "slot"), slot, f"less than {slots}: {name} has {slots} slot(s)")
    if rule.floor is None:
        return
    if not isinstance(member, ReplicaSet):
        yield Fault((*loc, "floor"), rule.floor, f"no `floor`: {name} is a job")
    elif rule.floor > member.replicas:
        yield Fault((*loc, "floor"), rule.floor, f"at most `replicas`, {member.replicas}")


def ratio_faults(group: CoStartGroup) -> Iterator[Fault]:
    """Ratios between other things than replica sets, and those that the first targets break."""
    services = [name for name, member in group.members.items() if isinstance(member, ReplicaSet)]
    for index, ratio in enumerate(group.ratio):
        wrong = False
        for key in ("member", "to"):
            name = getattr(ratio, key)
            if name not in services:
                wrong = True
                expected = "a replica set of the group: " + (", ".join(services) or "it has none")
                yield Fault(("ratio", index, key), name, expected, nearest(name, services))
        if wrong:
            continue
        first, second = group.members[ratio.member], group.members[ratio.to]
        assert isinstance(first, ReplicaSet)
        assert isinstance(second, ReplicaSet)
        if not ratio.holds(first.replicas, second.replicas):
            value = f"{first.replicas}/{second.replicas}"
            yield Fault(("ratio", index), value, f"{ratio} for the `replicas` of {ratio.member} and {ratio.to}")


def coordinator_faults(group: CoStartGroup) -> Iterator[Fault]:
    """A coordinator that does not fit its members."""
    coordinator = group.coordinator
    if coordinator is None:
        return
    for key, kind, what in (("actor", Job, "a job"), ("rollout", ReplicaSet, "a replica set")):
        name = getattr(coordinator, key)
        fitting = [other for other, member in group.members.items() if isinstance(member, kind)]
        if name not in fitting:
            expected = f"{what} of the group: " + (", ".join(fitting) or "it has none")
            yield Fault(("coordinator", key), name, expected, nearest(name, fitting))
    rollout = group.members.get(coordinator.rollout)
    if not isinstance(rollout, ReplicaSet):
        return
    if coordinator.port not in rollout.ports:
        expected = f"a port of {coordinator.rollout}: " + (", ".join(rollout.ports) or "it has none")
        yield Fault(("coordinator", "port"), coordinator.port, expected, nearest(coordinator.port, rollout.ports))
    if coordinator.min_rollouts > rollout.replicas:
        expected = f"at most the {rollout.replicas} replica(s) of {coordinator.rollout}"
        yield Fault(("coordinator", "min_rollouts"), coordinator.min_rollouts, expected)
