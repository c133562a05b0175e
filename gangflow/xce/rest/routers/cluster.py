"""The rest of the cluster: hosts and claims."""

from __future__ import annotations

from fastapi import APIRouter, Response

from gangflow.xce.rest.access import LIST_LIMIT, Admin, Caller, Serving, shown
from gangflow.xce.rest.host_views import host_views
from gangflow.xce.rest.schema import ClaimList, HostList
from gangflow.xce.rest.views import claim_view

router = APIRouter(tags=["cluster"])


@router.get("/hosts", response_model=HostList)
async def hosts(_: Admin, service: Serving) -> Response:
    """Every host: state, capacity and use, who holds it, what is still to be stopped there."""
    return shown(HostList(seq=service.controller.seq, hosts=host_views(service.state)))


@router.get("/claims", response_model=ClaimList)
async def claims(caller: Caller, service: Serving, group: str = "") -> Response:
    """Claims, of one group or of all; a task's token sees its own group's."""
    seq = service.controller.seq
    wanted = service.group(group, caller).id if group else ""
    found = [
        claim_view(claim)
        for claim in service.state.claims.values()
        if caller.sees(claim.group) and (not wanted or claim.group == wanted)
    ]
    return shown(ClaimList(seq=seq, claims=tuple(found[:LIST_LIMIT])))
