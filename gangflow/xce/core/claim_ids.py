"""Which claims a group and a slot have: ids, by the plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gangflow.xce.core.plan import ClaimPlan
from gangflow.xce.core.state import Claim, Group, Slot


def claim_id(group: str, plan: ClaimPlan, index: int = -1) -> str:
    """`g1/ckpt` of a group, `g1/actor[0]/scratch` of a slot."""
    return f"{group}/{plan.scope}[{index}]/{plan.name}" if plan.scope else f"{group}/{plan.name}"


def group_claim_ids(group: Group) -> list[tuple[ClaimPlan, int, str]]:
    """(plan, slot's index or -1, id) of all claims that the group may have."""
    found: list[tuple[ClaimPlan, int, str]] = []
    for plan in group.plan.claims:
        if not plan.scope:
            found.append((plan, -1, claim_id(group.id, plan)))
            continue
        for member, index in group.slots:
            if member == plan.scope:
                found.append((plan, index, claim_id(group.id, plan, index)))
    return found


def claims_of(claims: Mapping[str, Claim], group: Group) -> Iterator[Claim]:
    """The group's claims that exist, in the plan's order."""
    if group.plan.claims:
        for _, _, claim in group_claim_ids(group):
            if claim in claims:
                yield claims[claim]


def claims_for(claims: Mapping[str, Claim], group: Group, slot: Slot) -> Iterator[tuple[ClaimPlan, Claim | None]]:
    """What the slot's tasks see: the group's claims and its own; None where one was never made."""
    for plan in group.plan.claims:
        if not plan.scope:
            yield plan, claims.get(claim_id(group.id, plan))
        elif plan.scope == slot.member:
            yield plan, claims.get(claim_id(group.id, plan, slot.index))
