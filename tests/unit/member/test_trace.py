"""A member's own spans: nested, kept while XCE is away, and no burden to whoever measures."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gangflow.errors import Conflict, Unreachable
from gangflow.member import trace
from gangflow.member.trace import Spans

ROOT = "b" * 16
PARENT = f"00-{'a' * 32}-{ROOT}-01"


class Sink:
    """Takes spans; `away` refuses them."""

    def __init__(self) -> None:
        self.batches: list[list[Mapping[str, Any]]] = []
        self.away: Exception | None = None

    def __call__(self, spans: Sequence[Mapping[str, Any]]) -> None:
        if self.away is not None:
            raise self.away
        self.batches.append(list(spans))

    @property
    def spans(self) -> dict[str, Mapping[str, Any]]:
        return {str(span["name"]): span for batch in self.batches for span in batch}


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def spans(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> Spans:
    """Without the thread: a test flushes itself."""
    monkeypatch.setattr(Spans, "_run", lambda _self: None)
    monkeypatch.setattr(trace.atexit, "register", lambda _flush: None)
    return Spans(sink, PARENT)


def test_nested_spans_are_children_of_the_tasks(spans: Spans, sink: Sink) -> None:
    with spans.span("step", {"step": 3}):
        with spans.span("generate", {}):
            pass
        with spans.span("train", {}):
            pass
    with spans.span("next", {}):
        pass
    spans.flush()
    taken = sink.spans
    assert taken["step"]["parent_id"] == ROOT
    assert taken["generate"]["parent_id"] == taken["train"]["parent_id"] == taken["step"]["span_id"]
    assert taken["next"]["parent_id"] == ROOT
    assert taken["step"]["attributes"] == {"step": 3}
    assert len({span["span_id"] for span in taken.values()}) == 4
    for span in taken.values():
        assert 0 < span["start_ms"] <= span["end_ms"]
        assert (span["failed"], span["message"]) == (False, "")


def test_an_exception_marks_its_spans_and_passes(spans: Spans, sink: Sink) -> None:
    with pytest.raises(KeyError), spans.span("outer", {}), spans.span("inner", {}):
        raise KeyError("x" * 5_000)
    with spans.span("after", {}):
        pass
    spans.flush()
    for name in ("outer", "inner"):
        assert sink.spans[name]["failed"]
        assert sink.spans[name]["message"].startswith("KeyError: ")
        assert len(sink.spans[name]["message"]) == 4_000
    assert sink.spans["after"]["parent_id"] == ROOT, "the nesting is undone"


def test_each_thread_nests_for_itself(spans: Spans, sink: Sink) -> None:
    def other() -> None:
        with spans.span("other", {}):
            pass

    with spans.span("mine", {}):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    spans.flush()
    assert sink.spans["other"]["parent_id"] == ROOT


def test_what_nobody_takes_is_kept_in_order_for_the_next_time(spans: Spans, sink: Sink) -> None:
    sink.away = Unreachable("nobody answers")
    for number in range(3):
        with spans.span(f"s{number}", {}):
            pass
    spans.flush()
    with spans.span("s3", {}):
        pass
    spans.flush()
    sink.away = None
    spans.flush()
    spans.flush()
    assert [[span["name"] for span in batch] for batch in sink.batches] == [["s0", "s1", "s2", "s3"]]


def test_a_call_takes_no_more_than_the_contract_allows(spans: Spans, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_SENT", 4)
    for number in range(10):
        with spans.span(f"s{number}", {}):
            pass
    spans.flush()
    assert [len(batch) for batch in sink.batches] == [4, 4, 2]
    assert list(sink.spans) == [f"s{number}" for number in range(10)]


def test_when_xce_is_away_for_long_the_oldest_go(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_KEPT", 5)
    monkeypatch.setattr(Spans, "_run", lambda _self: None)
    monkeypatch.setattr(trace.atexit, "register", lambda _flush: None)
    spans = Spans(sink, PARENT)
    sink.away = Conflict("no")
    for number in range(9):
        with spans.span(f"s{number}", {}):
            pass
        spans.flush()
    sink.away = None
    spans.flush()
    assert list(sink.spans) == [f"s{number}" for number in range(4, 9)]


@pytest.mark.parametrize("parent", ["", "nonsense", "00-abc-def-01", PARENT.upper(), PARENT + "x"])
def test_without_a_valid_parent_nothing_is_recorded(sink: Sink, parent: str) -> None:
    spans = Spans(sink, parent)
    with spans.span("step", {}):
        pass
    with pytest.raises(ZeroDivisionError), spans.span("step", {}):
        raise ZeroDivisionError
    spans.flush()
    assert sink.batches == []


def test_a_thread_hands_them_in(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = threading.Event()
    monkeypatch.setattr(trace, "INTERVAL_S", 0.01)
    monkeypatch.setattr(trace.atexit, "register", lambda _flush: None)

    def send(spans: Sequence[Mapping[str, Any]]) -> None:
        sink(spans)
        taken.set()

    spans = Spans(send, PARENT)
    with spans.span("step", {}):
        pass
    assert taken.wait(20)
    assert list(sink.spans) == ["step"]


def test_the_last_ones_are_handed_in_when_the_process_ends() -> None:
    code = f"""
from gangflow.member.trace import Spans
spans = Spans(lambda batch: print([span["name"] for span in batch], flush=True), {PARENT!r})
with spans.span("last", {{}}):
    pass
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "['last']"
