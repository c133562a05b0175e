"""Groups: submit, list, look, end, suspend, restart; and why one waits. A plain job is a group of one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Response

from gangflow.xce.core.inputs import (
    Command,
    EndGroup,
    LiftExclusion,
    RestartGroup,
    ResumeGroup,
    SubmitGroup,
    SuspendGroup,
)
from gangflow.xce.core.state import Group, GroupState
from gangflow.xce.rest.access import Asking, Caller, Delegated, OfGroup, Service, Serving, done, shown
from gangflow.xce.rest.admitting import Submission, admitted
from gangflow.xce.rest.explain import why_view
from gangflow.xce.rest.json_text import StrictRoute
from gangflow.xce.rest.messages import Done, FailBody, GroupMoved, MessageBody, Submitted
from gangflow.xce.rest.pages import LIST_LIMIT, Cursor, Limit, page
from gangflow.xce.rest.problems import Refusal
from gangflow.xce.rest.schema import GroupList, GroupView, QueueView, WhyView
from gangflow.xce.rest.tokens import Principal
from gangflow.xce.rest.views import group_view, queue_items

router = APIRouter(tags=["groups"], route_class=StrictRoute)

Spec = Annotated[dict[str, Any], Body()]
States = Annotated[str, Query(description="comma list of states; `live` is every state that is not terminal")]


@router.post("/groups", status_code=201, response_model=Submitted)
async def submit(spec: Spec, caller: Caller, delegated: Delegated, asked: Asking, service: Serving) -> Response:
    """Submit a group: the spec as JSON, with the words of the YAML. 422 names every path that is wrong; then nothing exists.

    403 names an owner whom the caller may not name; `XCE-Delegation` brings other owners' tokens.
    """
    return await _submit(Submission(spec, caller, delegated, asked), service)


@router.post("/jobs", status_code=201, response_model=Submitted)
async def submit_job(spec: Spec, caller: Caller, delegated: Delegated, asked: Asking, service: Serving) -> Response:
    """Submit a plain job or replica set: `name` and `job` or `replica_set`; a group of one, whose member is `main`."""
    return await _submit(Submission(spec, caller, delegated, asked, plain=True), service)


@router.get("/groups", response_model=GroupList)
async def groups(
    caller: Caller, service: Serving, state: States = "", name: str = "", limit: Limit = LIST_LIMIT, cursor: Cursor = ""
) -> Response:
    """Groups that the caller sees, in submission order, without their documents."""
    return await _listed(caller, service, lambda group: not name or group.plan.name == name, state, limit, cursor)


@router.get("/jobs", response_model=GroupList)
async def jobs(
    caller: Caller, service: Serving, state: States = "", name: str = "", limit: Limit = LIST_LIMIT, cursor: Cursor = ""
) -> Response:
    """Plain jobs and replica sets, as `GET /groups` shows groups."""
    return await _listed(
        caller, service, lambda group: group.plan.plain and name in ("", group.plan.name), state, limit, cursor
    )


@router.get("/groups/{group}", response_model=GroupView)
async def group(found: OfGroup, caller: Caller, service: Serving) -> Response:
    """One group in detail: states, slots, hosts, addresses, claims, pend reason, restarts, changes, the spec as submitted."""
    now, sight = service.controller.now_ms(), service.sight(caller)
    return shown(group_view(service.state, found, service.controller.seq, now_ms=now, sight=sight))


@router.delete("/groups/{group}", response_model=Done)
async def cancel(found: OfGroup, caller: Caller, asked: Asking, service: Serving) -> Response:
    """Tear the group down to CANCELLED."""
    return await done(EndGroup(found.id, GroupState.CANCELLED, "user", "", asked), caller, service)


@router.post("/groups/{group}:fail", response_model=Done)
async def fail(found: OfGroup, body: FailBody, caller: Caller, asked: Asking, service: Serving) -> Response:
    """Tear the group down to FAILED, with that cause; a coordinator's verdict on the whole group."""
    return await done(EndGroup(found.id, GroupState.FAILED, body.cause, body.message, asked), caller, service)


