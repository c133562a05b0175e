"""The recipe as it is run: an embedded XCE without Ray, a coordinator, five real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gangflow.recipes.grpo.actor import RESULT
from gangflow.recipes.grpo.build import build, cluster
from gangflow.recipes.grpo.config import Config
from gangflow.recipes.grpo.plot import read_metrics
from gangflow.runs import Run, launch
from tests.integration.live.cluster import until

# A cluster's processes are meant to outlive the objects that started them.
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <function Popen:pytest.PytestUnraisableExceptionWarning")

SMALL = Config(steps=200, prompts=16, samples=8)


@pytest.fixture
def _own_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Short: the agent's socket lies below it, and such paths are at most 107 characters long.
    root = tempfile.mkdtemp(prefix="gf-", dir="/tmp")
    monkeypatch.setenv("GANGFLOW_ROOT", root)
    yield
    shutil.rmtree(root, ignore_errors=True)


def _launch(config: Config) -> Run:
    return launch(build(config), cluster=cluster(config), runtime="local")


def _at(run: Run, step: int) -> None:
    """Wait until the actor has done so many steps."""
    for beat in run.client.follow_beats(run.id):
        if beat.member == "actor" and (beat.body.get("step") or 0) >= step:
            return


def _kill_at(run: Run, member: str, step: int) -> None:
    """SIGKILL slot 0 of the member once the actor has done so many steps."""
    _at(run, step)
    slot = next(slot for found in run.status().members if found.name == member for slot in found.slots if slot.index == 0)
    run.client.signal(run.id, member, 0, slot.incarnation, signal.SIGKILL)


def _ended(run: Run) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(result, metrics) of a run that succeeded."""
    view = run.wait()
    result = json.loads(run.client.kv_get(run.id, RESULT).value or "null")
    folder = Path(next(claim.path for claim in view.claims if claim.name == "ckpt"))
    assert json.loads((folder / "result.json").read_text()) == result
    return result, read_metrics(folder / "metrics.jsonl")


def _in_one_process(config: Config) -> str:
    """The fingerprint of the policy that the same configuration ends with when nothing is distributed."""
    settings = [f"{name}={getattr(config, name)}" for name in ("seed", "steps", "prompts", "samples")]
    outcome = subprocess.run(
        [sys.executable, "-m", "gangflow.recipes.grpo.alone", *settings],
        env={**os.environ, **build(config).environment},
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    return str(json.loads(outcome.stdout.splitlines()[-1])["policy"])


def _slot(run: Run, member: str) -> tuple[int, ...]:
    found = next(found for found in run.status().members if found.name == member)
    return tuple(slot.incarnation for slot in found.slots)


@pytest.mark.usefixtures("_own_root")
def test_a_killed_rollout_comes_back_with_new_weights_and_changes_nothing() -> None:
    """Scenarios 45, 48, 53: replaced, synchronised before it is asked, admitted again; no sample lost, none twice."""
    with _launch(SMALL) as run:
        _kill_at(run, "rollout", 20)
        result, metrics = _ended(run)
        assert _slot(run, "rollout") == (2, 1)
    makers = [entry["rollouts"] for entry in metrics]
    assert len(metrics) == SMALL.steps
    assert any("0/1" in made for made in makers)
    assert any("0/2" in made for made in makers), "it was admitted again"
    assert max(entry["drift"] for entry in metrics) <= 1e-5
    assert result["policy"] == _in_one_process(SMALL)
    assert (result["samples"]["lost"], result["samples"]["duplicates"], result["samples"]["skipped"]) == (0, 0, 0)
    assert result["samples"]["committed"] == SMALL.steps * SMALL.prompts * SMALL.samples


@pytest.mark.usefixtures("_own_root")
@pytest.mark.parametrize("member", ["actor", "reward", "ref"])
def test_a_killed_member_changes_nothing(member: str) -> None:
    """The actor resumes from its checkpoint; for reward and ref it waits."""
    config = SMALL.model_copy(update={"steps": 80})
    with _launch(config) as run:
        _kill_at(run, member, 25)
        result, metrics = _ended(run)
        assert _slot(run, member) == (2,)
    assert [entry["step"] for entry in metrics] == list(range(1, config.steps + 1))
    assert result["policy"] == _in_one_process(config)
    assert result["samples"]["lost"] == 0
    assert result["incarnation"] == (2 if member == "actor" else 1)


@pytest.mark.usefixtures("_own_root")
def test_a_run_that_is_scaled_suspended_and_restarted_ends_with_the_same_policy() -> None:
    """A rollout less and one more again, then nothing of it for a while, then all of it anew: coordinator, trainer and rollouts
    find together again each time, and not one sample is another."""
    config = SMALL.model_copy(update={"steps": 160})
    with _launch(config) as run:
        for step, rollouts in ((10, 1), (40, 2)):
            _at(run, step)
            change = run.scale(rollout=rollouts, wait=True)
            assert change is not None
            assert change.state == "DONE"
        _at(run, 70)
        run.suspend("somebody needs it more")
        until(lambda: run.status().state == "SUSPENDED", lambda: run.status())
        run.resume()
        until(lambda: run.status().state == "RUNNING", lambda: run.status())
        _at(run, 100)
        run.restart(message="once more")
        result, metrics = _ended(run)
        assert _slot(run, "actor") == (3,)
        assert run.status().epoch == 3
    assert [entry["step"] for entry in metrics] == list(range(1, config.steps + 1))
    assert result["policy"] == _in_one_process(config)
    assert (result["samples"]["lost"], result["samples"]["duplicates"]) == (0, 0)


@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.usefixtures("_own_root")
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fault", [None, 60], ids=["whole", "killed"])
def test_it_learns_with_and_without_a_kill(seed: int, fault: int | None) -> None:
    config = Config(seed=seed)
    with _launch(config) as run:
        if fault is not None:
            _kill_at(run, "rollout", fault)
        result, _ = _ended(run)
        assert _slot(run, "rollout") == (1 if fault is None else 2, 1)
    assert result["accuracy"] >= 0.9
    assert result["policy"] == _in_one_process(config)
