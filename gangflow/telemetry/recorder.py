"""The shell around the span book: feeds it the controller's events, hands finished spans to the exporters, answers the page."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from gangflow.telemetry.export import JsonLinesExporter, otlp_processor, readable
from gangflow.telemetry.spans import Span, SpanBook, trace_id
from gangflow.xce.core.events import Event, GroupForgotten

MAX_SPANS_SHOWN = 5_000
"""Per group, the newest, in memory for the page; the file has them all."""

_log = logging.getLogger(__name__)


class Stamped(Protocol):
    """An event with its position and time, as the controller's stream has it."""

    @property
    def at_ms(self) -> int: ...

    @property
    def event(self) -> Event: ...


class Recorder:
    """Records the traces of all groups of one controller."""

    def __init__(self, folder: Path, otlp: BatchSpanProcessor | None = None) -> None:
        self._lines = JsonLinesExporter(folder)
        self._otlp = otlp if otlp is not None else otlp_processor()
        self._resource = Resource.create({"service.name": "gangflow"})
        self._book = SpanBook()
        self._finished: dict[str, deque[Span]] = {}

    async def follow(self, events: AsyncIterator[Stamped]) -> None:
        """Record until the stream ends. A file that cannot be written costs its spans, never the controller."""
        async for stamped in events:
            finished = self._book.feed(stamped.event, stamped.at_ms)
            if finished:
                self.record(finished)
            if isinstance(stamped.event, GroupForgotten):
                self._finished.pop(stamped.event.group, None)
                self._lines.forget(stamped.event.group)

    def record(self, spans: Sequence[Span]) -> None:
        """Finished spans: the book's, or a member's own."""
        batch = []
        for span in spans:
            self._finished.setdefault(span.group, deque(maxlen=MAX_SPANS_SHOWN)).append(span)
            batch.append(readable(span, self._resource))
        try:
            self._lines.export(batch)
        except OSError:
            _log.warning("a trace could not be written", exc_info=True)
        if self._otlp is not None:
            for ended in batch:
                self._otlp.on_end(ended)

    def record_of_member(self, group: str, body: Sequence[Mapping[str, Any]]) -> int:
        """Spans that a member measured itself: `{name, span_id, parent_id, start_ms, end_ms, failed, message, attributes}`.

        Returns how many were taken. The trace is the group's, whatever the body says.
        """
        spans = [
            Span(
                trace_id=trace_id(self._book.cluster_id, group),
                span_id=str(item["span_id"]),
                parent_id=str(item["parent_id"]),
                name=str(item["name"])[:200],
                start_ms=int(item["start_ms"]),
                end_ms=int(item["end_ms"]),
                group=group,
                failed=bool(item.get("failed", False)),
                message=str(item.get("message", "")),
                attributes=tuple((str(key), value) for key, value in dict(item.get("attributes", {})).items()),
            )
            for item in body
        ]
        self.record(spans)
        return len(spans)

    def spans(self, group: str) -> list[Span]:
        """What the page shows of a group: finished spans (the newest), then open ones."""
        return [*self._finished.get(group, ()), *self._book.of(group)]

    def close(self) -> None:
        """Flush what is under way to the collector."""
        if self._otlp is not None:
            self._otlp.shutdown()  # type: ignore[no-untyped-call]
