"""The rest of the cluster: hosts and claims."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Response

from gangflow.xce.rest.access import Admin, Caller, Serving, shown
from gangflow.xce.rest.host_views import host_views
from gangflow.xce.rest.pages import LIST_LIMIT, Cursor, Limit, page
from gangflow.xce.rest.schema import ClaimList, HostList
from gangflow.xce.rest.views import claim_view

router = APIRouter(tags=["cluster"])


@router.get("/hosts", response_model=HostList)
async def hosts(_: Admin, service: Serving, limit: Limit = LIST_LIMIT, cursor: Cursor = "") -> Response:
    """Hosts: state, capacity and use, who holds it, what is still to be stopped there."""
    seq, state = service.controller.seq, service.state

    def listed() -> Response:
        views, following = page(host_views(state), lambda view: view.name, cursor, limit)
        return shown(HostList(seq=seq, hosts=tuple(views), next=following))

    return await asyncio.to_thread(listed)


@router.get("/claims", response_model=ClaimList)
async def claims(caller: Caller, service: Serving, group: str = "", limit: Limit = LIST_LIMIT, cursor: Cursor = "") -> Response:
    """Claims, of one group or of all; a task's token sees its own group's."""
    seq = service.controller.seq
    wanted = service.group(group, caller).id if group else ""
    seen = [
        claim for claim in service.state.claims.values() if caller.sees(claim.group) and (not wanted or claim.group == wanted)
    ]
    found, following = page(seen, lambda claim: claim.id, cursor, limit)
    return shown(ClaimList(seq=seq, claims=tuple(map(claim_view, found)), next=following))
