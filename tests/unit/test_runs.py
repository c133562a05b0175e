"""`launch` and `attach`: what is started, what is submitted, and what is left when something goes wrong."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gangflow as gf
from gangflow import clusters, runs
from gangflow.errors import NotFound, SetupError, SpecError, Unreachable
from gangflow.home import Home, new_home
from gangflow.xce.rest.messages import Done, EventView, Submitted
from gangflow.xce.rest.schema import GroupView
from tests.unit.cli.test_running import view_of

GROUP = gf.CoStartGroup("mine", {"a": gf.Job(["train"]), "b": gf.Job(["serve"], cwd="/srv")})


class FakeCluster:
    """A cluster whose client says what a test wants it to."""

    name = "fake"

    def __init__(self, *states: str) -> None:
        self.states = list(states) or ["RUNNING"]
        self.submitted: list[gf.CoStartGroup] = []
        self.calls: list[str] = []
        self.fails: dict[str, Exception] = {}

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails[name]

    def client(self) -> FakeCluster:
        return self

    def coordinate(self, group: str) -> None:
        self._call(f"coordinate {group}")

    def stop(self) -> None:
        self._call("stop")

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...

    def submit(self, group: gf.CoStartGroup) -> Submitted:
        self._call("submit")
        self.submitted.append(group)
        return Submitted(seq=1, id="g1")

    def group(self, name: str) -> GroupView:
        """The next state at each look; the last one stays."""
        if name not in {"g1", "grpo", "mine"}:
            raise NotFound(f"no group {name!r}")
        return view_of(self.states.pop(0) if len(self.states) > 1 else self.states[0], "app_exit", "a[0]: code 1")

    def cancel(self, group: str) -> Done:
        self._call("cancel")
        self.states = ["CANCELLED"]
        return Done(seq=2)

    def events(self, **_: Any) -> Any:
        for seq in range(10):
            yield EventView(seq=seq, at_ms=1, type="GroupChanged" if seq % 2 else "TaskMoved", group="g1", data={})
        raise AssertionError("nobody stopped listening")


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """The cluster that `launch` starts."""
    cluster = FakeCluster()
    monkeypatch.setattr(clusters, "own_cluster", lambda *_, **__: cluster)
    monkeypatch.setattr(clusters, "join_cluster", lambda *_, **__: pytest.fail("nothing was to be joined"))
    return cluster


def test_members_run_where_they_were_submitted_from_unless_they_say_where(
    own: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = runs.launch(GROUP)
    (sent,) = own.submitted
    assert {name: member.cwd for name, member in sent.members.items()} == {"a": str(tmp_path), "b": "/srv"}
    assert (run.id, run.name, own.calls) == ("g1", "mine", ["submit"])
    assert GROUP.members["a"].cwd == "", "the caller's group is as it was"


def test_a_job_alone_is_submitted_as_a_plain_one(own: FakeCluster, tmp_path: Path) -> None:
    run = runs.launch(gf.Job(["/usr/bin/Python3.11", "train.py"], cwd="/srv"))
    assert run.name == "python3"
    named = runs.launch(gf.ReplicaSet(["./9"], cwd="/srv"), name="serve")
    assert named.name == "serve"
    assert runs.launch(gf.Job(["./9"], cwd="/srv")).name == "job"
    assert [gf.dump(group) for group in own.submitted[:2]] == [
        "name: python3\njob:\n  command: [/usr/bin/Python3.11, train.py]\n  cwd: /srv\n",
        "name: serve\nreplica_set:\n  command: [./9]\n  cwd: /srv\n",
    ]
    with pytest.raises(SpecError, match="no `name`: the group's own is 'mine'"):
        runs.launch(GROUP, name="other")


def test_a_coordinator_is_submitted_with_the_group_and_started(own: FakeCluster) -> None:
    group = gf.CoStartGroup("rl", {"actor": gf.Job(["train"]), "rollout": gf.ReplicaSet(["serve"], replicas=2, ports=["http"])})
    runs.launch(group, coordinator=gf.RLCoordinator(min_rollouts=2))
    (sent,) = own.submitted
    assert sent.coordinator == gf.RLCoordinator(min_rollouts=2)
    assert own.calls == ["submit", "coordinate g1"]


def test_a_coordinator_that_does_not_fit_the_group_is_refused(own: FakeCluster) -> None:
    with pytest.raises(SpecError):
        runs.launch(GROUP, coordinator=gf.RLCoordinator())
    assert own.submitted == []


@pytest.mark.parametrize("error", [SpecError([]), Unreachable("away"), KeyboardInterrupt()])
def test_a_group_that_is_not_taken_leaves_no_cluster(own: FakeCluster, error: Exception) -> None:
    own.fails["submit"] = error
    with pytest.raises(type(error)):
        runs.launch(GROUP)
    assert own.calls == ["submit", "stop"]


def test_a_joined_cluster_is_never_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster("RUNNING", "SUCCEEDED")
    asked: list[str] = []
    monkeypatch.setattr(clusters, "join_cluster", lambda address, **_: asked.append(address) or cluster)
    with runs.launch(GROUP, address="http://there") as run:
        assert run.wait().state == "SUCCEEDED"
    assert asked == ["http://there"]
    cluster.fails["submit"] = SetupError("no")
    with pytest.raises(SetupError):
        runs.launch(GROUP, address="http://there")
    assert "stop" not in cluster.calls


def test_wait_returns_what_the_group_became(own: FakeCluster) -> None:
    own.states = ["PENDING", "RUNNING", "SUCCEEDED"]
    assert runs.launch(GROUP).wait().state == "SUCCEEDED"


def test_wait_raises_what_went_wrong_unless_it_may_not(own: FakeCluster) -> None:
    own.states = ["RUNNING", "FAILED"]
    run = runs.launch(GROUP)
    with pytest.raises(gf.GroupEnded) as ended:
        run.wait()
    assert (ended.value.state, ended.value.cause, ended.value.group) == ("FAILED", "app_exit", "g1")
    assert ended.value.message == "group 'mine' ended FAILED (app_exit: a[0]: code 1)"
    assert run.wait(check=False).state == "FAILED"


def test_leaving_the_block_leaves_nothing(own: FakeCluster) -> None:
    with runs.launch(GROUP):
        pass
    assert own.calls == ["submit", "cancel", "stop"]


def test_the_error_inside_the_block_is_the_one_that_is_seen(own: FakeCluster) -> None:
    own.fails["cancel"] = Unreachable("away")
    with pytest.raises(ZeroDivisionError), runs.launch(GROUP):
        raise ZeroDivisionError
    assert own.calls == ["submit", "cancel", "stop"]


def test_an_error_of_the_end_itself_is_seen_too(own: FakeCluster) -> None:
    own.fails["cancel"] = Unreachable("away")
    with pytest.raises(Unreachable), runs.launch(GROUP):
        pass
    assert own.calls[-1] == "stop"


# --- attach


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Home]:
    """Makes homes whose controller is this process, with the groups that they know."""
    monkeypatch.setenv("GANGFLOW_ROOT", str(tmp_path))
    monkeypatch.delenv("GANGFLOW_HOME", raising=False)
    known: dict[Path, FakeCluster] = {}

    def make(cluster: FakeCluster) -> Home:
        home = new_home("kept")
        card = {"url": "http://x", "pid": os.getpid(), "started_ms": time.time_ns() // 1_000_000}
        (home.path / "controller.json").write_text(json.dumps(card))
        known[home.path] = cluster
        return home

    monkeypatch.setattr(Home, "client", lambda home, patience=15.0, token="": known[home.path])
    monkeypatch.setattr(clusters, "join_cluster", lambda address, **_: known[Path(address)])
    return make


class _Empty(FakeCluster):
    def group(self, name: str) -> GroupView:
        raise NotFound(f"no group {name!r}")


class _Away(FakeCluster):
    def group(self, name: str) -> GroupView:
        raise Unreachable("nobody answers")


def test_attach_finds_the_only_one(kept: Callable[..., Home]) -> None:
    kept(_Empty())
    kept(_Away())
    mine = FakeCluster()
    kept(mine)
    run = runs.attach("mine")
    assert (run.id, run.cluster) == ("g1", mine)
    run.close()
    assert mine.calls == [], "somebody else keeps it"


def test_attach_names_the_places_when_there_are_several(kept: Callable[..., Home]) -> None:
    places = [kept(FakeCluster()) for _ in range(2)]
    with pytest.raises(NotFound, match="2 clusters have a group 'mine'") as found:
        runs.attach("mine")
    assert all(str(home.path) in found.value.message for home in places)
    assert runs.attach("mine", address=str(places[1].path)).id == "g1"


def test_attach_says_that_there_is_none(kept: Callable[..., Home]) -> None:
    with pytest.raises(NotFound, match="no live group 'mine'"):
        runs.attach("mine")
    kept(_Empty())
    with pytest.raises(NotFound, match="no live group 'mine'"):
        runs.attach("mine")


def test_attach_passes_by_what_is_dead(kept: Callable[..., Home]) -> None:
    home = kept(FakeCluster())
    (home.path / "controller.json").write_text(json.dumps({"url": "http://x", "pid": 2**22 + 1, "started_ms": 1}))
    with pytest.raises(NotFound):
        runs.attach("mine")
