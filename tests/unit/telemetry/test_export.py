"""Out with spans: lines in a file, and a real request to a collector that listens."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource

from gangflow.telemetry import recorder as recording
from gangflow.telemetry.export import MAX_ATTRIBUTE, JsonLinesExporter, otlp_processor, read_lines, readable
from gangflow.telemetry.recorder import Recorder
from gangflow.telemetry.spans import Span, fold
from gangflow.xce.core.events import Event
from tests.unit.telemetry.history import HISTORY

RESOURCE = Resource({"service.name": "gangflow"})
SPANS, _ = fold(HISTORY)


def _lines(folder: Path) -> list[str]:
    return [line["name"] for line in read_lines(folder / "g1.jsonl")]


def test_a_line_is_what_opentelemetry_prints(tmp_path: Path) -> None:
    JsonLinesExporter(tmp_path).export([readable(span, RESOURCE) for span in SPANS])
    line = next(line for line in read_lines(tmp_path / "g1.jsonl") if line["name"] == "rollout[0] #1")
    assert line["context"]["trace_id"] == f"0x{SPANS[0].trace_id}"
    assert line["parent_id"] == f"0x{SPANS[-1].span_id}"
    assert line["status"] == {"status_code": "ERROR", "description": "signal killed by SIGKILL"}
    assert (line["start_time"], line["end_time"]) == ("1970-01-01T00:00:04.000000Z", "1970-01-01T00:00:06.000000Z")
    assert line["attributes"]["gangflow.group"] == "g1"
    assert line["resource"]["attributes"]["service.name"] == "gangflow"
    replaced = next(line for line in read_lines(tmp_path / "g1.jsonl") if line["name"] == "rollout[0] #2")
    assert [link["context"]["span_id"] for link in replaced["links"]] == [line["context"]["span_id"]]


def test_a_restarted_controller_doubles_no_line(tmp_path: Path) -> None:
    """Property 53."""
    batch = [readable(span, RESOURCE) for span in SPANS]
    JsonLinesExporter(tmp_path).export(batch[:5])
    JsonLinesExporter(tmp_path).export(batch)
    JsonLinesExporter(tmp_path).export(batch)
    assert _lines(tmp_path) == [span.name for span in SPANS]


def test_a_torn_line_is_left_out_and_written_again(tmp_path: Path) -> None:
    batch = [readable(span, RESOURCE) for span in SPANS]
    JsonLinesExporter(tmp_path).export(batch)
    file = tmp_path / "g1.jsonl"
    file.write_text(file.read_text()[:-100] + "\n")
    assert len(_lines(tmp_path)) == len(SPANS) - 1
    JsonLinesExporter(tmp_path).export(batch)
    assert sorted(_lines(tmp_path)) == sorted(span.name for span in SPANS)


def test_lines_that_are_no_spans_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "g1.jsonl").write_text('null\n[]\n{"context": {}}\n\xff\n{"context": {"span_id": "0x1"}, "name": "x"}\n')
    assert _lines(tmp_path) == ["x"]
    assert read_lines(tmp_path / "none.jsonl") == []


def test_only_its_owner_reads_a_trace(tmp_path: Path) -> None:
    JsonLinesExporter(tmp_path).export([readable(SPANS[0], RESOURCE)])
    assert (tmp_path / "g1.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_stack_trace_does_not_fill_a_collector() -> None:
    long = Span("1" * 32, "2" * 16, "", "x", 1, 2, "g1", failed=True, message="m" * 10_000, attributes=(("a", "v" * 10_000),))
    made = readable(long, RESOURCE)
    assert len(made.status.description or "") == MAX_ATTRIBUTE
    assert len(str((made.attributes or {})["a"])) == MAX_ATTRIBUTE


# --- the recorder: a stream in, files and requests out


@dataclass(frozen=True, slots=True)
class Stamped:
    event: Event
    at_ms: int


def _stream(*histories: tuple[tuple[Event, int], ...]) -> Callable[[], AsyncIterator[Stamped]]:
    """Opens one history after the other; each but the last breaks at its end, the last one stays open."""
    left = list(histories)

    async def opened() -> AsyncIterator[Stamped]:
        for event, at in left.pop(0):
            yield Stamped(event, at)
        if left:
            raise ConnectionError("too slow")
        await asyncio.Event().wait()

    return opened


async def _recorded(recorder: Recorder, events: Callable[[], AsyncIterator[Stamped]], last: str) -> None:
    """Follow until the span of that name is finished, and everything is written."""
    following = asyncio.create_task(recorder.follow(events))
    async with asyncio.timeout(20):
        while not any(span.name == last and span.end_ms for span in recorder.spans("g1")):
            await asyncio.sleep(0.01)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await asyncio.to_thread(recorder.close)


async def test_a_stream_that_breaks_is_folded_again_and_doubles_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "AGAIN_S", 0.01)
    await _recorded(Recorder(tmp_path), _stream(HISTORY[:16], HISTORY[:20], HISTORY), "group grpo")
    assert _lines(tmp_path) == [span.name for span in SPANS]


async def test_members_spans_join_the_groups_trace(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    task = asyncio.create_task(recorder.follow(_stream(HISTORY[:14])))
    async with asyncio.timeout(20):
        while not recorder.spans("g1"):
            await asyncio.sleep(0.01)
    actor = next(span for span in recorder.spans("g1") if span.name == "actor[0] #1")
    body = {"name": "step 3", "span_id": "a" * 16, "parent_id": actor.span_id, "start_ms": 5_000, "end_ms": 5_500}
    assert recorder.record_of_member("g1", [{**body, "attributes": {"step": 3}, "trace_id": "f" * 32}]) == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.to_thread(recorder.close)
    line = next(line for line in read_lines(tmp_path / "g1.jsonl") if line["name"] == "step 3")
    assert (line["context"]["trace_id"], line["parent_id"]) == (f"0x{actor.trace_id}", f"0x{actor.span_id}")
    assert line["attributes"]["step"] == 3


async def test_a_folder_that_cannot_be_written_costs_spans_and_nothing_else(tmp_path: Path) -> None:
    blocked = tmp_path / "traces"
    blocked.write_text("a file")
    recorder = Recorder(blocked)
    await _recorded(recorder, _stream(HISTORY), "group grpo")
    assert recorder.dropped == len(SPANS)


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, ExportTraceServiceRequest]]]]:
    """A collector's endpoint, and the requests that it got: (path, body)."""
    got: list[tuple[str, ExportTraceServiceRequest]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = ExportTraceServiceRequest()
            request.ParseFromString(body)
            got.append((self.path, request))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    thread.join()
    server.server_close()


async def test_spans_go_to_the_endpoint_that_the_environment_names_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collector: tuple[str, list[tuple[str, ExportTraceServiceRequest]]]
) -> None:
    """Also when the stream breaks and when the controller is started again: what was handed out is not sent twice."""
    url, got = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setattr(recording, "AGAIN_S", 0.01)
    await _recorded(Recorder(tmp_path), _stream(HISTORY[:16], HISTORY), "group grpo")
    await _recorded(Recorder(tmp_path), _stream(HISTORY), "group grpo")
    assert {path for path, _ in got} == {"/v1/traces"}
    scopes = [scope for _, request in got for resource in request.resource_spans for scope in resource.scope_spans]
    assert sorted(span.name for scope in scopes for span in scope.spans) == sorted(span.name for span in SPANS)
    services = {
        attribute.value.string_value
        for _, request in got
        for resource in request.resource_spans
        for attribute in resource.resource.attributes
        if attribute.key == "service.name"
    }
    assert services == {"gangflow"}


def test_without_an_endpoint_nothing_is_sent() -> None:
    assert otlp_processor({}) is None
    assert otlp_processor({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}) is None


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
def test_either_variable_names_one(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    made = otlp_processor()
    assert made is not None
    made.shutdown()


def test_a_missing_exporter_is_said_and_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert otlp_processor({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}) is None
    assert "gangflow[otlp]" in caplog.text


def test_lines_are_json(tmp_path: Path) -> None:
    JsonLinesExporter(tmp_path).export([readable(span, RESOURCE) for span in SPANS])
    for line in (tmp_path / "g1.jsonl").read_text().splitlines():
        assert json.loads(line)["name"]
