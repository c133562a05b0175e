"""Rollouts that run out of restarts: the run goes on with those that are left, and fails with the reason when none is."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from gangflow.recipes.grpo.build import build, cluster
from gangflow.recipes.grpo.config import Config
from gangflow.runs import Run
from tests.integration.live.cluster import Live, OwnRoot, ended, incarnations, step, until

CONFIG = Config(steps=5_000, prompts=8, samples=4, max_restarts=1, quorum_timeout="3s", evaluate_every=10_000)


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


def _trains(run: Run) -> None:
    """Wait until the actor has done another two steps."""
    before = step(run)
    until(lambda: run.status().terminal or step(run) >= before + 2, lambda: run.status())
    assert not run.status().terminal, run.status()


def _kill(live: Live, run: Run, index: int, incarnation: int) -> None:
    """SIGKILL that incarnation of a rollout, once it is READY."""

    def ready() -> bool:
        slot = run.status().slot("rollout", index)
        return (slot.incarnation, slot.state) == (incarnation, "READY")

    until(ready, lambda: run.status())
    live.client.signal(run.id, "rollout", index, incarnation, signal.SIGKILL)


def test_rollouts_over_their_budget_are_done_without_until_none_is_left(live: Live) -> None:
    """Scenarios 49, 50 and 53: each rollout is restarted once, then given up; the run goes on with the other one; when that is
    given up as well, the group FAILED for want of a quorum instead of waiting for ever, and nothing of it runs on."""
    run = live.run(build(CONFIG))
    _trains(run)
    _kill(live, run, 0, 1)
    _kill(live, run, 0, 2)
    until(lambda: run.status().slot("rollout", 0).state == "RETIRED", lambda: run.status())
    _trains(run)
    assert incarnations(run.status()) == {"actor": (1,), "rollout": (2, 1), "reward": (1,), "ref": (1,)}
    _kill(live, run, 1, 1)
    _kill(live, run, 1, 2)
    view = ended(run)
    assert (view.state, view.cause) == ("FAILED", "no_quorum")
    assert "0 of at least 1 rollouts eligible for 3s" in view.message
    assert incarnations(view) == {"actor": (1,), "rollout": (2, 2), "reward": (1,), "ref": (1,)}
    assert {slot.state for slot in view.member("rollout").slots} == {"RETIRED"}
    until(lambda: not live.coordinators(run.id), "its coordinator ends with it")
