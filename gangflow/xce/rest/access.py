"""What every handler starts from: the service behind it, who is calling, and what that caller may see and do."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request, Response

from gangflow.xce.core.inputs import Command, Reply
from gangflow.xce.core.inputs import Request as Asked
from gangflow.xce.core.state import Group, Slot, State
from gangflow.xce.rest.port import ControllerPort
from gangflow.xce.rest.problems import Refusal, forbidden, not_found, refused, superseded
from gangflow.xce.rest.schema import KEY_HEADER, TERM_HEADER, View
from gangflow.xce.rest.streams import Streams
from gangflow.xce.rest.tokens import ADMIN, Principal, Tokens

if TYPE_CHECKING:
    from gangflow.specs.cluster import ClusterSpec

KEY_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Service:
    """What the app serves."""

    controller: ControllerPort
    tokens: Tokens
    cluster: ClusterSpec | None
    streams: Streams

    @property
    def state(self) -> State:
        return self.controller.state

    def group(self, name: str, caller: Principal) -> Group:
        """A group by id, or by name: the live one, else the one that ended last. 404, or 403 for another group's token."""
        group = find_group(self.state, name)
        if group is None:
            raise not_found(f"no group {name!r}")
        if not caller.sees(group.id):
            raise forbidden(f"this token is for group {caller.task.group if caller.task else ''}, not for {group.id}")
        return group

    async def command(self, command: Command) -> Reply:
        """Carry a command out; a refusal raises."""
        reply = await self.controller.command(command)
        if not reply.ok:
            raise refused(reply)
        return reply


def find_group(state: State, name: str) -> Group | None:
    """By id; else the live group of that name; else the newest ended one of that name."""
    if name in state.groups:
        return state.groups[name]
    named = [group for group in state.groups.values() if group.plan.name == name]
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


async def _caller(request: Request) -> Principal:
    service: Service = request.app.state.service
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    principal = service.tokens.check(bearer.strip() if scheme.lower() == "bearer" else "")
    if principal is None:
        raise Refusal(401, "unauthorized", "no valid bearer token was sent", headers={"WWW-Authenticate": "Bearer"})
    return principal


async def _admin(caller: Annotated[Principal, Depends(_caller)]) -> Principal:
    if caller != ADMIN:
        raise forbidden("a task's token may read its own group, send heartbeats and write key-values; this needs the admin's")
    return caller


async def _asked(request: Request, caller: Annotated[Principal, Depends(_caller)]) -> Asked:
    key = request.headers.get(KEY_HEADER, "")
    if len(key) > KEY_CHARACTERS:
        raise Refusal(422, "invalid_request", f"{KEY_HEADER} is longer than {KEY_CHARACTERS} characters")
    term = request.headers.get(TERM_HEADER, "0")
    if not (term.isascii() and term.isdigit() and len(term) < 16):
        raise Refusal(422, "invalid_request", f"{TERM_HEADER} is not a term: {term[:40]!r}")
    # What a parameter changes is another request: the query is a part of it as it was sent.
    query = f"?{request.url.query}" if request.url.query else ""
    target = f"{request.method} {request.url.path}{query}\n"
    digest = hashlib.sha256(target.encode() + await request.body()).hexdigest()
    # Two callers' keys never meet: a task can not learn, or block, what the admin did under some key.
    return Asked(key=f"{caller.name}:{key}" if key else "", digest=digest if key else "", term=int(term), actor=caller.name)


Serving = Annotated[Service, Depends(_service)]
Caller = Annotated[Principal, Depends(_caller)]
"""Anybody with a valid token."""
Admin = Annotated[Principal, Depends(_admin)]
"""Only the admin's token."""
Asking = Annotated[Asked, Depends(_asked)]
"""Idempotency key, digest and term of a command."""


def require_newest(slot: Slot, incarnation: int, what: str) -> None:
    """409 `superseded` unless `incarnation` is the slot's newest."""
    if incarnation != slot.incarnation:
        raise superseded(f"{what} {incarnation} of {slot.member}[{slot.index}]; the newest is {slot.incarnation}")


def client_of(request: Request, caller: Principal) -> str:
    """Who a stream is counted for."""
    return f"{caller.name}@{request.client.host if request.client else 'local'}"


def shown(view: View, status: int = 200, *, exclude: Sequence[str] = ()) -> Response:
    """An answer, serialised once (the view is valid by construction)."""
    return Response(view.model_dump_json(exclude=set(exclude) or None), status, media_type="application/json")
