"""Claims: those of groups and slots, and standalone ones, which exist by themselves until somebody deletes them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Body, Response

from gangflow.xce.core.inputs import CreateClaim, DeleteClaim
from gangflow.xce.rest.access import Asking, Caller, Delegated, OfClaim, Serving, done, shown
from gangflow.xce.rest.admitting import Submission, admitted_claim
from gangflow.xce.rest.json_text import StrictRoute
from gangflow.xce.rest.messages import Done, Submitted
from gangflow.xce.rest.pages import LIST_LIMIT, Cursor, Limit, page
from gangflow.xce.rest.rights import Stand, of_claim
from gangflow.xce.rest.schema import ClaimList, ClaimView
from gangflow.xce.rest.views import claim_view, claims_of

router = APIRouter(prefix="/claims", tags=["claims"], route_class=StrictRoute)


@router.get("", response_model=ClaimList)
async def claims(caller: Caller, service: Serving, group: str = "", limit: Limit = LIST_LIMIT, cursor: Cursor = "") -> Response:
    """Claims that the caller sees, all or those that one group has or uses."""
    seq, state, sight = service.controller.seq, service.state, service.sight(caller)
    if group:
        found, following = page(list(claims_of(state, service.group(group, caller), sight)), _id, cursor, limit)
        return shown(ClaimList(seq=seq, claims=tuple(found), next=following))
    seen = [claim for claim in state.claims.values() if of_claim(caller, claim, state) is not Stand.NOBODY]
    listed, following = page(seen, lambda claim: claim.id, cursor, limit)
    return shown(ClaimList(seq=seq, claims=tuple(claim_view(state, each, sight=sight) for each in listed), next=following))


@router.post("", status_code=201, response_model=Submitted)
async def create(
    spec: Annotated[dict[str, Any], Body()], caller: Caller, delegated: Delegated, asked: Asking, service: Serving
) -> Response:
    """Make a standalone claim; its name is its id. 409 `conflict` if the name is taken."""
    plan, owner = await asyncio.to_thread(
        admitted_claim, Submission(spec, caller, delegated, asked), service.controller.catalog
    )
    await service.command(CreateClaim(plan, owner, asked), caller)
    return shown(Submitted(seq=service.controller.seq, id=plan.name), 201)


@router.get("/{claim:path}", response_model=ClaimView)
async def claim(found: OfClaim, caller: Caller, service: Serving) -> Response:
    """One claim: its state, where it is, and who holds it."""
    return shown(claim_view(service.state, found, service.controller.seq, sight=service.sight(caller)))


@router.delete("/{claim:path}", response_model=Done)
async def delete(found: OfClaim, caller: Caller, asked: Asking, service: Serving) -> Response:
    """Release a standalone claim. 409 `in_use` while a live group uses it, `conflict` for a group's own."""
    return await done(DeleteClaim(found.id, asked), caller, service)


def _id(view: ClaimView) -> str:
    return view.id
