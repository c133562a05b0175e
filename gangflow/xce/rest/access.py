"""What every handler starts from: the service behind it, who is calling, and what that caller may see and do.

`entitled` stands before every call of the contract, with the table in `rights`; the other dependencies hand on what it found.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Header, Path, Request, Response

from gangflow.xce.core.inputs import Command, Reply
from gangflow.xce.core.inputs import Request as Asked
from gangflow.xce.core.plan import MemberPlan
from gangflow.xce.core.state import Claim, Group, Slot, State
from gangflow.xce.rest import rights
from gangflow.xce.rest.admitting import Delegation
from gangflow.xce.rest.messages import MAX_INT, Done
from gangflow.xce.rest.port import ControllerPort
from gangflow.xce.rest.problems import Refusal, forbidden, not_found, refused, superseded
from gangflow.xce.rest.rights import Stand
from gangflow.xce.rest.schema import API, DELEGATION_HEADER, KEY_HEADER, TERM_HEADER, View
from gangflow.xce.rest.sight import Sight
from gangflow.xce.rest.streams import Streams
from gangflow.xce.rest.tokens import Principal, Tokens

if TYPE_CHECKING:
    from gangflow.specs.cluster import ClusterSpec

KEY_CHARACTERS = 200
DELEGATIONS = 64
"""Owners whom one submission may name beside the caller."""
COMMANDS_PER_CALLER = 512
"""Commands of one caller that wait for the journal: beyond it he waits, and nobody else for him."""


@dataclass(frozen=True, slots=True)
class Service:
    """What the app serves."""

    controller: ControllerPort
    tokens: Tokens
    cluster: ClusterSpec | None
    streams: Streams
    waiting: Counter[str] = field(default_factory=Counter)
    """Commands that wait, by caller."""

    @property
    def state(self) -> State:
        return self.controller.state

    def sight(self, caller: Principal) -> Sight:
        """What the caller sees of the present state."""
        return Sight(caller, self.state)

    def group(self, name: str, caller: Principal) -> Group:
        """A group that the caller sees, by id, or by name: the live one, else the one that ended last. 404."""
        group = find_group(self.state, name, self.sight(caller))
        if group is None:
            raise not_found(f"no group {name!r}")
        return group

    def claim(self, name: str, caller: Principal) -> Claim:
        """A claim that the caller sees. 404."""
        claim = self.state.claims.get(name)
        if claim is None or rights.of_claim(caller, claim, self.state) is Stand.NOBODY:
            raise not_found(f"no claim {name!r}")
        return claim

    async def command(self, command: Command, caller: Principal) -> Reply:
        """Carry a command out; a refusal raises, and says nothing of groups that the caller does not see."""
        if self.waiting[caller.name] >= COMMANDS_PER_CALLER:
            text = f"{COMMANDS_PER_CALLER} commands of {caller.name} are waiting already"
            raise Refusal(429, "busy", text, headers={"Retry-After": "1"})
        self.waiting[caller.name] += 1
        try:
            reply = await self.controller.command(command)
        finally:
            self.waiting[caller.name] -= 1
            if not self.waiting[caller.name]:
                del self.waiting[caller.name]
        if not reply.ok:
            raise refused(reply, self.sight(caller))
        return reply


def find_group(state: State, name: str, sight: Sight) -> Group | None:
    """By id; else the live group of that name; else the newest ended one of that name: of those that are seen."""
    if name in state.groups:
        group = state.groups[name]
        return group if sight.sees(group) else None
    named = [group for group in state.groups.values() if group.plan.name == name and sight.sees(group)]
    living = [group for group in named if not group.state.terminal]
    return max(living or named, key=lambda group: (group.submitted_ms, len(group.id), group.id), default=None)


def find_slot(group: Group, member: str, index: int) -> Slot:
    """404 if the group has no such slot."""
    slot = group.slots.get((member, index))
    if slot is None:
        raise not_found(f"group {group.id} has no slot {member}[{index}]")
    return slot


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def entitled(request: Request) -> None:
    """Before every call: 401 without a valid token, 404 for what the caller does not see, 403 for what he may not do."""
    allowed = rights.RIGHTS.get((request.method, _contract_path(request)), frozenset())
    if allowed == rights.ANYBODY:
        return
    caller = await _caller(request)
    service: Service = request.app.state.service
    named = request.path_params
    if "group" in named:
        group = service.group(named["group"], caller)
        stand = rights.of_group(caller, group, named.get("member", ""))
        if stand is Stand.NOBODY:
            raise not_found(f"group {group.id} has no member {named['member']!r}")
    elif "claim" in named:
        stand = rights.of_claim(caller, service.claim(named["claim"], caller), service.state)
    else:
        stand = rights.of_cluster(caller)
    if stand not in allowed:
        raise forbidden(
            f"{_who(caller, stand)} may not do this; it takes {', or '.join(_WHO[each] for each in Stand if each in allowed)}"
        )


_WHO = {
    Stand.ADMIN: "the admin's token",
    Stand.OWNER: "its owner's",
    Stand.PART: "the owner's of this member",
    Stand.TASK: "one of its tasks'",
    Stand.NOBODY: "nobody's",
}


def _who(caller: Principal, stand: Stand) -> str:
    return f"a task's token ({caller.name})" if stand is Stand.TASK else f"the token of {caller.owner}"


def _contract_path(request: Request) -> str:
    """The path of the call as the contract has it: with the names of its parameters, without `/v1`."""
    path: str = getattr(request.scope.get("route"), "path", "")
    return path.removeprefix(API).replace(":path}", "}")


async def _caller(request: Request) -> Principal:
    service: Service = request.app.state.service
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    token = bearer.strip() if scheme.lower() == "bearer" else ""
    principal = service.tokens.check(token, service.controller.now_ms())
    if principal is None:
        raise Refusal(401, "unauthorized", "no valid bearer token was sent", headers={"WWW-Authenticate": "Bearer"})
    return principal


async def _asked(
    request: Request,
    caller: Annotated[Principal, Depends(_caller)],
    key: Annotated[
        str, Header(alias=KEY_HEADER, max_length=KEY_CHARACTERS, description="acts once, however often it is sent")
    ] = "",
    term: Annotated[str, Header(alias=TERM_HEADER, pattern="^[0-9]{1,15}$", description="a coordinator's")] = "0",
) -> Asked:
    # What a parameter changes is another request: the query is a part of it as it was sent.
    query = f"?{request.url.query}" if request.url.query else ""
    target = f"{request.method} {request.url.path}{query}\n"
    digest = hashlib.sha256(target.encode(errors="surrogatepass") + await request.body()).hexdigest()
    # Two callers' keys never meet: a task can not learn, or block, what the admin did under some key.
    return Asked(key=f"{caller.name}:{key}" if key else "", digest=digest if key else "", term=int(term), actor=caller.name)


async def _delegated(
    request: Request,
    delegation: Annotated[str, Header(alias=DELEGATION_HEADER, description="delegation tokens, separated by commas")] = "",
) -> Delegation:
    service: Service = request.app.state.service
    sent = [token.strip() for token in delegation.split(",") if token.strip()]
    if len(sent) > DELEGATIONS:
        raise Refusal(422, "invalid_request", f"{DELEGATION_HEADER} has {len(sent)} tokens; at most {DELEGATIONS}")
    return Delegation(tuple(service.tokens.delegated(token, service.controller.now_ms()) for token in sent))


Serving = Annotated[Service, Depends(_service)]
Caller = Annotated[Principal, Depends(_caller)]
"""Whoever calls; `entitled` has seen to it that he may."""
Asking = Annotated[Asked, Depends(_asked)]
"""Idempotency key, digest and term of a command."""
Delegated = Annotated[Delegation, Depends(_delegated)]
"""Other owners whom the caller may name. A token that is not good is as if it were not there."""
Index = Annotated[int, Path(ge=0, le=MAX_INT, description="of the slot, from 0")]


async def _group(
    group: Annotated[str, Path(description="its id, or a live group's name")], caller: Caller, service: Serving
) -> Group:
    return service.group(group, caller)


async def _member(member: str, group: Annotated[Group, Depends(_group)]) -> MemberPlan:
    try:
        return group.plan.member(member)
    except KeyError:
        raise not_found(f"group {group.id} has no member {member!r}") from None


async def _slot(member: str, index: Index, group: Annotated[Group, Depends(_group)]) -> Slot:
    return find_slot(group, member, index)


async def _claim(claim: str, caller: Caller, service: Serving) -> Claim:
    return service.claim(claim, caller)


OfGroup = Annotated[Group, Depends(_group)]
"""The group that the path names."""
OfMember = Annotated[MemberPlan, Depends(_member)]
OfSlot = Annotated[Slot, Depends(_slot)]
OfClaim = Annotated[Claim, Depends(_claim)]


def require_newest(slot: Slot, incarnation: int, what: str) -> None:
    """409 `superseded` unless `incarnation` is the slot's newest."""
    if incarnation != slot.incarnation:
        raise superseded(f"{what} {incarnation} of {slot.member}[{slot.index}]; the newest is {slot.incarnation}")


def over_for(caller: Principal, service: Service) -> Callable[[], bool]:
    """Whether the caller's token has ended meanwhile."""
    return lambda: 0 < caller.expires_ms <= service.controller.now_ms()


def client_of(request: Request, caller: Principal) -> str:
    """Who a stream is counted for."""
    return f"{caller.name}@{request.client.host if request.client else 'local'}"


def shown(view: View, status: int = 200, *, exclude: Sequence[str] = ()) -> Response:
    """An answer, serialised once (the view is valid by construction)."""
    return Response(view.model_dump_json(exclude=set(exclude) or None), status, media_type="application/json")


async def done(command: Command, caller: Principal, service: Service) -> Response:
    """Give a command that answers with nothing but the position at which it is durable."""
    await service.command(command, caller)
    return shown(Done(seq=service.controller.seq))
