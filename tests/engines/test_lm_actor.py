"""The actor's loop on a language model: verifier and reference are real servers, rollouts sample from what was published."""

from __future__ import annotations

import errno
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gangflow.channel import FAILURE
from gangflow.errors import Problem, SpecError
from gangflow.member.failures import PolicyMismatch
from gangflow.recipes.grpo.lm import actor
from gangflow.recipes.grpo.lm.actor import RESULT, Trainer, lead
from gangflow.recipes.grpo.lm.config import LmConfig
from gangflow.recipes.grpo.lm.learner import Learner
from gangflow.recipes.grpo.plot import read_metrics
from gangflow.recipes.lm import model as models
from gangflow.recipes.lm import problems, reference, verifier
from gangflow.recipes.lm.problems import BadPrompt
from gangflow.recipes.lm.ranks import Team
from gangflow.recipes.services import disk
from gangflow.recipes.services.disk import DiskFull
from gangflow.recipes.services.rules import WRONG_POLICY
from gangflow.recipes.services.serving import JsonServer
from gangflow.testing import Ask, FakeContext, RolloutFailed
from tests.engines.broken import broken

STEPS = 4
CONFIG = LmConfig(
    steps=STEPS, prompts=3, samples=2, max_tokens=5, checkpoint_every=2, evaluate_every=2, evaluate_prompts=3, patience="20s"
)  # type: ignore[arg-type]


@dataclass
class Rollouts:
    """Samples from the folder that was published under the version that a rollout carries."""

    paths: dict[int, str] = field(default_factory=dict)
    off: float = 0.0
    """Added to every log-probability that it reports."""
    skip: set[str] = field(default_factory=set)
    """Sample ids that cannot be made."""
    _loaded: dict[str, Any] = field(default_factory=dict)

    def __call__(self, ask: Ask) -> Any:
        if ask.sample_id.partition("/")[2] in self.skip:
            raise RolloutFailed("data", "a prompt that cannot be answered")
        assert ask.weights is not None
        path = self.context_paths()[(ask.weights.actor_incarnation, ask.weights.version)]
        if path not in self._loaded:
            self._loaded = {path: models.load(path)}
        model = self._loaded[path]
        generator = torch.Generator().manual_seed(
            int(ask.prompt.get("seed", 0)) % 2**31 + int(ask.sample_id.rpartition("/")[2])
        )
        tokens, made, said = list(ask.prompt["token_ids"]), [], []
        while len(made) < ask.params["max_tokens"]:
            with torch.no_grad():
                scores = model(input_ids=torch.tensor([[*tokens, *made]])).logits[0, -1].log_softmax(-1)
            greedy = ask.params["temperature"] == 0
            token = int(scores.argmax()) if greedy else int(torch.multinomial(scores.exp(), 1, generator=generator))
            made.append(token)
            said.append(float(scores[token]) + self.off)
            if token in ask.params["stop_token_ids"]:
                break
        reason = "stop" if made[-1] in ask.params["stop_token_ids"] else "length"
        return {
            "token_ids": made, "logprobs": said, "finish_reason": reason, "versions": [[ask.weights.version, 0, len(made)]]
        }  # fmt: skip

    def context_paths(self) -> dict[tuple[int, int], str]:
        return {(head.weights.actor_incarnation, head.weights.version): head.path for head in self.context.published}

    context: Any = None


@pytest.fixture
def rollouts() -> Rollouts:
    return Rollouts()


@pytest.fixture
def context(rollouts: Rollouts, tiny_model: Path) -> Iterator[FakeContext]:
    with FakeContext(rollouts, claims=("ckpt", "model")) as made:
        shutil.copytree(tiny_model, made.claims["model"], dirs_exist_ok=True)
        rollouts.context = made
        yield made


