"""A group's trace: what the page draws, and where a member hands in the spans that it measured itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Request, Response
from pydantic import Field

from gangflow.xce.rest.access import Caller, OfGroup, Serving, find_slot, require_newest, shown
from gangflow.xce.rest.json_text import StrictRoute
from gangflow.xce.rest.messages import MAX_INT, Done
from gangflow.xce.rest.schema import Body, View

router = APIRouter(tags=["traces"], route_class=StrictRoute)
SPANS_PER_CALL = 512
ATTRIBUTES = 32

Attribute = Annotated[int, Field(ge=-MAX_INT, le=MAX_INT)]
SpanId = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]


class SpanShape(Protocol):
    """What a span has; `telemetry.spans.Span` is one."""

    @property
    def span_id(self) -> str: ...
    @property
    def parent_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def start_ms(self) -> int: ...
    @property
    def end_ms(self) -> int: ...
    @property
    def failed(self) -> bool: ...
    @property
    def message(self) -> str: ...
    @property
    def attributes(self) -> tuple[tuple[str, str | int], ...]: ...
    @property
    def links(self) -> tuple[str, ...]: ...


class Traces(Protocol):
    """Who keeps traces; `telemetry.recorder.Recorder` is one."""

    def spans(self, group: str) -> Sequence[SpanShape]: ...
    def record_of_member(self, group: str, body: Sequence[Mapping[str, Any]]) -> int: ...


class SpanView(View):
    """One span; `end_ms` 0 is still open."""

    span_id: str
    parent_id: str
    name: str
    start_ms: int
    end_ms: int
    failed: bool = False
    message: str = ""
    attributes: dict[str, str | int]
    links: tuple[str, ...] = ()


class TraceView(View):
    """The newest spans of a group."""

    seq: int
    spans: tuple[SpanView, ...]


class SpanBody(Body):
    """A span that a member measured."""

    span_id: SpanId
    parent_id: SpanId
    name: str = Field(min_length=1, max_length=200)
    start_ms: int = Field(ge=0, le=MAX_INT)
    end_ms: int = Field(ge=1, le=MAX_INT)
    failed: bool = False
    message: str = Field("", max_length=4_000)
    attributes: dict[str, str | Attribute] = Field(default_factory=dict, max_length=ATTRIBUTES)


class SpansBody(Body):
    """Spans of one member, at most 512."""

    spans: tuple[SpanBody, ...] = Field(max_length=SPANS_PER_CALL)


@router.get("/groups/{group}/trace", response_model=TraceView)
async def trace(found: OfGroup, service: Serving, request: Request) -> Response:
    """The newest spans of a group, finished ones first."""
    traces: Traces | None = request.app.state.traces
    spans = traces.spans(found.id) if traces is not None else ()
    views = tuple(
        SpanView(
            span_id=span.span_id,
            parent_id=span.parent_id,
            name=span.name,
            start_ms=span.start_ms,
            end_ms=span.end_ms,
            failed=span.failed,
            message=span.message,
            attributes=dict(span.attributes),
            links=span.links,
        )
        for span in spans
    )
    return shown(TraceView(seq=service.controller.seq, spans=views))


@router.post("/groups/{group}/spans", response_model=Done)
async def hand_in(found: OfGroup, body: SpansBody, service: Serving, caller: Caller, request: Request) -> Response:
    """Spans that a member measured: they join the group's trace. Not journalled: losing them loses no fact."""
    if caller.task is not None:
        slot = find_slot(found, caller.task.member, caller.task.index)
        require_newest(slot, caller.task.incarnation, "the token is of incarnation")
    traces: Traces | None = request.app.state.traces
    if traces is not None:
        traces.record_of_member(found.id, [span.model_dump() for span in body.spans])
    return shown(Done(seq=service.controller.seq))
