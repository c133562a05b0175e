"""The shell around the span book: feeds it the controller's events, hands finished spans to the exporters, answers the page."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from gangflow.telemetry.export import JsonLinesExporter, otlp_processor, readable
from gangflow.telemetry.spans import Span, SpanBook, trace_id
from gangflow.xce.core.events import Event, GroupForgotten

MAX_SPANS_SHOWN = 2_000
"""Per group, the newest, in memory for the page; the file has them all."""
MAX_WAITING = 256
"""Batches that wait for a slow disk; beyond it spans are dropped, and counted."""
AGAIN_S = 1.0
"""After a stream that ended (its reader was too slow, say) it is read again from the beginning of what is kept."""

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
        # Files are written beside the controller's loop: a slow disk must not delay a heartbeat.
        self._disk = ThreadPoolExecutor(1, "traces")
        self._waiting = 0
        self.dropped = 0
        """Spans that were not written, since the disk was too slow or full."""

    async def follow(self, events: Callable[[], AsyncIterator[Stamped]]) -> None:
        """Record for ever. `events` opens the stream at the beginning of what is kept."""
        while True:
            self._book = SpanBook(self._book.cluster_id)
            self._finished.clear()
            self._disk.submit(self._lines.look_again)
            try:
                async for stamped in events():
                    self._take(stamped)
            except Exception:
                _log.warning("the stream of events ended; it is folded again", exc_info=True)
            await asyncio.sleep(AGAIN_S)

    def _take(self, stamped: Stamped) -> None:
        finished = self._book.feed(stamped.event, stamped.at_ms)
        if finished:
            self.record(finished)
        if isinstance(stamped.event, GroupForgotten):
            self._finished.pop(stamped.event.group, None)
            self._disk.submit(self._lines.forget, stamped.event.group)

    def record(self, spans: Sequence[Span]) -> None:
        """Finished spans: the book's, or a member's own."""
        for span in spans:
            self._finished.setdefault(span.group, deque(maxlen=MAX_SPANS_SHOWN)).append(span)
        if self._waiting >= MAX_WAITING:
            self.dropped += len(spans)
            return
        self._waiting += 1
        self._disk.submit(self._export, list(spans))

    def _export(self, spans: Sequence[Span]) -> None:
        try:
            # What an earlier fold has handed out already (a restart reads the journal again) is not for the collector either.
            batch = self._lines.fresh([readable(span, self._resource) for span in spans])
            self._lines.append(batch)
            if self._otlp is not None:
                for ended in batch:
                    self._otlp.on_end(ended)
        except OSError:
            self.dropped += len(spans)
            _log.warning("a trace could not be written", exc_info=True)
        except Exception:
            self.dropped += len(spans)
            _log.exception("spans that cannot be exported")
        finally:
            self._waiting -= 1

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
        """Write what waits, and flush what is under way to the collector."""
        self._disk.shutdown(wait=True)
        if self._otlp is not None:
            self._otlp.shutdown()  # type: ignore[no-untyped-call]
