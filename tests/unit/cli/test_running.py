"""From a source to an exit code, with a cluster of a few lines: what is cancelled, what is stopped, and what is left alone."""

from __future__ import annotations

import dataclasses
import io
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
from rich.console import Console

import gangflow
from gangflow.cli import running as command
from gangflow.cli.sources import Source
from gangflow.cli.story import Story
from gangflow.cli.watching import Watching, final_words
from gangflow.errors import SetupError, SpecError, Unreachable
from gangflow.runs import Run
from gangflow.xce.core import events as ev
from gangflow.xce.core.plan import Cause
from gangflow.xce.core.state import GroupState
from gangflow.xce.rest.messages import BeatView, Done, EventView, HealthView, Submitted
from gangflow.xce.rest.schema import GroupView
from gangflow.xce.rest.views import group_view
from tests.unit.cli.events import PLAN, changed, exited, views, waits
from tests.unit.xce.rest.fake import running, state_of

SOURCE = Source(gangflow.CoStartGroup("grpo", {"actor": gangflow.Job(["train"])}))


def view_of(state: str, cause: str = "", message: str = "") -> GroupView:
    """The group in a state; terminal ones have ended."""
    ended = 9_000 if GroupState(state).terminal else 0
    group = running(state=GroupState(state), cause=cause, message=message, ended_ms=ended)
    return group_view(state_of(group), group, 9)


class FakeCluster:
    """A cluster and its client in one: a group that runs until its records are over, or until it is cancelled."""

    name = "/home/of/it"

    def __init__(self, end: str = "SUCCEEDED", *events: ev.Event) -> None:
        self.view = view_of("RUNNING")
        self.end = end
        self.history = views([ev.GroupSubmitted("g1", PLAN), changed("STARTING", "RUNNING"), *events])
        self.calls: list[str] = []
        self.refusal: Exception | None = None

    # --- of a cluster
    def client(self) -> FakeCluster:
        return self

    def coordinate(self, group: str) -> None:
        self.calls.append("coordinate")

    def stop(self) -> None:
        self.calls.append("stop")

    # --- of a client
    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...

    def submit(self, group: object, delegation: Sequence[str] = ()) -> Submitted:
        self.delegation = tuple(delegation)
        if self.refusal is not None:
            raise self.refusal
        self.calls.append("submit")
        return Submitted(seq=1, id="g1")

    def healthz(self) -> HealthView:
        return HealthView(seq=9, status="ok", cluster_id="c", term=1, version="0")

    def group(self, group: str) -> GroupView:
        return self.view

    def cancel(self, group: str) -> Done:
        self.calls.append("cancel")
        self.view = view_of("CANCELLED", "user")
        return Done(seq=9)

    def events(self, after: int | None = 0, group: str = "", until: int | None = None) -> Iterator[EventView]:
        yield from self.records()

    def records(self) -> Iterator[EventView]:
        """Of the group, which has ended behind them."""
        yield from self.history
        self.view = view_of(self.end, "app_exit" if self.end == "FAILED" else "")
        yield from views([changed("STOPPING", self.end)])

    def follow_beats(self, group: str) -> Iterator[BeatView]:
        return iter(())


def console() -> Console:
    return Console(file=io.StringIO(), width=160)


def printed(where: Console) -> str:
    assert isinstance(where.file, io.StringIO)
    return where.file.getvalue()


