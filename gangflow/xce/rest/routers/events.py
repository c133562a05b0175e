"""The journal's durable records as server-sent events: list, then watch from the `seq` that the list showed, without a gap."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from gangflow.errors import Gone
from gangflow.xce.rest.access import Caller, Serving, client_of, over_for
from gangflow.xce.rest.event_sight import Watching
from gangflow.xce.rest.json_text import StrictRoute
from gangflow.xce.rest.messages import MAX_INT, ProblemView
from gangflow.xce.rest.port import StampedEvent
from gangflow.xce.rest.problems import Refusal
from gangflow.xce.rest.streams import message

router = APIRouter(tags=["events"], route_class=StrictRoute)
GONE: dict[str, Any] = {"model": ProblemView, "description": "The journal does not reach back that far"}


@router.get("/events", response_class=Response, responses={200: {"content": {"text/event-stream": {}}}, 410: GONE})
async def events(
    request: Request,
    caller: Caller,
    service: Serving,
    after: Annotated[int | None, Query(ge=0, le=MAX_INT, description="the last seq that was seen; absent: from now on")] = None,
    group: str = "",
    until: Annotated[int | None, Query(ge=0, le=MAX_INT, description="end after this seq; absent: never")] = None,
    last_event_id: Annotated[str, Header()] = "",
) -> Response:
    """Records after a position. `id` is the seq, `data` an EventView. 410 with a fresh seq if the journal does not reach back.

    Keepalive comments carry an `id` too, so that a reader of a quiet group does not fall behind the horizon.
    """
    watching = Watching(caller, service.group(group, caller).id if group else "", lambda: service.state)
    if last_event_id:
        # A reconnecting reader's own position is newer than the one in its address.
        if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 16):
            raise Refusal(422, "invalid_request", f"header.Last-Event-ID: not a seq: {last_event_id[:40]!r}")
        after = int(last_event_id)
    now = service.controller.seq
    start = now if after is None else after
    if start > now:
        raise Gone(f"the journal ends at {now}, before {start}: list again", seq=now)
    if until is not None:
        # What is not there yet is not waited for.
        until = min(until, now)
    source = service.controller.events(start)
    # What lies between is read before the answer begins, so that `Gone` can still be a 410.
    first = await anext(source, None) if start < (now if until is None else until) else None
    position = [start]
    return service.streams.response(
        client_of(request, caller),
        _records(source, first, watching, until, position),
        lambda: message(ident=position[0], comment="keepalive"),
        over_for(caller, service),
    )


async def _records(
    source: AsyncIterator[StampedEvent], first: StampedEvent | None, watching: Watching, until: int | None, position: list[int]
) -> AsyncGenerator[bytes, None]:
    # At once, so that a reader knows that it is heard, and from where it goes on if it is cut off before the first record.
    yield message(ident=position[0], comment="watching")
    stamped = first
    try:
        while True:
            if stamped is not None and (until is None or stamped.seq <= until):
                for sent in _message(stamped, watching):
                    yield sent
                # Only now: what a keepalive says was seen was really sent.
                position[0] = stamped.seq
            if until is not None and (stamped is None or stamped.seq >= until):
                yield message("{}", event="end", ident=position[0])
                return
            stamped = await anext(source, None)
            if stamped is None:
                return
    except Gone as gone:
        yield message(f'{{"seq":{gone.seq}}}', event="gone")


def _message(stamped: StampedEvent, watching: Watching) -> Iterator[bytes]:
    view = watching.view(stamped.seq, stamped.at_ms, stamped.event)
    if view is not None:
        yield message(view.model_dump_json(), ident=view.seq, event=view.type)
