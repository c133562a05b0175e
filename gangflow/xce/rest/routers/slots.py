"""Slots: a coordinator's verdict, an operator's restart, fault injection, and logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from gangflow.errors import NotFound
from gangflow.xce.core.inputs import DrainSlot, ReportSlot, RestartSlot
from gangflow.xce.core.plan import REPORTABLE_CAUSES, Cause
from gangflow.xce.core.state import Slot, TaskKey
from gangflow.xce.ports import LogChunk
from gangflow.xce.rest.access import (
    Asking,
    Caller,
    OfGroup,
    OfSlot,
    Service,
    Serving,
    client_of,
    done,
    over_for,
    require_newest,
    shown,
)
from gangflow.xce.rest.json_text import StrictRoute
from gangflow.xce.rest.messages import MAX_INT, Done, DrainBody, LogView, ReportBody, RestartBody, SignalBody
from gangflow.xce.rest.problems import Refusal, not_found
from gangflow.xce.rest.streams import message

router = APIRouter(prefix="/groups/{group}/members/{member}/slots", tags=["slots"], route_class=StrictRoute)

LOG_BYTES = 1_048_576
POLL_S = (0.1, 1.0)
"""How often a followed log is asked for more: at first, and after it has been quiet for a while."""


@router.post("/{index}:report", response_model=Done)
async def report(group: OfGroup, slot: OfSlot, body: ReportBody, caller: Caller, asked: Asking, service: Serving) -> Response:
    """A coordinator's verdict on an incarnation; the group's rules decide. 409 `superseded` if it is not the newest."""
    if body.cause not in REPORTABLE_CAUSES:
        raise Refusal(422, "invalid_request", f"body.cause: {body.cause!r} is none of {', '.join(sorted(REPORTABLE_CAUSES))}")
    command = ReportSlot(group.id, *slot.key, body.incarnation, Cause(body.cause), body.message, asked)
    return await done(command, caller, service)


@router.post("/{index}:restart", response_model=Done)
async def restart(group: OfGroup, slot: OfSlot, body: RestartBody, caller: Caller, asked: Asking, service: Serving) -> Response:
    """An operator's restart, outside rules and budgets. 409 `superseded` if the incarnation is not the newest."""
    return await done(RestartSlot(group.id, *slot.key, body.incarnation, asked), caller, service)


@router.post("/{index}:drain", response_model=Done)
async def drain(group: OfGroup, slot: OfSlot, body: DrainBody, caller: Caller, asked: Asking, service: Serving) -> Response:
    """Drain and stop the incarnation, cause `drained`; the rules decide what follows. 409 `superseded` if not the newest."""
    return await done(DrainSlot(group.id, *slot.key, body.incarnation, asked), caller, service)


@router.post("/{index}:signal", response_model=Done)
async def signal(group: OfGroup, slot: OfSlot, body: SignalBody, service: Serving) -> Response:
    """Fault injection: a signal to a task's main process. XCE itself learns of it only by the exit."""
    require_newest(slot, body.incarnation, "it names incarnation")
    if not any(task.index == body.task for task in slot.tasks):
        raise not_found(f"{slot.member}[{slot.index}] has no task {body.task} now; it is {slot.state}")
    try:
        await service.controller.signal(_task(group.id, slot, body.incarnation, body.task), body.signal)
    except ProcessLookupError as error:
        raise not_found(f"{slot.member}[{slot.index}] does not run now; it is {slot.state}") from error
    except OSError as error:
        raise _unreachable(error) from error
    return shown(Done(seq=service.controller.seq))


@router.get("/{index}/log", response_model=LogView, responses={200: {"content": {"text/event-stream": {}}}})
async def log(
    group: OfGroup,
    slot: OfSlot,
    request: Request,
    caller: Caller,
    service: Serving,
    incarnation: Annotated[int, Query(ge=0, le=MAX_INT, description="0: the newest")] = 0,
    task: Annotated[int, Query(ge=0, le=MAX_INT)] = 0,
    stream: Literal["stdout", "stderr"] = "stdout",
    offset: Annotated[int, Query(ge=-MAX_INT, le=MAX_INT, description="bytes; negative: from the end")] = 0,
    limit: Annotated[int, Query(ge=1, le=LOG_BYTES)] = 65_536,
    follow: bool = False,
) -> Response:
    """A piece of a log; with `follow`, server-sent events with `id` = next offset, and `event: end` when it is over."""
    if incarnation > slot.incarnation or slot.incarnation == 0:
        raise not_found(f"{slot.member}[{slot.index}] has had {slot.incarnation} incarnations")
    wanted = incarnation or slot.incarnation
    if task >= group.plan.member(slot.member).tasks:
        raise not_found(f"a slot of {slot.member} has no task {task}")
    key = _task(group.id, slot, wanted, task)
    first = _log_view(service, wanted, await _read(service, key, stream, offset, limit))
    if not follow:
        return shown(first)
    position = [first.next_offset]
    source = _followed(service, key, stream, limit, first, position)
    return service.streams.response(
        client_of(request, caller),
        source,
        lambda: message(ident=position[0], comment="keepalive"),
        over_for(caller, service),
    )


async def _followed(
    service: Service, key: TaskKey, stream: str, limit: int, first: LogView, position: list[int]
) -> AsyncGenerator[bytes, None]:
    view, wait = first, POLL_S[0]
    while True:
        if view.text:
            yield message(view.model_dump_json(), ident=view.next_offset)
            position[0] = view.next_offset
        if view.ended:
            yield message("{}", event="end", ident=view.next_offset)
            return
        if not view.text:
            await asyncio.sleep(wait)
        wait = POLL_S[0] if view.text else min(wait * 1.5, POLL_S[1])
        try:
            chunk = await _read(service, key, stream, view.next_offset, limit)
        except (Refusal, NotFound):
            # The agent is away: the stream ends here, and its reader comes back with its offset.
            return
        view = _log_view(service, key.incarnation, chunk)


async def _read(service: Service, key: TaskKey, stream: str, offset: int, limit: int) -> LogChunk:
    try:
        return await service.controller.read_log(key, stream, offset, limit)
    except FileNotFoundError as error:
        raise not_found(f"nobody keeps {stream} of {key}") from error
    except OSError as error:
        raise _unreachable(error) from error


def _log_view(service: Service, incarnation: int, chunk: LogChunk) -> LogView:
    return LogView(
        seq=service.controller.seq,
        incarnation=incarnation,
        text=chunk.text,
        offset=chunk.offset,
        next_offset=chunk.next_offset,
        ended=chunk.ended,
    )


def _task(group: str, slot: Slot, incarnation: int, task: int) -> TaskKey:
    return TaskKey(group, slot.epoch, slot.member, slot.index, incarnation, task)


def _unreachable(error: OSError) -> Refusal:
    return Refusal(503, "unreachable_host", f"the host's agent does not answer: {error}", headers={"Retry-After": "1"})
