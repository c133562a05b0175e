"""Groups: submit, list, look, end; and why one waits."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Response

from gangflow.xce.core.inputs import EndGroup, SubmitGroup
from gangflow.xce.core.state import Group, GroupState
from gangflow.xce.rest.access import Admin, Asking, Caller, Serving, shown
from gangflow.xce.rest.admitting import admitted
from gangflow.xce.rest.explain import why_view
from gangflow.xce.rest.messages import Done, FailBody, Submitted
from gangflow.xce.rest.pages import LIST_LIMIT, Cursor, Limit, page
from gangflow.xce.rest.problems import Refusal
from gangflow.xce.rest.schema import GroupList, GroupView, QueueView, WhyView
from gangflow.xce.rest.views import group_view, queue_items

router = APIRouter(tags=["groups"])


@router.post("/groups", status_code=201, response_model=Submitted)
async def submit(spec: Annotated[dict[str, Any], Body()], _: Admin, asked: Asking, service: Serving) -> Response:
    """Submit a group: the spec as JSON, with the words of the YAML. 422 names every path that is wrong; then nothing exists."""
    # Placement's arithmetic over every host takes its time on a large cluster; the state that it reads never changes.
    plan = await asyncio.to_thread(admitted, spec, service.state, service.cluster, asked)
    reply = await service.command(SubmitGroup(plan, asked))
    return shown(Submitted(seq=service.controller.seq, id=str(dict(reply.fields)["id"])), 201)


@router.get("/groups", response_model=GroupList)
async def groups(
    caller: Caller,
    service: Serving,
    state: Annotated[str, Query(description="comma list of states; `live` is every state that is not terminal")] = "",
    name: str = "",
    limit: Limit = LIST_LIMIT,
    cursor: Cursor = "",
) -> Response:
    """Groups in submission order, without their documents; a task's token lists its own group."""
    seq, present, wanted = service.controller.seq, service.state, _wanted(state)

    def listed() -> Response:
        # By age and not by `page`: the cursor's own group may have been forgotten since.
        found = [
            group
            for group in sorted(present.groups.values(), key=_age)
            if caller.sees(group.id)
            and (not wanted or group.state in wanted)
            and (not name or group.plan.name == name)
            and (not cursor or _age(group) > (len(cursor), cursor))
        ]
        views = tuple(group_view(present, group, seq, document=False) for group in found[:limit])
        return shown(GroupList(seq=seq, groups=views, next=views[-1].id if len(found) > limit else None))

    # A thousand groups take a tenth of a second, in which heartbeats and commands must not wait.
    return await asyncio.to_thread(listed)


@router.get("/groups/{group}", response_model=GroupView)
async def group(group: str, caller: Caller, service: Serving) -> Response:
    """One group in detail: states, slots, hosts, addresses, claims, pend reason, restarts, the spec as submitted."""
    seq, found = service.controller.seq, service.group(group, caller)
    return shown(group_view(service.state, found, seq, now_ms=service.controller.now_ms()))


@router.delete("/groups/{group}", response_model=Done)
async def cancel(group: str, caller: Admin, asked: Asking, service: Serving) -> Response:
    """Tear the group down to CANCELLED."""
    return await _end(EndGroup(service.group(group, caller).id, GroupState.CANCELLED, "user", "", asked), service)


@router.post("/groups/{group}:fail", response_model=Done)
async def fail(group: str, body: FailBody, caller: Admin, asked: Asking, service: Serving) -> Response:
    """Tear the group down to FAILED, with that cause; a coordinator's verdict on the whole group."""
    return await _end(EndGroup(service.group(group, caller).id, GroupState.FAILED, body.cause, body.message, asked), service)


@router.get("/groups/{group}/why", response_model=WhyView)
async def why(group: str, caller: Caller, service: Serving, level: Annotated[int, Query(ge=0, le=3)] = 1) -> Response:
    """Why it waits; level 0: host counts, 1: the key reason, 2: of candidate hosts, 3: of all hosts (as `bjobs -p0..3`)."""
    seq, found = service.controller.seq, service.group(group, caller)
    return shown(await asyncio.to_thread(why_view, service.state, found, seq, level))


@router.get("/queue", response_model=QueueView)
async def queue(_: Admin, service: Serving, limit: Limit = LIST_LIMIT, cursor: Cursor = "") -> Response:
    """Groups that wait for a place, in the order in which they are tried."""
    seq, items = service.controller.seq, queue_items(service.state.groups.values())
    found, following = page(items, lambda item: item.id, cursor, limit)
    return shown(QueueView(seq=seq, groups=tuple(found), next=following))


async def _end(command: EndGroup, service: Serving) -> Response:
    await service.command(command)
    return shown(Done(seq=service.controller.seq))


def _wanted(states: str) -> frozenset[GroupState]:
    names = [name.strip().upper() for name in states.split(",") if name.strip()]
    live = [state for state in GroupState if not state.terminal]
    try:
        return frozenset(state for name in names for state in (live if name == "LIVE" else [GroupState(name)]))
    except ValueError as error:
        known = ", ".join([*GroupState, "live"])
        raise Refusal(422, "invalid_request", f"query.state: {error}; known: {known}") from error


def _age(group: Group) -> tuple[int, str]:
    return (len(group.id), group.id)
