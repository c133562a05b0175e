"""Who may do what: one table for every call of the contract. Pure.

A caller *stands* in some relation to what a call names (the group, the member, the claim; where it names nothing, to the
cluster), and the table says which relations a call is open to. Whoever is in none does not learn that the thing exists: 404,
as if it did not. Whoever may look at it, but not do this, gets 403.

- A group's owner may do anything to the group. A member's owner may stop, restart, scale and drain that member and read its
  logs; of the group he sees its state and its reason, and of its members and claims his own ones only (`sight`).
- A task's token looks at its own group and writes its key-values, heartbeats and spans.
- A standalone claim is its owner's. Others use it only if they may name its owner: themselves, the admin, or by a delegation
  token at submission. Owners of groups that use it may look at it.
- Names of groups and of claims are the cluster's: that one is taken can be noticed, by whom cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from gangflow.xce.core.claim_ids import names
from gangflow.xce.core.state import Claim, Group, State
from gangflow.xce.rest.tokens import Principal, Role


class Stand(StrEnum):
    """A caller's relation to what a call names."""

    ADMIN = "admin"
    OWNER = "owner"
    """Of the group or the claim; where a call names neither: any owner."""
    PART = "part"
    """Of the member that the call names, or of some member where it names none; of a claim: of a group that uses it."""
    TASK = "task"
    """A task of the group, or of a group that uses the claim; where a call names neither: any task."""
    NOBODY = "nobody"
    """To him it does not exist."""


OPERATOR = frozenset({Stand.ADMIN})
OWNER = frozenset({Stand.ADMIN, Stand.OWNER})
MEMBER = frozenset({Stand.ADMIN, Stand.OWNER, Stand.PART})
SERVICE = frozenset({Stand.ADMIN, Stand.OWNER, Stand.TASK})
LOOK = frozenset({Stand.ADMIN, Stand.OWNER, Stand.PART, Stand.TASK})
ANYBODY = frozenset(Stand)
"""Without a token, too."""

_GROUP = "/groups/{group}"
_MEMBER = f"{_GROUP}/members/{{member}}"
_SLOT = f"{_MEMBER}/slots/{{index}}"

RIGHTS: Mapping[tuple[str, str], frozenset[Stand]] = {
    ("GET", "/healthz"): ANYBODY,
    ("GET", "/readyz"): ANYBODY,
    ("GET", "/metrics"): OPERATOR,
    # Lists show to each caller what he may look at, and nothing of the rest.
    ("GET", "/groups"): LOOK,
    ("GET", "/jobs"): LOOK,
    ("GET", "/claims"): LOOK,
    ("GET", "/events"): LOOK,
    ("GET", "/queue"): OWNER,
    ("GET", "/hosts"): OWNER,
    ("GET", "/owners"): OWNER,
    ("POST", "/groups"): OWNER,
    ("POST", "/groups:plan"): OWNER,
    ("POST", "/jobs"): OWNER,
    ("POST", "/claims"): OWNER,
    ("POST", "/tokens"): OWNER,
    ("GET", _GROUP): LOOK,
    ("GET", f"{_GROUP}/why"): LOOK,
    ("GET", f"{_GROUP}/changes"): LOOK,
    ("GET", f"{_GROUP}/changes/{{change}}"): LOOK,
    ("DELETE", _GROUP): OWNER,
    ("POST", f"{_GROUP}:fail"): OWNER,
    ("POST", f"{_GROUP}:suspend"): OWNER,
    ("POST", f"{_GROUP}:resume"): OWNER,
    ("POST", f"{_GROUP}:restart"): OWNER,
    ("DELETE", f"{_GROUP}/excluded/{{host}}"): OWNER,
    # Of a member's owner: targets of his own members only, see `not_his`.
    ("PATCH", f"{_GROUP}/members"): MEMBER,
    ("DELETE", _MEMBER): MEMBER,
    ("POST", f"{_SLOT}:restart"): MEMBER,
    ("POST", f"{_SLOT}:drain"): MEMBER,
    ("POST", f"{_SLOT}:report"): OWNER,
    ("POST", f"{_SLOT}:signal"): OPERATOR,
    ("GET", f"{_SLOT}/log"): LOOK,
    # Group services are between a group's coordinator and its tasks.
    ("POST", f"{_GROUP}/coordinator"): OWNER,
    ("PUT", f"{_SLOT}/heartbeat"): SERVICE,
    ("GET", f"{_GROUP}/heartbeats"): LOOK,
    ("GET", f"{_GROUP}/kv"): SERVICE,
    ("GET", f"{_GROUP}/kv/{{name}}"): SERVICE,
    ("PUT", f"{_GROUP}/kv/{{name}}"): SERVICE,
    ("GET", f"{_GROUP}/trace"): SERVICE,
    ("POST", f"{_GROUP}/spans"): SERVICE,
    ("GET", "/claims/{claim}"): LOOK,
    ("DELETE", "/claims/{claim}"): OWNER,
    ("POST", "/hosts/{host}:close"): OPERATOR,
    ("POST", "/hosts/{host}:drain"): OPERATOR,
    ("POST", "/hosts/{host}:open"): OPERATOR,
}
"""(method, path under `/v1` as the contract has it) → who may. A call without an entry is refused to everybody."""


def of_cluster(caller: Principal) -> Stand:
    """How a caller stands to the cluster."""
    return Stand(caller.role.value)


def of_group(caller: Principal, group: Group, member: str = "") -> Stand:
    """How a caller stands to a group, or to one member of it."""
    if caller.role is Role.ADMIN:
        return Stand.ADMIN
    if caller.task is not None:
        return Stand.TASK if caller.task.group == group.id else Stand.NOBODY
    if group.plan.owner == caller.owner:
        return Stand.OWNER
    return Stand.PART if any(not member or member == name for name in members_of(group, caller.owner)) else Stand.NOBODY


def of_claim(caller: Principal, claim: Claim, state: State) -> Stand:
    """How a caller stands to a claim: a group's, a slot's, or a standalone one."""
    group = state.groups.get(claim.group) if claim.group else None
    if group is not None:
        return of_group(caller, group, claim.member) if claim.member or not _part(caller, group) else Stand.NOBODY
    if caller.role is Role.ADMIN:
        return Stand.ADMIN
    if caller.role is Role.OWNER and claim.owner == caller.owner:
        return Stand.OWNER
    for user in users_of(state, claim.id):
        stand = of_group(caller, user)
        if stand is Stand.TASK:
            return stand
        his = members_of(user, caller.owner) if stand is Stand.PART else ()
        if stand is Stand.OWNER or any(plan.uses == claim.id and plan.scope in his for plan in user.plan.claims):
            return Stand.PART
    return Stand.NOBODY


def members_of(group: Group, owner: str) -> tuple[str, ...]:
    """The members of a group that are this owner's; a member without one of its own is the group's owner's."""
    return tuple(member.name for member in group.plan.members if (member.owner or group.plan.owner) == owner)


def not_his(caller: Principal, group: Group, members: Mapping[str, int]) -> str | None:
    """The first of these members that the caller may not scale."""
    if of_group(caller, group) is not Stand.PART:
        return None
    his = members_of(group, caller.owner)
    return next((member for member in members if member not in his), None)


def users_of(state: State, claim: str) -> list[Group]:
    """Groups that have not ended and use a standalone claim."""
    return [group for group in state.groups.values() if not group.state.terminal and names(group.plan, claim)]


def _part(caller: Principal, group: Group) -> bool:
    return of_group(caller, group) is Stand.PART
