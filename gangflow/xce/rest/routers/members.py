"""Members: targets of replica sets as durable changes, and the end of one member."""

from __future__ import annotations

from fastapi import APIRouter, Response

from gangflow.xce.core.inputs import ScaleGroup, StopMember
from gangflow.xce.rest import rights
from gangflow.xce.rest.access import Asking, Caller, OfGroup, OfMember, Serving, done, shown
from gangflow.xce.rest.json_text import StrictRoute
from gangflow.xce.rest.messages import Done, ScaleBody, ScaleView
from gangflow.xce.rest.pages import LIST_LIMIT, Cursor, Limit, page
from gangflow.xce.rest.problems import not_found
from gangflow.xce.rest.schema import ChangeList, ChangeView
from gangflow.xce.rest.views import change_view

router = APIRouter(prefix="/groups/{group}", tags=["members"], route_class=StrictRoute)


@router.patch("/members", status_code=202, response_model=ScaleView)
async def scale(found: OfGroup, body: ScaleBody, caller: Caller, asked: Asking, service: Serving) -> Response:
    """Other targets for the replica sets that are named: one durable change, DONE or FAILED after a while.

    A member's owner scales his own members only. 409 `no_fit` if it is not proved to fit, `conflict` in a state that takes no
    change; 422 `invalid` for a target outside a member's limits, a job, or ratios and budgets that do not hold.
    """
    other = rights.not_his(caller, found, body.targets)
    if other is not None:
        raise not_found(f"group {found.id} has no member {other!r}")
    command = ScaleGroup(found.id, tuple(body.targets.items()), round(body.timeout * 1_000), asked)
    reply = dict((await service.command(command, caller)).fields)
    seq, sight = service.controller.seq, service.sight(caller)
    now = service.state.groups.get(found.id, found)
    change = next((each for each in now.changes if each.id == reply.get("change")), None)
    view = change_view(now, change, seq, sight=sight) if change is not None else None
    return shown(ScaleView(seq=seq, id=found.id, change=view), 202)


@router.get("/changes", response_model=ChangeList)
async def changes(found: OfGroup, caller: Caller, service: Serving, limit: Limit = LIST_LIMIT, cursor: Cursor = "") -> Response:
    """The newest changes of the group's targets, oldest first."""
    seq, sight = service.controller.seq, service.sight(caller)
    listed, following = page(found.changes, lambda change: change.id, cursor, limit)
    views = tuple(change_view(found, change, seq, sight=sight) for change in listed)
    return shown(ChangeList(seq=seq, changes=views, next=following))


@router.get("/changes/{change}", response_model=ChangeView)
async def change(found: OfGroup, change: str, caller: Caller, service: Serving) -> Response:
    """How far one change is. 404 when it never was, or is not kept any more."""
    for each in found.changes:
        if each.id == change:
            return shown(change_view(found, each, service.controller.seq, sight=service.sight(caller)))
    raise not_found(f"group {found.id} has no change {change!r}; it keeps {', '.join(c.id for c in found.changes) or 'none'}")


@router.delete("/members/{member}", response_model=Done)
async def stop(found: OfGroup, member: OfMember, caller: Caller, asked: Asking, service: Serving) -> Response:
    """Stop one member for good: no rule is asked, its minimum counts as 0, the rest goes on."""
    return await done(StopMember(found.id, member.name, asked), caller, service)
