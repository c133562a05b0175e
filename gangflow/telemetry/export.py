"""Out with finished spans: JSON lines in a file per group, always; OTLP when an endpoint is set in the environment.

Both go through OpenTelemetry's own span type, so that a line in the file is what the SDK's console exporter would print.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, SpanContext, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from gangflow.telemetry.spans import Span

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_MS = 1_000_000
_log = logging.getLogger(__name__)
MAX_ATTRIBUTE = 4_096
"""Characters of one attribute: a stack trace in a message must not fill a collector."""


def readable(span: Span, resource: Resource) -> ReadableSpan:
    """The span as OpenTelemetry's SDK has it."""
    status = Status(StatusCode.ERROR, span.message[:MAX_ATTRIBUTE]) if span.failed else Status(StatusCode.OK)
    attributes: dict[str, str | int] = {"gangflow.group": span.group, **dict(span.attributes)}
    if span.message and not span.failed:
        attributes["gangflow.message"] = span.message
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=_context(span.trace_id, span.parent_id) if span.parent_id else None,
        resource=resource,
        attributes={key: value[:MAX_ATTRIBUTE] if isinstance(value, str) else value for key, value in attributes.items()},
        links=[Link(_context(span.trace_id, link)) for link in span.links],
        status=status,
        start_time=span.start_ms * _MS,
        end_time=span.end_ms * _MS,
    )


def _context(trace: str, span: str) -> SpanContext:
    return SpanContext(int(trace, 16), int(span, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


class JsonLinesExporter(SpanExporter):
    """One file per group below `folder`, one span a line; a batch is one O_APPEND write per file, so that a crash tears little.

    Spans that a file already had when this exporter first saw it are not written twice: a restarted controller folds its
    journal again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before: dict[str, set[str]] = {}

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append what was not there before."""
        self.append(self.fresh(spans))
        return SpanExportResult.SUCCESS

    def fresh(self, spans: Sequence[ReadableSpan]) -> list[ReadableSpan]:
        """Those that their group's file did not have when it was first looked at."""
        found = []
        for span in spans:
            group, context = _group(span), span.get_span_context()
            if group not in self._before:
                self._before[group] = {line["context"]["span_id"] for line in read_lines(self.path(group))}
            if context is None or f"0x{context.span_id:016x}" not in self._before[group]:
                found.append(span)
        return found

    def append(self, spans: Sequence[ReadableSpan]) -> None:
        """Write spans, whatever is there."""
        lines: dict[str, list[str]] = {}
        for span in spans:
            lines.setdefault(_group(span), []).append(json.dumps(json.loads(span.to_json()), separators=(",", ":")) + "\n")
        self._folder.mkdir(parents=True, exist_ok=True)
        for group, new in lines.items():
            with open(os.open(self.path(group), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab", buffering=0) as file:
                left = memoryview("".join(new).encode())
                while left:
                    left = left[file.write(left) :]

    def path(self, group: str) -> Path:
        """The file of a group's trace."""
        return self._folder / f"{group}.jsonl"

    def forget(self, group: str) -> None:
        """Drop what is remembered of an ended group's file."""
        self._before.pop(group, None)

    def look_again(self) -> None:
        """The same spans will come once more: what the files have by now is not written twice."""
        self._before.clear()


def _group(span: ReadableSpan) -> str:
    return str((span.attributes or {}).get("gangflow.group", "unknown"))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The spans of a trace file; a torn line, or one that is no span, is left out."""
    if not path.exists():
        return []
    spans = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            span = json.loads(line)
            if span["context"]["span_id"]:
                spans.append(span)
        except (ValueError, KeyError, TypeError):
            continue
    return spans


def otlp_processor(environment: Mapping[str, str] = os.environ) -> BatchSpanProcessor | None:
    """A batching OTLP/HTTP exporter when the environment names an endpoint; None otherwise, or without the `otlp` extra."""
    if not any(environment.get(variable) for variable in ENDPOINT_VARIABLES):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError:
        _log.warning("an OTLP endpoint is set, but its exporter is not installed: pip install 'gangflow[otlp]'")
        return None
    return BatchSpanProcessor(OTLPSpanExporter())
