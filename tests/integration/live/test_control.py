"""A training run whose controller and coordinator are killed while it trains: nobody else notices."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator

import pytest

from gangflow.channel import ELIGIBLE
from gangflow.clusters import start_cluster
from gangflow.local import start_coordinator
from gangflow.recipes.grpo.build import build, cluster
from gangflow.recipes.grpo.config import Config
from gangflow.runs import Run
from tests.integration.live.cluster import Live, OwnRoot, ended, incarnations, step, until

CONFIG = Config(steps=120, prompts=8, samples=4, checkpoint_every=10, evaluate_every=1000)
UNTOUCHED = {"actor": (1,), "rollout": (1, 1), "reward": (1,), "ref": (1,)}


@pytest.fixture(scope="module")
def kept() -> Iterator[Live]:
    """Four virtual hosts that the recipe's group fills."""
    made = OwnRoot()
    try:
        live = Live(cluster(CONFIG))
        yield live
        live.stop()
    finally:
        made.close()


def _reach(run: Run, wanted: int) -> int:
    """Wait until the actor has done so many steps."""

    def look() -> int:
        assert not run.status().terminal, run.status()
        return now if (now := step(run)) >= wanted else 0

    return until(look, lambda: run.status())


def _went_on_untouched(live: Live, run: Run) -> dict[str, object]:
    """The run succeeded, and no member was restarted by it; returns its result."""
    view = ended(run)
    assert view.state == "SUCCEEDED", view
    assert (incarnations(view), view.epoch) == (UNTOUCHED, 1)
    assert sum(member.restarts for member in view.members) == 0
    result = json.loads(live.client.kv_get(run.id, "result").value or "{}")
    assert (result["steps"], result["incarnation"]) == (CONFIG.steps, 1)
    assert (result["samples"]["lost"], result["samples"]["duplicates"]) == (0, 0)
    return dict(result)


def test_a_controller_that_is_killed_again_and_again_touches_no_member(live: Live) -> None:
    """Scenarios 77 and 84: SIGKILL while the group starts and three times while it trains, each time under its supervisor:
    the same address, no member restarted, training goes on."""
    run = live.run(build(CONFIG))
    url, term = live.home.url, live.client.healthz().term
    faults = 0
    for wanted in (0, 10, 30, 50):
        before = _reach(run, wanted) if wanted else 0
        killed = live.controller()
        os.kill(killed, signal.SIGKILL)
        faults += 1
        until(lambda term=term, faults=faults: live.client.healthz().term == term + faults, "the next controller")
        assert live.controller() != killed
        _reach(run, before + 1)
    assert faults == 4
    assert live.home.url == url, "members know this address"
    _went_on_untouched(live, run)


def test_a_coordinator_that_is_killed_is_followed_by_another(live: Live) -> None:
    """Scenario 84: its supervisor starts it again, it takes the next term, and the run goes on."""
    run = live.run(build(CONFIG))
    _reach(run, 10)
    (first,) = live.coordinators(run.id)
    os.kill(first, signal.SIGKILL)
    until(lambda: run.status().coordinator_term == 2, "the next term")
    (second,) = until(lambda: live.coordinators(run.id), "the next coordinator")
    assert second != first
    _reach(run, step(run) + 10)
    _went_on_untouched(live, run)
    until(lambda: not live.coordinators(run.id), "it ends with its group")


def test_of_two_coordinators_the_older_one_is_fenced(live: Live) -> None:
    """Scenario 80: a second coordinator is started while the first is well: the first stops for good, the run goes on."""
    run = live.run(build(CONFIG))
    _reach(run, 10)
    (first,) = live.coordinators(run.id)
    live.client.signal(run.id, "actor", 0, 1, signal.SIGSTOP)  # So that the run does not end meanwhile.
    start_coordinator(run.id, live.home.url, live.home.token, live.home.path)
    (second,) = until(lambda: [pid for pid in live.coordinators(run.id) if pid != first], "the second one")
    until(lambda: live.coordinators(run.id) == [second], "the first one is gone")
    live.client.signal(run.id, "actor", 0, 1, signal.SIGCONT)
    _reach(run, step(run) + 10)
    assert live.coordinators(run.id) == [second], "nobody started the first one again"
    assert run.status().coordinator_term == 2
    assert json.loads(live.client.kv_get(run.id, ELIGIBLE).value or "{}")["term"] == 2
    _went_on_untouched(live, run)
    (refused,) = (line for line in (live.home.path / f"coordinator-{run.id}.log").read_text().splitlines() if "ERROR" in line)
    assert re.search(r"newer coordinator has term 2|term 1 is not the newest", refused), "by a record or by a refused call"


def test_everything_but_the_members_is_killed_and_started_again_later(live: Live) -> None:
    """Scenario 77: controller, coordinator and both supervisors go; a cluster that is started on the journal later finds the
    run as it is, gives it a coordinator, and training goes on."""
    run = live.run(build(CONFIG))
    _reach(run, 10)
    for pid in (live.supervisor(), *live.supervisors_of(run.id), live.controller(), *live.coordinators(run.id)):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not live.home.alive, "no controller")
    until(lambda: not live.coordinators(run.id), "no coordinator")
    start_cluster(live.home, None, runtime="local")
    until(lambda: run.status().coordinator_term == 2, "a coordinator")
    _reach(run, step(run) + 10)
    _went_on_untouched(live, run)


def test_a_start_on_the_journal_beside_a_coordinator_that_lives(live: Live) -> None:
    """Scenario 80: the controller and its supervisor go, the coordinator stays; the start brings another: one is left."""
    run = live.run(build(CONFIG))
    _reach(run, 10)
    (first,) = live.coordinators(run.id)
    os.kill(live.supervisor(), signal.SIGKILL)
    until(lambda: not live.home.alive, "the controller ended with its supervisor")
    start_cluster(live.home, None, runtime="local")
    until(lambda: run.status().coordinator_term == 2 and len(live.coordinators(run.id)) == 1, "one coordinator")
    assert live.coordinators(run.id) != [first]
    _reach(run, step(run) + 10)
    _went_on_untouched(live, run)


def test_a_cluster_that_is_stopped_leaves_no_coordinator_that_waits_for_it() -> None:
    """One that never heard of its group's end (here it stands still meanwhile) would ask for XCE for an hour."""
    made = OwnRoot()
    try:
        live = Live(cluster(CONFIG))
        run = live.run(build(CONFIG))
        pid = until(lambda: next(iter(live.coordinators(run.id)), 0), "no coordinator")
        os.kill(pid, signal.SIGSTOP)
        live.clear()
        live.stop()
        assert not live.coordinators(run.id)
        assert not live.supervisors_of(run.id)
    finally:
        made.close()