@router.post("/groups/{group}:suspend", response_model=GroupMoved)
async def suspend(found: OfGroup, caller: Caller, asked: Asking, service: Serving, body: MessageBody | None = None) -> Response:
    """Give everything back and wait for a resume. 409 `conflict` when it is ending, or has ended."""
    return await _moved(SuspendGroup(found.id, body.message if body else "", asked), found.id, caller, service)


@router.post("/groups/{group}:resume", response_model=GroupMoved)
async def resume(found: OfGroup, caller: Caller, asked: Asking, service: Serving) -> Response:
    """A SUSPENDED group waits for a place again, with its first submission time. 409 `conflict` in any other state."""
    return await _moved(ResumeGroup(found.id, asked), found.id, caller, service)


@router.post("/groups/{group}:restart", response_model=GroupMoved)
async def restart(found: OfGroup, caller: Caller, asked: Asking, service: Serving, body: MessageBody | None = None) -> Response:
    """An operator's restart of the whole group, outside rules and budgets. 409 `conflict` unless it was started and runs."""
    return await _moved(RestartGroup(found.id, body.message if body else "", asked), found.id, caller, service)


@router.delete("/groups/{group}/excluded/{host}", response_model=Done)
async def lift(found: OfGroup, host: str, caller: Caller, asked: Asking, service: Serving) -> Response:
    """The group may use an excluded host again."""
    return await done(LiftExclusion(found.id, host, asked), caller, service)


@router.get("/groups/{group}/why", response_model=WhyView)
async def why(found: OfGroup, caller: Caller, service: Serving, level: Annotated[int, Query(ge=0, le=3)] = 1) -> Response:
    """Why it waits; level 0: host counts, 1: the key reason, 2: of candidate hosts, 3: of all hosts (as `bjobs -p0..3`).

    `blocker` is empty, and "another group" in texts, where the caller does not see the group that is in the way.
    """
    seq, state, sight = service.controller.seq, service.state, service.sight(caller)
    return shown(await asyncio.to_thread(why_view, state, found, seq, level, sight))


@router.get("/queue", response_model=QueueView)
async def queue(caller: Caller, service: Serving, limit: Limit = LIST_LIMIT, cursor: Cursor = "") -> Response:
    """Groups that wait for a place, in the order in which they are tried. Positions count everybody's groups."""
    seq, items = service.controller.seq, queue_items(service.state.groups.values(), service.sight(caller))
    found, following = page(items, lambda item: item.id, cursor, limit)
    return shown(QueueView(seq=seq, groups=tuple(found), next=following))


async def _submit(submission: Submission, service: Service) -> Response:
    # Placement's arithmetic over every host takes its time on a large cluster; the state that it reads never changes.
    plan = await asyncio.to_thread(admitted, submission, service.state, service.cluster, service.controller.catalog)
    reply = await service.command(SubmitGroup(plan, submission.asked), submission.caller)
    return shown(Submitted(seq=service.controller.seq, id=str(dict(reply.fields)["id"])), 201)


async def _listed(
    caller: Principal, service: Service, fitting: Callable[[Group], bool], states: str, limit: int, cursor: str
) -> Response:
    seq, present, wanted, sight = service.controller.seq, service.state, _wanted(states), service.sight(caller)

    def listed() -> Response:
        # By age and not by `page`: the cursor's own group may have been forgotten since.
        found = [
            group
            for group in sorted(present.groups.values(), key=_age)
            if sight.sees(group)
            and (not wanted or group.state in wanted)
            and fitting(group)
            and (not cursor or _age(group) > (len(cursor), cursor))
        ]
        views = tuple(group_view(present, group, seq, document=False, sight=sight) for group in found[:limit])
        return shown(GroupList(seq=seq, groups=views, next=views[-1].id if len(found) > limit else None))

    # A thousand groups take a tenth of a second, in which heartbeats and commands must not wait.
    return await asyncio.to_thread(listed)


async def _moved(command: Command, group: str, caller: Principal, service: Service) -> Response:
    reply = dict((await service.command(command, caller)).fields)
    return shown(GroupMoved(seq=service.controller.seq, id=group, state=str(reply.get("state", ""))))


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
