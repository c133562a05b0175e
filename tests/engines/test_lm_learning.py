"""GRPO on a language model with real vLLM engines: it learns, synchronously and asynchronously, and its books are exact."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gangflow.channel import CHECKPOINT, HEAD, Head
from gangflow.member.checkpoint import Checkpoint
from gangflow.member.ledger import Ledger
from gangflow.recipes.grpo.lm.actor import RESULT
from gangflow.recipes.grpo.lm.build import build, cluster
from gangflow.recipes.grpo.lm.config import LmConfig
from gangflow.recipes.grpo.plot import read_metrics
from gangflow.runs import Run
from tests.engines.fault_world import quick_command
from tests.integration.live.cluster import Live, OwnRoot

STEPS = 40
RISE = 0.2
"""Of the held-out accuracy, from a third; measured were 0.30 and more."""
ROUNDING, TYPICAL = 1e-4, 1e-6
"""Largest and mean |trainer − engine| of any step's tokens, a few thousand in each: both compute in float32."""


@contextmanager
def _ended(config: LmConfig) -> Iterator[tuple[Run, dict[str, Any], list[dict[str, Any]], Ledger]]:
    """The group has run to its end: its run, its result, its metrics by step, the ledger of its last checkpoint."""
    root = OwnRoot()
    live = Live(cluster(config), name="lm")
    try:
        run = live.run(build(config))
        view = run.wait(1_000, check=False)
        assert view.state == "SUCCEEDED", f"{view.cause} {view.message} {''.join(run.logs('actor', stream='stderr'))[-3_000:]}"
        newest = Checkpoint.parse(run.client.kv_get(run.id, CHECKPOINT).value or "")
        assert newest.step == config.steps - 1
        folder = Path(newest.path).parents[1]
        result = json.loads(run.client.kv_get(run.id, RESULT).value or "")
        assert json.loads((folder / "result.json").read_text()) == result
        yield run, result, read_metrics(folder / "metrics.jsonl"), Ledger.parse(Path(newest.ledger).read_text())
    finally:
        live.clear()
        live.stop()
        root.close()


def _config(model: Path, folder: Path, **more: Any) -> LmConfig:
    vllm = str(quick_command(folder))
    return LmConfig(model=str(model), vllm=vllm, steps=STEPS, checkpoint_every=20, evaluate_every=20, **more)


def _exact(config: LmConfig, result: dict[str, Any], ledger: Ledger) -> None:
    """Every sample that was asked for was committed once, none was lost, and the checkpoint knows of each step."""
    books = result["samples"]
    assert books["committed"] == config.steps * config.prompts * config.samples
    assert books["lost"] == books["duplicates"] == books["skipped"] == 0
    assert all(ledger.finished(step) for step in range(config.steps))
    assert not ledger.finished(config.steps)


@pytest.mark.timeout(1200)
def test_it_learns_synchronously_and_engines_agree_with_the_trainer(tiny_model: Path, tmp_path: Path) -> None:
    config = _config(tiny_model, tmp_path, probe_tolerance=ROUNDING)
    with _ended(config) as (run, result, metrics, ledger):
        assert result["accuracy"] >= result["first_accuracy"] + RISE
        _exact(config, result, ledger)
        steps = [entry for entry in metrics if entry["step"]]
        assert [entry["step"] for entry in steps] == list(range(1, STEPS + 1))
        assert 0 < max(entry["drift"] for entry in steps) <= ROUNDING
        assert max(entry["drift_mean"] for entry in steps) <= TYPICAL
        assert all(entry["lag"] == 0 and entry["mixed"] == 0 for entry in steps)
        assert all(entry["importance"] == pytest.approx(1.0, abs=1e-5) for entry in steps)
        assert sum(entry["exact"] for entry in steps[-5:]) > sum(entry["exact"] for entry in steps[:5])
        # Each version was published with a probe, and both engines had a part in the work.
        events = run.client.events(0, run.id, run.status().seq)
        heads = [Head.parse(e.data["value"]) for e in events if e.type == "ValueWritten" and e.data["name"] == HEAD]
        assert [head.weights.version for head in heads] == list(range(STEPS + 1))
        assert all(head.probe is not None for head in heads)
        assert {maker for entry in steps for maker in entry["rollouts"]} == {"0/1", "1/1"}


@pytest.mark.timeout(1200)
def test_it_learns_from_samples_made_meanwhile_by_older_weights(tiny_model: Path, tmp_path: Path) -> None:
    """Samples lag one version at most; those that go on over a push are kept; importance is corrected from their logprobs."""
    config = _config(tiny_model, tmp_path, max_staleness=1, pause="keep")
    with _ended(config) as (_, result, metrics, ledger):
        assert result["accuracy"] >= result["first_accuracy"] + RISE
        _exact(config, result, ledger)
        steps = [entry for entry in metrics if entry["step"]]
        assert all(0 <= entry["lag"] <= 1 for entry in steps)
        assert sum(entry["lag"] for entry in steps) / STEPS > 0.5
        assert any(abs(entry["importance"] - 1) > 1e-4 for entry in steps)
        assert all(abs(entry["importance"] - 1) < 0.2 for entry in steps)
