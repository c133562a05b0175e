"""In which order claims are made: `after` and `needs` name what is there, and nothing waits for itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gangflow.specs.faults import Fault, Loc, nearest

if TYPE_CHECKING:
    from gangflow.specs.claims import Claim
    from gangflow.specs.group import CoStartGroup

ARROW = " → "
_REACHED = {"started": "running", "completed": "finished"}


def claim_faults(group: CoStartGroup) -> Iterator[Fault]:
    """Of a group's claims and its members': unknown names, cycles (each named as a whole), standalone claims that are
    used by two names or in two ways."""
    own = {claim.name: claim for claim in group.claims}
    yield from _of_list(group, ("claims",), group.claims, own)
    used: dict[str, Claim] = {}
    for loc, claim in _located(group):
        if claim.uses is None:
            continue
        first = used.setdefault(claim.uses, claim)
        if first.name != claim.name:
            yield Fault((*loc, "uses"), claim.uses, f"another claim: the group uses this one as {first.name}")
        elif first.access != claim.access:
            yield Fault(
                (*loc, "access"), claim.access, f"{first.access}, as elsewhere in the group: it holds {claim.uses} once"
            )
    for name, member in group.members.items():
        visible = own | {claim.name: claim for claim in member.claims}
        yield from _of_list(group, ("members", name, member.tag, "claims"), member.claims, visible)


def _located(group: CoStartGroup) -> Iterator[tuple[Loc, Claim]]:
    for index, claim in enumerate(group.claims):
        yield ("claims", index), claim
    for name, member in group.members.items():
        for index, claim in enumerate(member.claims):
            yield ("members", name, member.tag, "claims", index), claim


def _of_list(group: CoStartGroup, at: Loc, claims: Sequence[Claim], visible: Mapping[str, Claim]) -> Iterator[Fault]:
    told: list[frozenset[str]] = []
    for index, claim in enumerate(claims):
        others = [name for name in visible if name != claim.name]
        for number, name in enumerate(claim.after):
            if name not in visible:
                expected = "a claim that it can be made after: " + (", ".join(others) or "there is none")
                yield Fault((*at, index, "after", number), name, expected, nearest(name, others))
        cycle = _cycle(claim.name, visible)
        if cycle and frozenset(cycle) not in told:
            told.append(frozenset(cycle))
            yield Fault((*at, index, "after"), ", ".join(claim.after), f"no cycle: {ARROW.join(f'claim {n}' for n in cycle)}")
        yield from _need_faults(group, (*at, index, "needs"), claim)


def _cycle(start: str, claims: Mapping[str, Claim]) -> list[str]:
    """A shortest way from a claim over `after` back to itself, both ends included; empty if there is none."""
    ways = [[start]]
    seen: set[str] = set()
    while ways:
        longer = []
        for way in ways:
            claim = claims.get(way[-1])
            for name in claim.after if claim is not None else ():
                if name == start:
                    return [*way, name]
                if name not in seen:
                    seen.add(name)
                    longer.append([*way, name])
        ways = longer
    return []


def _need_faults(group: CoStartGroup, at: Loc, claim: Claim) -> Iterator[Fault]:
    for index, need in enumerate(claim.needs):
        member = group.members.get(need.member)
        if member is None:
            expected = "a member of the group: " + ", ".join(group.members)
            yield Fault((*at, index, "member"), need.member, expected, nearest(need.member, group.members))
        elif need.when != "placed":
            steps = (f"claim {claim.name}", f"member {need.member} {_REACHED[need.when]}", "the barrier", f"claim {claim.name}")
            expected = f"`placed`, or nothing waits for the other: {ARROW.join(steps)}"
            yield Fault((*at, index, "when"), need.when, expected)
        elif getattr(member, "least", 1) < 1:
            expected = f"a member that must be placed before the start: {need.member} has `min_replicas` 0"
            yield Fault((*at, index, "member"), need.member, expected)
