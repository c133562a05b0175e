"""Which claims a group and a slot have, and who holds standalone ones: ids and holders, derived from plans and states."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from gangflow.xce.core.plan import Access, ClaimPlan, GroupPlan
from gangflow.xce.core.state import Claim, Group, GroupState, Slot

STANDALONE_ID = re.compile(r"[a-z][a-z0-9-]{0,62}")
"""What a standalone claim may be called."""
RETAINED_ID = re.compile(r"g[0-9]+-.*")
"""Names that retained claims get: nobody else may use them."""
_MADE_FOR = re.compile(r"(?P<group>[^/]+)/(?:(?P<member>[^/\[]+)\[(?P<index>[0-9]+)\]/)?(?P<name>[^/]+)")
PLACED = frozenset({GroupState.PREPARING, GroupState.STARTING, GroupState.RUNNING, GroupState.DEGRADED, GroupState.RESTARTING})
"""From its placement on a group holds what it uses, until it waits as a whole again or is over, and nothing of it is left."""


def claim_id(group: str, plan: ClaimPlan, index: int = -1) -> str:
    """`g1/ckpt` of a group, `g1/actor[0]/scratch` of a slot; what `uses` names is a standalone claim, called so itself."""
    if plan.uses:
        return plan.uses
    return f"{group}/{plan.scope}[{index}]/{plan.name}" if plan.scope else f"{group}/{plan.name}"


def retained_id(claim: Claim) -> str:
    """What a retained claim is called as a standalone one: `g1-ckpt`, `g1-rollout-0-cache`."""
    slot = f"{claim.member}-{claim.index}-" if claim.member else ""
    return f"{claim.group}-{slot}{claim.plan.name}"


def made_for(claim: Claim) -> tuple[str, tuple[str, int] | None, str]:
    """(group, slot, name) that its provider made it for: of a retained claim, those that it was made for at first."""
    match = _MADE_FOR.fullmatch(claim.made_as)
    if match is None:
        return claim.group, (claim.member, claim.index) if claim.member else None, claim.plan.name
    slot = (match["member"], int(match["index"])) if match["member"] else None
    return match["group"], slot, match["name"]


def group_claim_ids(group: Group) -> list[tuple[ClaimPlan, int, str]]:
    """(plan, slot's index or -1, id) of all claims that the group may have of its own."""
    found: list[tuple[ClaimPlan, int, str]] = []
    for plan in group.plan.claims:
        if plan.uses:
            continue
        if not plan.scope:
            found.append((plan, -1, claim_id(group.id, plan)))
            continue
        for member, index in group.slots:
            if member == plan.scope:
                found.append((plan, index, claim_id(group.id, plan, index)))
    return found


def claims_of(claims: Mapping[str, Claim], group: Group) -> Iterator[Claim]:
    """The group's own claims that exist, in the plan's order."""
    if group.plan.claims:
        for _, _, claim in group_claim_ids(group):
            if claim in claims:
                yield claims[claim]


def claims_for(claims: Mapping[str, Claim], group: Group, slot: Slot) -> Iterator[tuple[ClaimPlan, Claim | None]]:
    """What the slot's tasks see: the group's claims, its own, and standalone ones; None where one was never made."""
    for plan in group.plan.claims:
        if not plan.scope or plan.scope == slot.member:
            yield plan, claims.get(claim_id(group.id, plan, slot.index))


def bound_to(claim: Claim) -> tuple[str, ...]:
    """The hosts that it exists on; empty: it is bound to none."""
    return claim.hosts or ((claim.host,) if claim.host else ())


# --- standalone claims ----------------------------------------------------------------------------------------------------


def uses(plan: GroupPlan) -> tuple[tuple[str, Access], ...]:
    """The standalone claims that a group takes with its places, and how: each once, however many of its members use it."""
    return tuple({claim.uses: claim.access for claim in plan.claims if claim.uses}.items())


def names(plan: GroupPlan, claim: str) -> bool:
    """Whether the group uses this standalone claim."""
    return any(one.uses == claim for one in plan.claims)


def holds(group: Group) -> bool:
    """Whether it holds the standalone claims that it uses: from its placement until nothing of it is placed or live."""
    if group.state in PLACED:
        return True
    return not group.state.terminal and any(slot.tasks or slot.live for slot in group.slots.values())


def holders(groups: Iterable[Group]) -> dict[str, list[tuple[str, Access]]]:
    """Standalone claim → the groups that hold it now, and how; in order of submission."""
    found: dict[str, list[tuple[str, Access]]] = {}
    for group in groups:
        taken = uses(group.plan) if group.plan.claims else ()
        if taken and holds(group):
            for claim, access in taken:
                found.setdefault(claim, []).append((group.id, access))
    return found
