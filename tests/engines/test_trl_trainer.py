"""TRL's GRPOTrainer as an actor: a real trainer of a tiny model, in a group whose rollouts sample from what it published."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import gangflow.integrations.trl as integration
from gangflow.integrations.trl import Actor, SkippedPrompts
from gangflow.member.failures import PolicyMismatch
from gangflow.testing import Ask, FakeContext, RolloutFailed

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed in v6:FutureWarning"),
    pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory:UserWarning"),
]
END = 1
LETTER = 12
"""The token that is rewarded."""


class Sampler:
    """What a rollout answers: samples of the policy that it serves, the same ones for the same seed."""

    def __init__(self) -> None:
        self.context: FakeContext | None = None
        self._models: dict[str, Any] = {}

    def __call__(self, ask: Ask) -> dict[str, Any]:
        assert self.context is not None
        assert ask.weights is not None
        assert ask.params["stop_token_ids"] == [END]
        model = self._model(next(head.path for head in self.context.published if head.weights == ask.weights))
        index = int(ask.sample_id.rsplit("/", 1)[1])
        generator = torch.Generator().manual_seed(ask.prompt["seed"] + index)
        ids, logprobs = list(ask.prompt["token_ids"]), []
        while len(logprobs) < ask.params["max_tokens"] and (not logprobs or ids[-1] != END):
            with torch.no_grad():
                all_logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0, -1], -1)
            ids.append(int(torch.multinomial(all_logprobs.exp(), 1, generator=generator)))
            logprobs.append(float(all_logprobs[ids[-1]]))
        return {"token_ids": ids[-len(logprobs) :], "logprobs": logprobs, "finish_reason": "length", "versions": []}

    def _model(self, path: str) -> Any:
        if path not in self._models:
            self._models[path] = AutoModelForCausalLM.from_pretrained(path).eval()
        return self._models[path]


@pytest.fixture
def sampler() -> Sampler:
    return Sampler()


@pytest.fixture
def context(sampler: Sampler, tiny_model: Path) -> Iterator[FakeContext]:
    with FakeContext(sampler, claims=("ckpt", "model")) as made:
        sampler.context = made
        shutil.copytree(tiny_model, made.claims["model"], dirs_exist_ok=True)
        yield made


def letters(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [ids.count(LETTER) / len(ids) for ids in completion_ids]


def trainer_of(context: FakeContext, actor: Actor, reward: Callable[..., Any] = letters, **settings: Any) -> GRPOTrainer:
    args = {"max_steps": 4, "save_steps": 2, "logging_steps": 1, "learning_rate": 1e-3, **settings}
    return GRPOTrainer(
        model=context.claims["model"],
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": [f"say {letter}" for letter in "abcdefgh"]}),
        args=GRPOConfig(
            output_dir=context.claims["ckpt"] + "/trainer",
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=4,
            use_cpu=True,
            bf16=False,
            report_to=[],
            disable_tqdm=True,
            **args,
        ),
        rollout_func=actor.rollout_func,
        callbacks=[actor.callback],
    )


def test_each_step_is_sampled_from_the_weights_that_were_published_for_it(context: FakeContext) -> None:
    actor = Actor(context)
    assert actor.resume() is None
    trainer = trainer_of(context, actor)
    trainer.train(resume_from_checkpoint=actor.resume())
    assert [head.weights.version for head in context.published] == [0, 1, 2, 3]
    assert [ask.weights.version for ask in context.asked if ask.weights] == [step for step in range(4) for _ in range(8)]
    assert [saved.step for saved in context.saved] == [1, 3]
    assert context.rollouts.counters.committed == 32
    assert context.rollouts.ledger.finished(3)
    told = {name for beat in context.heartbeats for name in beat}
    assert {"step", "steps", "reward", "loss", "grad_norm", "learning_rate"} <= told
    assert [beat["step"] for beat in context.heartbeats if "step" in beat][-1] == 4
    # Only the newest folders stay.
    assert sorted(path.name for path in Path(context.claims["ckpt"], "weights").iterdir()) == ["i1-v2", "i1-v3"]


def test_a_probe_is_what_the_published_weights_say(context: FakeContext) -> None:
    trainer = trainer_of(context, actor := Actor(context))
    trainer.train()
    head = context.published[-1]
    assert head.probe is not None
    assert len(head.probe.tokens) == len("say a")
    model = AutoModelForCausalLM.from_pretrained(head.path).eval()
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([head.probe.tokens])).logits[0, :-1], -1)
    expected = logprobs.gather(1, torch.tensor(head.probe.tokens[1:])[:, None])[:, 0]
    assert torch.allclose(torch.tensor(head.probe.logprobs), expected, atol=1e-5)
    assert actor.publisher.version == 3


class _Killed(Exception):
    pass


class _KillAfter(TrainerCallback):  # type: ignore[misc]
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise _Killed


def test_a_killed_trainer_goes_on_from_its_checkpoint_to_the_same_policy(
    sampler: Sampler, context: FakeContext, tiny_model: Path
) -> None:
    trainer = trainer_of(context, actor := Actor(context))
    trainer.add_callback(_KillAfter(3))
    with pytest.raises(_Killed):
        trainer.train(resume_from_checkpoint=actor.resume())
    with context.restarted() as again:
        sampler.context = again
        trainer = trainer_of(again, actor := Actor(again))
        trainer.train(resume_from_checkpoint=actor.resume())
        assert [str(head.weights.actor_incarnation) + "/" + str(head.weights.version) for head in again.published] == [
            "1/0", "1/1", "1/2", "2/2", "2/3",
        ]  # fmt: skip
        resumed = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with FakeContext(sampler, claims=("ckpt", "model")) as other:
        sampler.context = other
        shutil.copytree(tiny_model, other.claims["model"], dirs_exist_ok=True)
        trainer = trainer_of(other, actor := Actor(other))
        trainer.train(resume_from_checkpoint=actor.resume())
    assert all(torch.equal(value, resumed[name]) for name, value in trainer.model.state_dict().items())


def test_importance_is_corrected_from_the_rollouts_logprobs(context: FakeContext) -> None:
    trainer = trainer_of(context, actor := Actor(context, max_drift=1e-4))
    actor.correct_importance(trainer)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "sampling/importance_sampling_ratio/mean" in entry]
    assert len(logs) == 4
    assert all(entry["sampling/importance_sampling_ratio/mean"] == pytest.approx(1, abs=1e-4) for entry in logs)
    assert 0 < max(entry["sampling/sampling_logp_difference/max"] for entry in logs) < 1e-4
    with pytest.raises(ValueError, match="use_vllm=False"):
        actor.correct_importance(trainer)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"max_drift": 0.1}, r"step 1: .* differ by 0\.5\S*, 0\.1 is allowed"),
        ({"max_drift": 5.0, "max_mean_drift": 0.1}, r"step 1: .* differ by 0\.5\S* in the mean, 0\.1 is allowed"),
    ],
)
def test_an_engine_with_another_policy_fails_the_group(
    sampler: Sampler, tiny_model: Path, limits: dict[str, float], said: str
) -> None:
    def wrong(ask: Ask) -> dict[str, Any]:
        answer = sampler(ask)
        return {**answer, "logprobs": [value - 0.5 for value in answer["logprobs"]]}

    with FakeContext(wrong, claims=("ckpt", "model")) as context:
        sampler.context = context
        shutil.copytree(tiny_model, context.claims["model"], dirs_exist_ok=True)
        trainer = trainer_of(context, actor := Actor(context, **limits))
        actor.correct_importance(trainer)
        with pytest.raises(PolicyMismatch, match=said):
            trainer.train()
        told = context.client.kv_get(context.group, "trainer/failure").value
        assert json.loads(told or "{}")["class"] == "policy"


@pytest.mark.parametrize("skipped", ["fail", "mask"])
def test_a_prompt_that_cannot_be_sampled_is_never_learned_from(sampler: Sampler, tiny_model: Path, skipped: Any) -> None:
    bad: list[str] = []

    def refusing(ask: Ask) -> dict[str, Any]:
        prompt = ask.sample_id.rsplit("/", 1)[0]
        if not bad:
            bad.append(prompt)
        if prompt in bad:
            raise RolloutFailed("data", "HTTP 400: too long")
        return sampler(ask)

    seen: list[bool] = []

    def reward(completion_ids: list[list[int]], skipped: list[bool], **_: Any) -> list[float | None]:
        seen.extend(skipped)
        return [None if out else float(ids.count(LETTER)) for ids, out in zip(completion_ids, skipped, strict=True)]

    with FakeContext(refusing, claims=("ckpt", "model")) as context:
        sampler.context = context
        shutil.copytree(tiny_model, context.claims["model"], dirs_exist_ok=True)
        trainer = trainer_of(context, Actor(context, skipped=skipped), reward, max_steps=1)
        if skipped == "fail":
            with pytest.raises(SkippedPrompts, match="1 of 2 prompts were skipped"):
                trainer.train()
        else:
            trainer.train()
            assert sorted(seen) == [False] * 4 + [True] * 4
            assert trainer.state.log_history[0]["completions/mean_length"] > 0


def test_settings_without_a_way_back_are_refused(context: FakeContext, tmp_path: Path) -> None:
    trainer = trainer_of(context, Actor(context), save_only_model=True, save_total_limit=1)
    trainer.args.output_dir = str(tmp_path)
    with pytest.raises(ValueError, match=r"output_dir: .*; save_only_model: .*; save_total_limit: expected 2 at least, got 1"):
        trainer.train()


def test_ledgers_go_with_their_checkpoints(context: FakeContext) -> None:
    trainer = trainer_of(context, Actor(context), save_steps=1, save_total_limit=2)
    trainer.train()
    left = sorted(name for name in os.listdir(context.claims["ckpt"] + "/trainer") if name.startswith("checkpoint"))
    assert left == ["checkpoint-3", "checkpoint-3.ledger.json", "checkpoint-4", "checkpoint-4.ledger.json"]


def test_an_evaluation_is_sampled_but_not_committed(context: FakeContext) -> None:
    actor = Actor(context)
    trainer = trainer_of(context, actor)
    trainer.eval_dataset = trainer.train_dataset
    trainer.args.per_device_eval_batch_size = 4
    metrics = trainer.evaluate()
    assert 0 <= metrics["eval_reward"] <= 1
    assert len(context.asked) == 32
    assert len(context.rollouts.ledger.through(0).render()) > 0
    assert not context.rollouts.ledger.finished(0)


def test_the_lines_of_the_readme_train(context: FakeContext) -> None:
    text = Path(integration.__file__).with_name("README.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert script.count("# new") == 5
    exec(compile(script, "README.md", "exec"), {"__name__": "__main__"})
    assert [head.weights.version for head in context.published] == [0, 1, 2, 3]
    assert [saved.step for saved in context.saved] == [1, 3]