@pytest.fixture
def judges(tiny_model: Path) -> Iterator[str]:
    """Where verifier and reference answer."""
    answers = {
        "/score": verifier.judge(problems.load(CONFIG.problems)),
        "/logprobs": reference.judge(models.load(tiny_model), models.fingerprint(tiny_model), micro_batch=4),
    }
    with JsonServer("127.0.0.1", 0, answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.url
        server.shutdown()
        thread.join()


def _learner(context: FakeContext, config: LmConfig) -> Learner:
    torch.set_num_threads(1)
    return Learner.start(context.claims["model"], config, Team())


def _run(context: FakeContext, judges: str, config: LmConfig = CONFIG, learner: Learner | None = None) -> dict[str, Any]:
    real = context.endpoints
    context.endpoints = lambda member: real(member) if member == "rollout" else (SimpleNamespace(url=judges),)  # type: ignore[method-assign,assignment]
    made = learner or _learner(context, config)
    return lead(config, context, Team(), made, models.tokenizer_of(context.claims["model"]))


def _folder(context: FakeContext) -> Path:
    return Path(context.claims["ckpt"])


def test_a_run_leaves_weights_checkpoints_metrics_and_a_result(context: FakeContext, judges: str) -> None:
    result = _run(context, judges)
    assert result["steps"] == STEPS
    assert result["samples"]["committed"] == STEPS * CONFIG.prompts * CONFIG.samples
    assert [head.weights.version for head in context.published] == list(range(STEPS + 1))
    for head in context.published[-2:]:  # older ones are deleted
        assert head.probe is not None
        assert models.probe_of(models.load(head.path), head.probe.tokens) == head.probe
    assert [saved.step for saved in context.saved] == [-1, 1, 3]
    folder = _folder(context)
    assert sorted(path.name for path in (folder / "checkpoints").iterdir() if path.is_dir()) == [
        "step-000002-i1",
        "step-000004-i1",
    ]
    assert len(list((folder / "weights").iterdir())) == 2
    metrics = read_metrics(folder / "metrics.jsonl")
    assert [entry["step"] for entry in metrics] == list(range(STEPS + 1))
    assert [entry["step"] for entry in metrics if entry["accuracy"] is not None] == [0, 2, 4]
    assert all(entry["drift"] < 1e-4 and entry["lag"] == 0 for entry in metrics[1:])
    assert metrics[-1]["accuracy"] == result["accuracy"]
    assert json.loads((folder / "result.json").read_text()) == result
    assert json.loads(context.client.kv_get(context.group, RESULT).value or "") == result
    assert {"step", "reward", "drift", "accuracy"} <= set().union(*context.heartbeats)


def test_a_killed_actor_ends_as_one_that_was_not(
    context: FakeContext, judges: str, rollouts: Rollouts, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor goes on from the checkpoint, publishes its weights first, and the run is the same to the bit."""

    class Killed(BaseException):
        pass

    def dies(self: Trainer) -> None:
        if self.learner.step == 3:
            raise Killed
        step(self)

    step, published = Trainer._step, Trainer._publish

    def seen(self: Trainer, *, measure: bool) -> float | None:
        """Another accuracy at each step: 0.25 before the first one."""
        published(self, measure=measure)
        if measure:
            self.accuracy = (self.learner.step + 1) / 4
        return self.accuracy if measure else None

    monkeypatch.setattr(Trainer, "_publish", seen)
    monkeypatch.setattr(Trainer, "_step", dies)
    with pytest.raises(Killed):
        _run(context, judges)
    monkeypatch.setattr(Trainer, "_step", step)
    second = context.restarted()
    try:
        result = _run(second, judges)
        assert (result["resumed_at"], result["incarnation"]) == (2, 2)
        lines = (_folder(second) / "metrics.jsonl").read_text().splitlines()
        assert result["first_accuracy"] == json.loads(lines[0])["accuracy"] == 0.25
        versions = [(head.weights.actor_incarnation, head.weights.version) for head in second.published]
        assert versions == [(1, 0), (1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (2, 4)]
        interrupted = models.fingerprint(second.published[-1].path)
    finally:
        second.close()
    other = Rollouts()
    with FakeContext(other, claims=("ckpt", "model")) as undisturbed:
        shutil.copytree(tiny_model, undisturbed.claims["model"], dirs_exist_ok=True)
        other.context = undisturbed
        _run(undisturbed, judges)
        assert models.fingerprint(undisturbed.published[-1].path) == interrupted


def test_asynchronous_steps_are_sampled_by_weights_that_are_one_older_at_most(
    judges: str, rollouts: Rollouts, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeContext(rollouts, claims=("ckpt", "model"), max_staleness=1) as context:
        shutil.copytree(tiny_model, context.claims["model"], dirs_exist_ok=True)
        rollouts.context = context
        generate, oldest = context.rollouts.generate, {}

        def noted(*given: Any, **named: Any) -> Any:
            oldest[named.get("step")] = named.get("oldest")
            return generate(*given, **named)

        monkeypatch.setattr(context.rollouts, "generate", noted)
        result = _run(context, judges, LmConfig(**{**CONFIG.model_dump(mode="json"), "max_staleness": 1, "pause": "keep"}))
        assert result["samples"]["committed"] == STEPS * CONFIG.prompts * CONFIG.samples
        metrics = read_metrics(_folder(context) / "metrics.jsonl")[1:]
        assert metrics[0]["lag"] == 0
        assert all(0 <= entry["lag"] <= 1 for entry in metrics)
        assert all((entry["drift"] is None) == (entry["lag"] == 1) for entry in metrics)
        # Counted from when they are trained on, not from when they came.
        assert {step: version for step, version in oldest.items() if step is not None} == {0: 0, 1: 0, 2: 1, 3: 2}


def test_a_skipped_prompt_is_left_out_and_never_scored(context: FakeContext, judges: str, rollouts: Rollouts) -> None:
    rollouts.skip = {"1/2/0"}
    result = _run(context, judges)
    assert result["samples"]["skipped"] == CONFIG.samples
    made = [entry["rollouts"] for entry in read_metrics(_folder(context) / "metrics.jsonl")[1:]]
    assert [sum(part["samples"] for part in entry.values()) for entry in made] == [6, 4, 6, 6]


def test_engines_that_say_something_else_end_the_run(context: FakeContext, judges: str, rollouts: Rollouts) -> None:
    rollouts.off = 0.01
    with pytest.raises(PolicyMismatch, match=r"step 0: log-probabilities differ by 0\.01"):
        _run(context, judges)
    told = json.loads(context.client.kv_get(context.group, FAILURE).value or "")
    assert told["class"] == "policy"


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_another_reference_ends_the_run(judges: str, rollouts: Rollouts, tiny_model: Path, max_staleness: int) -> None:
    """Whichever thread notices it."""
    with FakeContext(rollouts, claims=("ckpt", "model"), max_staleness=max_staleness) as context:
        shutil.copytree(tiny_model, context.claims["model"], dirs_exist_ok=True)
        model = models.load(tiny_model)
        with torch.no_grad():
            model.lm_head.weight.mul_(1.01)
        shutil.rmtree(context.claims["model"])
        models.save_for_engines(model, Path(context.claims["model"]), tokenizer=models.tokenizer_of(tiny_model))
        rollouts.context = context
        config = LmConfig(**{**CONFIG.model_dump(mode="json"), "max_staleness": max_staleness})
        with pytest.raises(PolicyMismatch, match="ref serves the policy"):
            _run(context, judges, config)


def test_a_full_disk_is_waited_for_and_nothing_half_written_is_published(
    context: FakeContext, judges: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old versions go, the actor says what it waits for, and goes on when there is room."""
    learner = _learner(context, CONFIG)
    export, save = learner.export, learner.save
    left = {"export": 3, "save": 2}

    def full(name: str, write: Any, folder: Path, *rest: Any) -> None:
        if learner.step == 2 and left[name]:
            left[name] -= 1
            folder.parent.joinpath(f".{folder.name}").mkdir(exist_ok=True)
            raise OSError(errno.ENOSPC, "No space left on device")
        write(folder, *rest)

    monkeypatch.setattr(learner, "export", lambda folder, tokenizer=None: full("export", export, folder, tokenizer))
    monkeypatch.setattr(learner, "save", lambda folder: full("save", save, folder))
    monkeypatch.setattr(disk, "PAUSE_S", 0.01)
    result = _run(context, judges, learner=learner)
    assert result["steps"] == STEPS
    assert left == {"export": 0, "save": 0}
    waited = [str(beat["waiting"]) for beat in context.heartbeats if beat.get("waiting")]
    assert sum("weights of version 2: the disk is full" in reason for reason in waited) == 3
    assert sum("checkpoint after step 2: the disk is full" in reason for reason in waited) == 2
    assert [head.weights.version for head in context.published] == list(range(STEPS + 1))
    assert [saved.step for saved in context.saved] == [-1, 1, 3]


def test_a_disk_that_stays_full_ends_the_actor_with_a_clear_message(context: FakeContext, judges: str) -> None:
    learner = _learner(context, CONFIG)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    learner.export = full  # type: ignore[method-assign]
    config = LmConfig(**{**CONFIG.model_dump(mode="json"), "patience": "100ms"})
    with pytest.raises(DiskFull, match=r"weights of version 0: the disk is full .* for 0.1 s"):
        _run(context, judges, config, learner)
    assert not context.published


def test_a_prompt_that_is_too_long_is_said_at_the_start(context: FakeContext, judges: str) -> None:
    with pytest.raises(ValueError, match=r"problem 0: 7 tokens; expected 1 to `max_prompt_tokens`, 5"):
        _run(context, judges, LmConfig(**{**CONFIG.model_dump(mode="json"), "max_prompt_tokens": 5}))


def test_a_broken_gradient_ends_the_program_with_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_model: Path
) -> None:
    broken(actor, Learner, monkeypatch, tiny_model)
    assert actor.main() == 1
    assert capsys.readouterr().err.startswith("training_broken: step 7: the gradient's norm is nan (a lower `learning_rate`")


@pytest.mark.parametrize("error", [BadPrompt("prompt 3: 0 tokens"), SpecError([Problem("data", "x", "a file")])])
def test_what_a_restart_would_meet_again_ends_the_actor_for_good(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    def lead(*_: Any) -> None:
        raise error

    broken(actor, Learner, monkeypatch, tiny_model)
    monkeypatch.setattr(actor, "lead", lead)
    assert actor.main() == WRONG_POLICY
