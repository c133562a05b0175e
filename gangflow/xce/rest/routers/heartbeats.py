"""Group service: opaque heartbeats, the latest of each slot, kept in memory only."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from gangflow.xce.core.inputs import TakeCoordination
from gangflow.xce.core.state import TaskKey
from gangflow.xce.rest.access import Admin, Asking, Caller, Service, Serving, client_of, find_slot, require_newest, shown
from gangflow.xce.rest.messages import BeatList, BeatView, Done, TermView
from gangflow.xce.rest.port import Beat
from gangflow.xce.rest.problems import Refusal, forbidden, not_found
from gangflow.xce.rest.schema import HEARTBEAT_BYTES
from gangflow.xce.rest.streams import message

router = APIRouter(prefix="/groups/{group}", tags=["group services"])


@router.post("/coordinator", response_model=TermView)
async def take_coordination(group: str, caller: Admin, asked: Asking, service: Serving) -> Response:
    """A coordinator starts: its term, to be sent as `XCE-Term` with every call. Calls under an older one are now refused."""
    reply = await service.command(TakeCoordination(service.group(group, caller).id, asked))
    return shown(TermView(seq=service.controller.seq, term=int(dict(reply.fields)["term"])))


@router.put("/members/{member}/slots/{index}/heartbeat", response_model=Done)
async def beat(
    group: str, member: str, index: int, request: Request, caller: Caller, service: Serving, incarnation: int = 0
) -> Response:
    """A JSON object of at most 4 KiB. A task beats for its own slot, the admin for the incarnation it names (0: newest)."""
    found = service.group(group, caller)
    slot = find_slot(found, member, index)
    task = caller.task
    if task is not None:
        if (task.member, task.index) != (member, index):
            raise forbidden(f"this token is for {task.member}[{task.index}]")
        require_newest(slot, task.incarnation, "the token is for incarnation")
    elif incarnation:
        require_newest(slot, incarnation, "it names incarnation")
    if slot.incarnation == 0:
        raise not_found(f"{member}[{index}] was never placed: nothing of it can have a heartbeat")
    key = task or TaskKey(found.id, slot.epoch, member, index, slot.incarnation, 0)
    await service.controller.beat(key, _body(await request.body()))
    return shown(Done(seq=service.controller.seq))


@router.get("/heartbeats", response_model=BeatList)
async def beats(group: str, request: Request, caller: Caller, service: Serving, follow: bool = False) -> Response:
    """The latest heartbeat of each slot; with `follow`, server-sent events: these first, then each as it comes."""
    seq, found = service.controller.seq, service.group(group, caller)
    if follow:
        source = _followed(service, found.id)
        return service.streams.response(client_of(request, caller), source, lambda: message(comment="keepalive"))
    latest = tuple(beat_view(beat) for _, beat in sorted(service.controller.beats(found.id).items()))
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


async def _followed(service: Service, group: str) -> AsyncGenerator[bytes, None]:
    async for beat in service.controller.watch_beats(group):
        yield message(beat_view(beat).model_dump_json(), event="beat")


def _body(raw: bytes) -> Mapping[str, Any]:
    if len(raw) > HEARTBEAT_BYTES:
        raise Refusal(413, "too_large", f"a heartbeat is at most {HEARTBEAT_BYTES} bytes; this one has {len(raw)}")
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise Refusal(422, "invalid_request", f"body: not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refusal(422, "invalid_request", "body: expected a JSON object")
    return body
