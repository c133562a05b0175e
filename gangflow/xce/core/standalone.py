"""Standalone claims: they exist by command or by being retained, and outlive the groups that use them (design 3.4)."""

from __future__ import annotations

from collections.abc import Iterable

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.claim_ids import RETAINED_ID, STANDALONE_ID, holds, names
from gangflow.xce.core.claims import TO_MAKE, C, late, provision, release
from gangflow.xce.core.inputs import Reply
from gangflow.xce.core.limits import STANDALONE_MAX
from gangflow.xce.core.plan import GroupPlan
from gangflow.xce.core.state import Claim
from gangflow.xce.core.turn import Turn
from gangflow.xce.renew import replace


def create(turn: Turn, command: inp.CreateClaim) -> Reply:
    """A new standalone claim; its provider is asked at once."""
    name = command.plan.name
    if not STANDALONE_ID.fullmatch(name) or RETAINED_ID.fullmatch(name):
        expected = "a-z, 0-9 and -, first a letter, at most 63 characters, and not like the name of a retained claim (g1-…)"
        return Reply(422, "invalid", f"{name!r} cannot be a claim's name: {expected}")
    old = turn.draft.claims.get(name)
    if old is not None:
        state = "is still being released" if old.state is C.RELEASING else f"is {old.state.value}"
        return Reply(409, "conflict", f"a claim called {name!r} exists already, and {state}", (("id", name),))
    if sum(1 for claim in turn.draft.claims.values() if not claim.group) >= STANDALONE_MAX:
        return Reply(413, "too_large", f"there are {STANDALONE_MAX} standalone claims already")
    plan = replace(command.plan, scope="", retain=False, uses="", after=())
    # Whatever is still to come about an earlier claim of this name is about an earlier attempt.
    former = turn.draft.claim_attempts
    provision(turn, Claim(name, "", plan, owner=command.owner, attempt=former, former=former))
    return Reply(201, fields=(("id", name), ("state", C.PROVISIONING.value)))


def delete(turn: Turn, command: inp.DeleteClaim) -> Reply:
    """Release a standalone claim that no group uses that has not ended."""
    claim = turn.draft.claims.get(command.claim)
    if claim is None:
        return Reply(404, "not_found", f"no claim {command.claim!r}")
    if claim.group:
        return Reply(409, "conflict", f"claim {claim.id} belongs to {claim.group}, and goes with it", (("group", claim.group),))
    users = [group.id for group in turn.draft.groups.values() if not group.state.terminal and names(group.plan, claim.id)]
    if users:
        text = f"claim {claim.id} is used by {', '.join(users[:8])}{' …' if len(users) > 8 else ''}"
        return Reply(409, "in_use", text, (("groups", ",".join(users)),))
    release(turn, claim)
    return Reply(fields=(("id", claim.id), ("state", C.RELEASING.value)))


def missing(turn: Turn, plan: GroupPlan) -> Reply | None:
    """Why a new group cannot use the standalone claims that it names; None: it can, perhaps after waiting for them."""
    for one in plan.claims:
        if not one.uses:
            continue
        claim = turn.draft.claims.get(one.uses)
        if claim is None or claim.group:
            # The names that there are, are not everybody's to know: admission names the nearest that the caller may see.
            return Reply(422, "invalid", f"claim {one.name} uses {one.uses!r}: there is no standalone claim of that name")
        if claim.state in (C.RELEASING, C.GONE):
            return Reply(409, "conflict", f"claim {one.name} uses {one.uses}, which is being released", (("claim", claim.id),))
    return None


def tend(turn: Turn, due: Iterable[str]) -> None:
    """Deadlines of standalone claims: a provider that took too long failed, and what is not there is made again."""
    for name in due:
        claim = turn.draft.claims.get(name)
        if claim is None or claim.group or not 0 < claim.until_ms <= turn.now_ms:
            continue
        if claim.state is C.PROVISIONING:
            late(turn, claim)
        elif claim.state in TO_MAKE:
            provision(turn, claim)


def wake(turn: Turn, seen: dict[str, None]) -> None:
    """Where this step let go of standalone claims, whoever waits for one may have it. `seen`: groups of which that is known."""
    for group_id in turn.touched:
        before = turn.before.groups.get(group_id)
        if before is None or group_id in seen or not any(plan.uses for plan in before.plan.claims) or not holds(before):
            continue
        now = turn.group(group_id)
        if now is None or not holds(now):
            seen[group_id] = None
            turn.freed = True
