"""What is printed where nothing can be redrawn, and when."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from gangflow.cli import printing
from gangflow.cli.printing import Printing, put, stamped
from gangflow.cli.story import Story
from gangflow.xce.core.state import GroupState
from gangflow.xce.rest.schema import GroupView
from tests.unit.cli.test_live import beat, started, view_of
from tests.unit.xce.rest.fake import running

RUNNING = view_of(running())
STOPPING = view_of(running(state=GroupState.STOPPING))


def told(printing_: Printing, now_ms: int, view: GroupView = RUNNING, **body: Any) -> list[str]:
    """What is printed at a moment, when the actor has said that."""
    beats = dict([beat("actor", 0, 1, **body)]) if body else {}
    return [text for _, text in printing_.lines(view, beats, [], now_ms)]


def test_each_step_is_told_once() -> None:
    lines = Printing(Story("g1"))
    assert told(lines, 10_000, step=1, reward=0.5) == ["step 1 · reward 0.500"]
    assert told(lines, 12_000, step=1, reward=0.5) == []
    assert told(lines, 14_000, step=2, reward=0.6, accuracy=0.4) == ["step 2 · reward 0.600 · held-out accuracy 0.40"]


def test_of_fast_steps_the_last_is_told_all_the_same() -> None:
    lines = Printing(Story("g1"))
    assert told(lines, 10_000, step=1) == ["step 1"]
    assert told(lines, 10_000 + printing.STEP_MS - 1, step=7) == []
    assert told(lines, 10_000 + printing.STEP_MS, step=9) == ["step 9"]
    assert told(lines, 10_001 + printing.STEP_MS, STOPPING, step=11) == ["step 11"]
    assert told(lines, 10_002 + printing.STEP_MS, STOPPING, step=11) == []


def test_step_0_is_a_step_and_counted_samples_are_none() -> None:
    own = {"samples": {"redispatched": 0, "lost": 0}}
    lines = Printing(Story("g1"))
    assert told(lines, 10_000, gangflow=own) == []
    assert told(lines, 20_000, step=0, gangflow=own) == ["step 0 · 0 re-dispatched · 0 lost"]


def test_progress_without_steps_is_told_when_it_changes() -> None:
    lines = Printing(Story("g1"))
    assert told(lines, 10_000, samples_per_s=5) == ["5 samples/s"]
    assert told(lines, 20_000, samples_per_s=5) == []
    assert told(lines, 30_000, samples_per_s=6) == ["6 samples/s"]


def test_lines_come_in_the_order_of_their_moments() -> None:
    lines = Printing(Story("g1"))
    beats = dict([beat("actor", 0, 1, step=3)])  # at 1 ms
    found = lines.lines(RUNNING, beats, [(5_000, "rollout[0] died")], 6_000)
    assert found == [(1, "step 3"), (5_000, "rollout[0] died")]


def test_what_is_waited_for_is_told_after_a_while_and_now_and_then() -> None:
    lines = Printing(Story("g1"))
    loading = started(running(state=GroupState.STARTING), "a", "b")
    moments = [at for at in range(33_000, 70_000, 500) if told(lines, at, loading)]
    assert moments == [36_000, 46_000, 56_000, 66_000]
    assert told(lines, 76_000, loading) == ["rollout[0], rollout[1] start: not READY yet (43 s)"]
    assert told(lines, 77_000) == []
    assert told(lines, 90_000, loading) == [], "a later start begins anew"
    assert told(lines, 90_000 + printing.FIRST_WAIT_MS, loading) != []


def test_a_line_is_stamped_and_printed_as_it_is_without_escape_codes() -> None:
    console = Console(file=io.StringIO(), width=40)
    put(console, stamped(Story("g1", begin_ms=1_000), (13_345, "[red]rollout[0][/red] " + "x" * 60)))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "   12.3 s  [red]rollout[0][/red] " + "x" * 60 + "\n"
