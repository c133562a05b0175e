"""Faults on purpose: what is asked for is sent, or said not to have been."""

from __future__ import annotations

import signal

import pytest
from rich.console import Console

import gangflow
from gangflow.cli import running
from gangflow.cli.faults import Fault, check_faults, parse
from gangflow.cli.sources import Source
from gangflow.cli.watching import Watching
from gangflow.errors import NotFound, SpecError, Superseded

GROUP = gangflow.CoStartGroup(
    "demo", {"actor": gangflow.Job(["train"]), "rollout": gangflow.ReplicaSet(["serve"], replicas=2, ports=["http"])}
)


def test_words_become_faults() -> None:
    assert parse("rollout[1]@step=60:kill") == Fault("rollout", 1, signal.SIGKILL, step=60)
    assert parse("actor@after=1.5s:term") == Fault("actor", 0, signal.SIGTERM, after_s=1.5)


@pytest.mark.parametrize("text", ["rollout[0]", "rollout@stp=1:kill", "rollout@step=1:kil", "rollout@step=1.5:kill", ""])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(SpecError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "nearest"), [("rollout[2]@step=1:kill", ""), ("rolout@step=1:kill", "rollout"), ("actor[1]@step=1:kill", "")]
)
def test_a_slot_that_is_not_there_is_refused_before_anything_starts(
    text: str, nearest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a cluster was opened")

    monkeypatch.setattr(running, "open_cluster", never)
    with pytest.raises(SpecError) as caught:
        running.run_group(Console(), Source(GROUP), None, "", "local", False, [text], False)
    assert caught.value.problems[0].expected == "one of actor[0], rollout[0-1]"
    assert caught.value.problems[0].nearest == nearest
    check_faults([parse("rollout[1]@step=1:kill")], GROUP)


def test_a_detached_run_refuses_faults_that_nobody_would_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "open_cluster", lambda *_: pytest.fail("a cluster was opened"))
    with pytest.raises(SpecError, match="no --detach"):
        running.run_group(Console(), Source(GROUP), None, "", "local", False, ["actor@step=1:kill"], True)


class _Slot:
    incarnation = 3


class _View:
    document = None

    def slot(self, member: str, index: int) -> _Slot:
        return _Slot()


class _Run:
    """As much of a run as injecting a fault needs; its slot has no process for the first tries."""

    id, name = "g1", "demo"

    def __init__(self, refusals: list[Exception]) -> None:
        self.refusals = refusals
        self.sent: list[tuple[str, int, int, int]] = []
        self.client = self

    def status(self) -> _View:
        return _View()

    def signal(self, group: str, member: str, index: int, incarnation: int, number: int) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.sent.append((member, index, incarnation, number))


def test_a_fault_at_a_slot_without_a_process_waits_for_its_next_one() -> None:
    run = _Run([NotFound("it has no task"), Superseded("it is at 4")])
    watching = Watching(run, [Fault("rollout", 0, signal.SIGKILL, after_s=0.0)])  # type: ignore[arg-type]
    watching.story.running_ms = 1
    for left in (1, 1, 0):
        watching._inject()
        assert len(watching.pending) == left
    assert run.sent == [("rollout", 0, 3, signal.SIGKILL)]
    assert len(watching.fired) == 1