@pytest.fixture
def run_on(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """`gangflow run` on a given cluster: exit code and output."""

    def call(cluster: FakeCluster, address: str = "", detach: bool = False) -> tuple[int, str]:
        monkeypatch.setattr(command, "open_cluster", lambda *_: cluster)
        monkeypatch.setattr(command.signal, "signal", lambda *_: None)
        where = console()
        code = command.run_group(where, SOURCE, None, address, "local", False, [], detach)
        return code, printed(where)

    return call


@pytest.mark.parametrize(("state", "code"), [("SUCCEEDED", 0), ("FAILED", 1), ("CANCELLED", 3)])
def test_the_exit_code_is_the_result_and_an_own_cluster_ends(
    run_on: Callable[..., tuple[int, str]], state: str, code: int
) -> None:
    cluster = FakeCluster(state)
    ended, said = run_on(cluster)
    assert ended == code
    assert cluster.calls == ["submit", "stop"]
    assert f"grpo {state}" in said
    assert "STARTING → RUNNING" in said


def test_delegation_tokens_are_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from gangflow.cli.main import app

    cluster = FakeCluster()
    monkeypatch.setattr(command, "open_cluster", lambda *_: cluster)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    monkeypatch.setattr("gangflow.cli.sources.read", lambda *_: SOURCE)
    for words, environment, handed in (
        (["--delegation", "xcd1.a", "--delegation", "xcd1.b"], {}, ("xcd1.a", "xcd1.b")),
        ([], {"GANGFLOW_DELEGATION": "xcd1.c"}, ("xcd1.c",)),
    ):
        assert CliRunner().invoke(app, ["run", "it.yaml", "--detach", *words], env=environment).exit_code == 0
        assert cluster.delegation == handed


def test_a_cluster_that_was_joined_goes_on(run_on: Callable[..., tuple[int, str]]) -> None:
    cluster = FakeCluster()
    assert run_on(cluster, address="http://there")[0] == 0
    assert cluster.calls == ["submit"]


def test_detached_from_the_start(run_on: Callable[..., tuple[int, str]]) -> None:
    cluster = FakeCluster()
    code, said = run_on(cluster, detach=True)
    assert (code, cluster.calls) == (0, ["submit"])
    assert "`gangflow attach grpo`" in said


@pytest.mark.parametrize(("address", "calls"), [("", ["stop"]), ("http://there", [])])
def test_a_refused_group_leaves_no_cluster(run_on: Callable[..., tuple[int, str]], address: str, calls: list[str]) -> None:
    cluster = FakeCluster()
    cluster.refusal = SpecError([])
    with pytest.raises(SpecError):
        run_on(cluster, address=address)
    assert cluster.calls == calls


def _interrupted(monkeypatch: pytest.MonkeyPatch, detach: bool) -> None:
    def follow(_watching: Watching, _console: Console) -> GroupView:
        raise KeyboardInterrupt

    monkeypatch.setattr(Watching, "follow", follow)
    monkeypatch.setattr(command, "ask_detach_or_cancel", lambda _console: detach)


def test_ctrl_c_and_cancel(run_on: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()
    _interrupted(monkeypatch, detach=False)
    code, said = run_on(cluster)
    assert (code, cluster.calls) == (3, ["submit", "cancel", "stop"])
    assert "grpo CANCELLED (user)" in said


def test_ctrl_c_and_detach(run_on: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()
    _interrupted(monkeypatch, detach=True)
    assert run_on(cluster)[0] == 0
    assert cluster.calls == ["submit"], "the run goes on in its cluster"


JUDGED = ev.FailureJudged("g1", "rollout", 1, 1, Cause.APP_EXIT, -1, "restart_member", "app_exit: exited with code 3")
SAID = "rollout[1] incarnation 1: app_exit → restart_member"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_judged_failure_is_said_once_and_stays_in_the_scroll_back(terminal: bool) -> None:
    later = [waits(f"reason {number}") for number in range(20)]
    where = Console(file=io.StringIO(), width=160, height=60, force_terminal=terminal, color_system=None)
    cluster = FakeCluster("SUCCEEDED", JUDGED, *later)
    command.watch(where, Run("g1", "grpo", cluster, owns=False), [], stop=False)  # type: ignore[arg-type]
    said = printed(where)
    assert said.count(SAID) == 1
    assert ("\x1b[" in said) == terminal
    last_screen = said[said.rindex("g1) SUCCEEDED") :] if terminal else ""
    assert SAID not in last_screen, "it is above what is redrawn"


def test_piped_output_has_a_line_for_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    there = threading.Event()

    def beats(_self: FakeCluster, _group: str) -> Iterator[BeatView]:
        yield BeatView(member="actor", index=0, incarnation=1, at_ms=1, body={"step": 3, "reward": 0.25, "accuracy": 0.5})
        there.set()

    def events(self: FakeCluster, *_: object, **__: object) -> Iterator[EventView]:
        assert there.wait(10), "the heartbeat was taken first"
        yield from FakeCluster.records(self)

    monkeypatch.setattr(FakeCluster, "follow_beats", beats)
    monkeypatch.setattr(FakeCluster, "events", events)
    where = console()
    command.watch(where, Run("g1", "grpo", FakeCluster(), owns=False), [], stop=False)  # type: ignore[arg-type]
    assert printed(where).count("step 3 · reward 0.250 · held-out accuracy 0.50") == 1


def test_a_controller_that_is_lost_is_an_error_and_an_own_cluster_is_stopped(
    run_on: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: FakeCluster, *_: object, **__: object) -> Iterator[EventView]:
        raise Unreachable("nobody answers")

    monkeypatch.setattr(FakeCluster, "events", lost)
    cluster = FakeCluster()
    with pytest.raises(Unreachable):
        run_on(cluster)
    assert cluster.calls == ["submit", "stop"]


def test_watching_somebody_elses_run_stops_nothing() -> None:
    cluster = FakeCluster("FAILED")
    assert command.watch(console(), Run("g1", "grpo", cluster, owns=False), [], stop=False) == 1  # type: ignore[arg-type]
    assert cluster.calls == []


def test_the_final_words_have_the_cause_and_the_last_lines() -> None:
    story = Story("g1")
    for record in views([exited("actor", 0, 1, "app_exit", code=1, stderr_tail="one\ntwo\n")]):
        story.feed(record)
    view = view_of("FAILED", "app_exit", "actor[0]: exited with code 1")
    assert final_words(view, story) == [
        "grpo FAILED (app_exit: actor[0]: exited with code 1)",
        "the last lines of stderr of the last member that died:",
        "one\ntwo",
    ]
    assert final_words(view_of("SUCCEEDED"), story) == ["grpo SUCCEEDED"]


def test_tolerated_exits_are_listed() -> None:
    group = dataclasses.replace(running(), state=GroupState.SUCCEEDED, ended_ms=9_000, tolerated=(("rollout", 1),))
    assert final_words(group_view(state_of(group), group, 9), Story("g1")) == ["grpo SUCCEEDED", "tolerated: rollout[1]"]


def test_a_coordinator_that_cannot_start_leaves_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()

    def refuse(_group: str) -> None:
        raise SetupError("no room for another process")

    monkeypatch.setattr(cluster, "coordinate", refuse)
    monkeypatch.setattr(command, "open_cluster", lambda *_: cluster)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    coordinated = Source(SOURCE.group.model_copy(update={"coordinator": gangflow.RLCoordinator()}))
    with pytest.raises(SetupError):
        command.run_group(console(), coordinated, None, "http://there", "local", False, [], False)
    assert cluster.calls == ["submit", "cancel"]
