"""The trainer's loop against real reward and reference servers and engines in this process; XCE is played."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gangflow.member.failures import PolicyMismatch
from gangflow.member.samples import Counters, PromptSamples, Sample, SampleId
from gangflow.recipes.grpo import exchange, ref, reward
from gangflow.recipes.grpo.actor import RESULT, Trainer
from gangflow.recipes.grpo.build import CLAIM
from gangflow.recipes.grpo.config import Config
from gangflow.recipes.grpo.plot import read_metrics
from gangflow.recipes.grpo.policy import Policy
from gangflow.recipes.services.serving import JsonServer

CONFIG = Config(steps=12, prompts=8, samples=4, checkpoint_every=5, evaluate_every=4)


class Killed(BaseException):
    """The actor's process is gone at this point."""


@dataclass
class Group:
    """What outlives an incarnation of the actor: the claim, the key-values, the servers."""

    folder: Path
    url: str
    checkpoint: Any = None
    values: dict[str, str] = field(default_factory=dict)
    diverged: list[str] = field(default_factory=list)
    lives: int = 0

    def context(self, **play: Any) -> PlayedContext:
        self.lives += 1
        return PlayedContext(self, self.lives, **play)


class PlayedContext:
    """Plays `gangflow.context()`: two engines that serve what was published last, by path."""

    def __init__(self, group: Group, incarnation: int, kill_at: int = -1, skip: int = -1, serve: Policy | None = None) -> None:
        self.claims = {CLAIM: str(group.folder)}
        self.incarnation = incarnation
        self.group = "g1"
        self.client = SimpleNamespace(kv_put=lambda _, name, value: group.values.__setitem__(name, value))
        self.weights = SimpleNamespace(publish=self._publish)
        self.rollouts = SimpleNamespace(generate=self._generate, counters=Counters())
        self.published: list[int] = []
        self.beats: list[dict[str, Any]] = []
        self._group, self._kill_at, self._skip, self._serve = group, kill_at, skip, serve

    def span(self, _name: str, **_attributes: object) -> AbstractContextManager[None]:
        return nullcontext()

    def endpoints(self, member: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(url=self._group.url)]

    def heartbeat(self, **fields: Any) -> None:
        self.beats.append(fields)

    def resume(self) -> Any:
        return self._group.checkpoint

    def checkpoint(self, step: int, path: Path) -> None:
        self._group.checkpoint = SimpleNamespace(step=step, path=str(path))

    def diverged(self, message: str) -> None:
        self._group.diverged.append(message)
        raise PolicyMismatch(message)

    def _publish(self, version: int, path: Path) -> None:
        assert Path(path).exists()
        self.published.append(version)
        self._engine = self._serve or Policy.load(path)

    def _generate(self, prompts: Sequence[Any], samples: int, *, step: int, chunk: int) -> list[PromptSamples]:
        assert self.published[-1] == step, "samples are asked for with the newest weights published"
        if step == self._kill_at:
            raise Killed
        made: list[PromptSamples] = []
        for number, prompt in enumerate(prompts):
            outputs = exchange.answer(self._engine, [json.loads(json.dumps(prompt))] * samples, range(samples))
            ids = [SampleId("r", f"{step}/{number}", index) for index in range(samples)]
            who = number // chunk % 2
            kept = tuple(Sample(name, output, None, who, 1, 1) for name, output in zip(ids, outputs, strict=True))
            skipped = number == self._skip
            made.append(PromptSamples(number, prompt, () if skipped else kept, "broken" if skipped else ""))
        return made


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    answers = {"/score": reward.score, "/logprobs": ref.judge(Policy.fresh(CONFIG.seed))}
    with JsonServer("127.0.0.1", 0, answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Group(tmp_path, server.url)
        server.shutdown()
        thread.join()


def _run(context: PlayedContext, config: Config = CONFIG) -> dict[str, Any]:
    trainer = Trainer(config, context)  # type: ignore[arg-type]
    try:
        return trainer.run()
    finally:
        trainer.judges.close()


def test_a_run_leaves_its_metrics_and_result(group: Group) -> None:
    context = group.context()
    result = _run(context)
    assert context.published == list(range(12))
    metrics = read_metrics(group.folder / "metrics.jsonl")
    assert [entry["step"] for entry in metrics] == list(range(1, 13))
    assert [entry["step"] for entry in metrics if entry["accuracy"] is not None] == [4, 8, 12]
    assert all(entry["drift"] == 0.0 for entry in metrics)
    assert metrics[0]["rollouts"] == {"0/1": {"samples": 16, "drift": 0.0}, "1/1": {"samples": 16, "drift": 0.0}}
    assert json.loads((group.folder / "result.json").read_text()) == result == json.loads(group.values[RESULT])
    assert result["steps"] == 12
    assert result["accuracy"] == metrics[-1]["accuracy"]
    assert context.beats[-1]["step"] == 12
    assert group.checkpoint.step == 11


def test_a_killed_actor_ends_as_one_that_was_not(group: Group, tmp_path: Path) -> None:
    """Its successor publishes the checkpoint's weights before it asks for samples, and the run is the same to the bit."""
    expected = _run(Group(tmp_path / "other", group.url).context())
    with pytest.raises(Killed):
        _run(group.context(kill_at=8))
    assert group.checkpoint.step == 4
    second = group.context()
    result = _run(second)
    assert second.published == list(range(5, 12))
    assert (result["resumed_at"], result["incarnation"]) == (5, 2)
    assert result["policy"] == expected["policy"]
    assert result["accuracy"] == expected["accuracy"]
    metrics = read_metrics(group.folder / "metrics.jsonl")
    assert [entry["incarnation"] for entry in metrics] == [1] * 5 + [2] * 7


def test_an_actor_killed_before_its_first_step_begins_anew(group: Group) -> None:
    with pytest.raises(Killed):
        _run(group.context(kill_at=0))
    assert group.checkpoint.step == -1
    assert _run(group.context())["resumed_at"] == 0


def test_an_actor_killed_after_its_last_step_only_tells_the_result(group: Group) -> None:
    first = _run(group.context())
    second = group.context()
    assert _run(second)["policy"] == first["policy"]
    assert second.published == []


def test_a_skipped_prompt_is_left_out_and_never_scored(group: Group) -> None:
    _run(group.context(skip=3))
    made = [entry["rollouts"] for entry in read_metrics(group.folder / "metrics.jsonl")]
    assert all(sum(part["samples"] for part in entry.values()) == 7 * 4 for entry in made)


def test_an_engine_with_other_weights_ends_the_run(group: Group) -> None:
    with pytest.raises(PolicyMismatch):
        _run(group.context(serve=Policy.fresh(99)))
    assert "differ by" in group.diverged[0]
    assert group.checkpoint.step == -1


def test_a_reference_of_another_seed_ends_the_run(group: Group) -> None:
    with pytest.raises(PolicyMismatch):
        _run(group.context(), Config(**{**CONFIG.model_dump(mode="json"), "seed": 1}))
    assert "ref serves the policy" in group.diverged[0]


def test_old_weights_and_checkpoints_are_deleted_as_new_ones_come(group: Group) -> None:
    _run(group.context())
    assert len(list((group.folder / "weights").iterdir())) == 4
    assert [path.name for path in sorted((group.folder / "checkpoints").glob("*.npz"))] == [
        "step-000010-i1.npz",
        "step-000012-i1.npz",
    ]
