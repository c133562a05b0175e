"""The recipe with TRL's trainer and real vLLM engines, killed on the way."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from gangflow.channel import CHECKPOINT, HEAD, Head
from gangflow.member.checkpoint import Checkpoint
from gangflow.member.ledger import Ledger
from gangflow.recipes.grpo.lm.build import build, cluster
from gangflow.recipes.grpo.lm.trl_settings import updates
from gangflow.runs import Run
from tests.engines import servers
from tests.engines.fault_world import config, quick_command
from tests.integration.live.cluster import Live, OwnRoot

STEPS = 8


def _told(run: Run) -> str:
    logs = "".join(run.logs("actor", stream="stderr"))[-3_000:]
    return f"{run.status().model_dump_json()[:2_000]}\n{logs}"


@pytest.mark.timeout(600)
def test_trl_trains_with_real_engines_and_goes_on_after_its_death(tiny_model: Path, tmp_path: Path) -> None:
    """Every sample is of the version that its step published; the engines say the same as TRL, to rounding."""
    chosen = config(
        tiny_model, quick_command(tmp_path), trainer="trl", steps=STEPS, prompts=8, checkpoint_every=2, evaluate_every=4,
        evaluate_prompts=16, epochs=2, max_drift=1e-4, probe_tolerance=1e-5, unhealthy_timeout="30s",
    )  # fmt: skip
    each = updates(chosen)  # Steps of TRL's in one of the recipe's.
    root = OwnRoot()
    live = Live(cluster(chosen), name="trl")
    try:
        run = live.run(build(chosen))

        def saved() -> Checkpoint | None:
            assert not run.status().terminal, _told(run)
            text = run.client.kv_get(run.id, CHECKPOINT).value
            return Checkpoint.parse(text) if text else None

        servers.until(lambda: (found := saved()) is not None and found.step >= 4 * each - 1, 300, lambda: _told(run))
        run.client.signal(run.id, "actor", 0, 1, signal.SIGKILL)
        view = run.wait(240, check=False)
        assert view.state == "SUCCEEDED", _told(run)
        result = json.loads(run.client.kv_get(run.id, "result").value or "{}")
        assert (result["steps"], result["incarnation"], result["held_out"]) == (STEPS, 2, 16)
        assert result["resumed_at"] >= 4
        assert result["samples"]["lost"] == result["samples"]["duplicates"] == result["samples"]["skipped"] == 0
        # Published was each step of each life, and at the end the final policy, which is measured by the engines themselves.
        written = [event for event in run.client.events(0, run.id, view.seq) if event.type == "ValueWritten"]
        heads = [Head.parse(event.data["value"]).weights for event in written if event.data["name"] == HEAD]
        assert [head.version for head in heads if head.actor_incarnation == 2] == list(
            range(result["resumed_at"] * each, STEPS * each + 1, each)
        )
        newest = Checkpoint.parse(run.client.kv_get(run.id, CHECKPOINT).value or "")
        ledger = Ledger.parse(Path(newest.ledger).read_text())
        assert newest.step == STEPS * each - 1
        assert all(ledger.finished(step) for step in range(0, STEPS * each, each))
        lines = [json.loads(line) for line in (Path(newest.path).parents[1] / "metrics.jsonl").read_text().splitlines()]
        drifts = [line["drift"] for line in lines if "drift" in line]
        assert len(drifts) >= STEPS
        assert 0 < max(drifts) < 1e-4
        assert {line["step"] for line in lines if "accuracy" in line} == {0, 4, STEPS}
    finally:
        live.clear()
        live.stop()
        root.close()
