"""RLHF with PPO, every member real: the reward model is trained, the policy learns by it, and who is killed comes back."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gangflow.channel import CHECKPOINT, HEAD, Head
from gangflow.member.checkpoint import Checkpoint
from gangflow.member.ledger import Ledger
from gangflow.recipes.rlhf_ppo import clerk
from gangflow.recipes.rlhf_ppo.build import Config, build, cluster
from gangflow.runs import Run
from tests.engines import servers
from tests.engines.fault_world import quick_command
from tests.integration.live.cluster import Live, OwnRoot

STEPS = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rlhf") / "clerk"
    clerk.make(folder, replace(clerk.CLERK, warm_steps=160))
    return folder


def _told(run: Run) -> str:
    logs = {member: "".join(run.logs(member, stream="stderr"))[-1_500:] for member in ("actor", "critic", "reward", "rollout")}
    judged = [event.data for event in run.client.events(0, run.id, run.status().seq) if event.type == "FailureJudged"]
    return f"{run.status().model_dump_json(exclude={'document'})[:2_000]}\n{judged}\n{logs}"


def _mean(lines: list[dict[str, Any]], key: str, steps: range) -> float:
    return sum(line[key] for line in lines if line["step"] in steps) / len(steps)


@pytest.mark.timeout(900)
def test_the_reward_model_and_the_policy_learn_whoever_is_killed(model: Path, tmp_path: Path) -> None:
    """The critic dies, then the reward model, then the actor; the run ends with the policy that they were all about."""
    config = Config(
        model=str(model), vllm=str(quick_command(tmp_path)), steps=STEPS, prompts=32, samples=2, pairs=1_200, reward_epochs=3,
        held_out_pairs=300, checkpoint_every=2, evaluate_every=8, evaluate_samples=2, learning_rate=4e-4, max_drift=1e-4,
        unhealthy_timeout="30s",
    )  # fmt: skip
    root = OwnRoot()
    spec = cluster(config)
    assert spec is not None
    live = Live(spec, name="rlhf")
    try:
        run = live.run(build(config))

        def until(reached: Callable[[Checkpoint], bool]) -> None:
            def look() -> bool:
                assert not run.status().terminal, _told(run)
                text = run.client.kv_get(run.id, CHECKPOINT).value
                return bool(text) and reached(Checkpoint.parse(text))

            servers.until(look, 400, lambda: _told(run))

        until(lambda saved: saved.step >= 1)
        run.client.signal(run.id, "critic", 0, 1, signal.SIGKILL)
        until(lambda saved: saved.step >= 5)
        run.client.signal(run.id, "reward", 0, 1, signal.SIGKILL)
        until(lambda saved: saved.step >= 9)
        run.client.signal(run.id, "actor", 0, 1, signal.SIGKILL)
        view = run.wait(400, check=False)
        assert view.state == "SUCCEEDED", _told(run)

        result = json.loads(run.client.kv_get(run.id, "result").value or "{}")
        assert (result["steps"], result["incarnation"]) == (STEPS, 2)
        assert result["resumed_at"] >= 10
        assert result["critic_differing"] == 0
        assert {slot.member: slot.incarnation for member in view.members for slot in member.slots if slot.index == 0} == {
            "actor": 2, "critic": 2, "rollout": 1, "reward": 2, "ref": 1,
        }  # fmt: skip
        assert result["samples"]["lost"] == result["samples"]["duplicates"] == result["samples"]["skipped"] == 0
        newest = Checkpoint.parse(run.client.kv_get(run.id, CHECKPOINT).value or "")
        ledger = Ledger.parse(Path(newest.ledger).read_text())
        assert newest.step == STEPS - 1
        assert all(ledger.finished(step) for step in range(STEPS))
        home = Path(newest.path).parents[1]
        lines = [json.loads(line) for line in (home / "metrics.jsonl").read_text().splitlines()]

        # The critic was brought to the actor's step in its first life; nobody trained the reward model twice.
        assert max(line.get("critic_brought", 0) for line in lines if line["incarnation"] == 1) == 1
        trained = [line for line in "".join(run.logs("reward", incarnation=2)).splitlines() if "step" in line]
        assert trained == []

        # Engines say what the trainer says, each version's probe was answered, and each step is of its own version.
        drifts = [line["drift"] for line in lines if "drift" in line]
        assert 0 < max(drifts) < 1e-4
        written = [event for event in run.client.events(0, run.id, view.seq) if event.type == "ValueWritten"]
        heads = [Head.parse(event.data["value"]) for event in written if event.data["name"] == HEAD]
        second = [head.weights.version for head in heads if head.weights.actor_incarnation == 2]
        assert second == list(range(result["resumed_at"], STEPS + 1))
        assert all(head.probe is not None for head in heads)

        # What was learned: by the reward model, by the policy, and in truth.
        judge = result["reward_model"]
        assert judge["accuracy"] > max(0.72, judge["accuracy_before"] + 0.15)
        kept = [line for line in {line["step"]: line for line in lines}.values() if line["step"]]
        first, last = range(1, 4), range(STEPS - 3, STEPS + 1)
        assert _mean(kept, "reward", last) > _mean(kept, "reward", first) + 0.4
        assert _mean(kept, "quality", last) > _mean(kept, "quality", first) + 0.1
        assert result["held_out_reward"] > result["first_held_out_reward"] + 0.3
    finally:
        live.clear()
        live.stop()
        root.close()
