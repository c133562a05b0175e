"""Group service: opaque heartbeats, the latest of each slot, kept in memory only."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Container, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from gangflow.xce.core.inputs import TakeCoordination
from gangflow.xce.core.state import TaskKey
from gangflow.xce.rest.access import (
    Asking,
    Caller,
    OfGroup,
    OfSlot,
    Service,
    Serving,
    client_of,
    over_for,
    require_newest,
    shown,
)
from gangflow.xce.rest.json_text import StrictRoute, strict_json
from gangflow.xce.rest.messages import MAX_INT, BeatList, BeatView, Done, TermView
from gangflow.xce.rest.port import Beat
from gangflow.xce.rest.problems import Refusal, forbidden, not_found
from gangflow.xce.rest.schema import HEARTBEAT_BYTES
from gangflow.xce.rest.streams import message

router = APIRouter(prefix="/groups/{group}", tags=["group services"], route_class=StrictRoute)
BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}}
"""Read as bytes, for its limit is in bytes."""
STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
"""What `follow` answers."""


@router.post("/coordinator", response_model=TermView)
async def take_coordination(found: OfGroup, caller: Caller, asked: Asking, service: Serving) -> Response:
    """A coordinator starts: its term, to be sent as `XCE-Term` with every call. Calls under an older one are now refused."""
    reply = await service.command(TakeCoordination(found.id, asked), caller)
    return shown(TermView(seq=service.controller.seq, term=int(dict(reply.fields)["term"])))


@router.put("/members/{member}/slots/{index}/heartbeat", response_model=Done, openapi_extra=BODY)
async def beat(
    found: OfGroup,
    slot: OfSlot,
    request: Request,
    caller: Caller,
    service: Serving,
    incarnation: Annotated[int, Query(ge=0, le=MAX_INT)] = 0,
) -> Response:
    """A JSON object of at most 4 KiB. A task beats for its own slot, others for the incarnation they name (0: newest)."""
    task = caller.task
    if task is not None:
        if (task.member, task.index) != slot.key:
            raise forbidden(f"this token is for {task.member}[{task.index}]")
        require_newest(slot, task.incarnation, "the token is for incarnation")
    elif incarnation:
        require_newest(slot, incarnation, "it names incarnation")
    if slot.incarnation == 0:
        raise not_found(f"{slot.member}[{slot.index}] was never placed: nothing of it can have a heartbeat")
    key = task or TaskKey(found.id, slot.epoch, slot.member, slot.index, slot.incarnation, 0)
    await service.controller.beat(key, _body(await request.body()))
    return shown(Done(seq=service.controller.seq))


@router.get("/heartbeats", response_model=BeatList, responses=STREAM)
async def beats(found: OfGroup, request: Request, caller: Caller, service: Serving, follow: bool = False) -> Response:
    """The latest heartbeat of each slot; with `follow`, server-sent events: these first, then each as it comes."""
    seq, his = service.controller.seq, service.sight(caller).members(found)
    if follow:
        source = _followed(service, found.id, his)
        return service.streams.response(
            client_of(request, caller), source, lambda: message(comment="keepalive"), over_for(caller, service)
        )
    latest = tuple(beat_view(beat) for _, beat in sorted(service.controller.beats(found.id).items()) if beat.member in his)
    return shown(
        BeatList(
            seq=seq,
            now_ms=service.controller.now_ms(),
            unknown_until_ms=service.controller.unknown_until_ms,
            heartbeats=latest,
        )
    )


def beat_view(beat: Beat) -> BeatView:
    """A heartbeat with whose it is."""
    return BeatView(
        member=beat.member,
        index=beat.index,
        incarnation=beat.incarnation,
        at_ms=beat.at_ms,
        body=dict(beat.body),
    )


async def _followed(service: Service, group: str, members: Container[str]) -> AsyncGenerator[bytes, None]:
    async for beat in service.controller.watch_beats(group):
        if beat.member in members:
            yield message(beat_view(beat).model_dump_json(), event="beat")


def _body(raw: bytes) -> Mapping[str, Any]:
    if len(raw) > HEARTBEAT_BYTES:
        raise Refusal(413, "too_large", f"a heartbeat is at most {HEARTBEAT_BYTES} bytes; this one has {len(raw)}")
    try:
        body = strict_json(raw)
    except ValueError as error:
        raise Refusal(422, "invalid_request", f"body: not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refusal(422, "invalid_request", "body: expected a JSON object")
    return body
