"""The cluster's hosts, and what each owner holds of them."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Response

from gangflow.xce.core.inputs import CloseHost, OpenHost
from gangflow.xce.rest.access import Asking, Caller, Service, Serving, shown
from gangflow.xce.rest.host_views import host_views
from gangflow.xce.rest.json_text import StrictRoute
from gangflow.xce.rest.messages import HostMoved, MessageBody
from gangflow.xce.rest.owner_views import owner_views
from gangflow.xce.rest.pages import LIST_LIMIT, Cursor, Limit, page
from gangflow.xce.rest.schema import HostList, OwnerList
from gangflow.xce.rest.tokens import Principal

router = APIRouter(tags=["cluster"], route_class=StrictRoute)


@router.get("/hosts", response_model=HostList)
async def hosts(caller: Caller, service: Serving, limit: Limit = LIST_LIMIT, cursor: Cursor = "") -> Response:
    """Hosts: state, capacity and use, who holds it, what is still to be stopped there.

    An owner sees the sums, and his own members' slots.
    """
    seq, state, sight = service.controller.seq, service.state, service.sight(caller)

    def listed() -> Response:
        views, following = page(host_views(state, sight), lambda view: view.name, cursor, limit)
        return shown(HostList(seq=seq, hosts=tuple(views), next=following))

    return await asyncio.to_thread(listed)


@router.post("/hosts/{host}:close", response_model=HostMoved)
async def close(host: str, caller: Caller, asked: Asking, service: Serving, body: MessageBody | None = None) -> Response:
    """No new work there; what runs there goes on."""
    return await _moved(CloseHost(host, False, body.message if body else "", asked), caller, service)


@router.post("/hosts/{host}:drain", response_model=HostMoved)
async def drain(host: str, caller: Caller, asked: Asking, service: Serving, body: MessageBody | None = None) -> Response:
    """Close it, and tell what runs there `drained`: the rules of each group decide what follows."""
    return await _moved(CloseHost(host, True, body.message if body else "", asked), caller, service)


@router.post("/hosts/{host}:open", response_model=HostMoved)
async def reopen(host: str, caller: Caller, asked: Asking, service: Serving) -> Response:
    """New work may go there again."""
    return await _moved(OpenHost(host, asked), caller, service)


@router.get("/owners", response_model=OwnerList)
async def owners(caller: Caller, service: Serving, limit: Limit = LIST_LIMIT, cursor: Cursor = "") -> Response:
    """What each owner's members hold now, in whosever groups they are; an owner sees his own."""
    seq, state = service.controller.seq, service.state
    every = await asyncio.to_thread(owner_views, state)
    seen = [view for view in every if caller.owner in ("", view.owner)]
    found, following = page(seen, lambda view: view.owner, cursor, limit)
    return shown(OwnerList(seq=seq, owners=tuple(found), next=following))


async def _moved(command: CloseHost | OpenHost, caller: Principal, service: Service) -> Response:
    reply = dict((await service.command(command, caller)).fields)
    return shown(HostMoved(seq=service.controller.seq, host=command.host, state=str(reply.get("state", ""))))
