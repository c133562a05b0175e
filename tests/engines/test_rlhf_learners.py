"""Policy and critic learn, go on exactly from a checkpoint, and are the same on two ranks as on one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gangflow.recipes.lm.batch import Sequences, pack
from gangflow.recipes.lm.drift import EngineDrift
from gangflow.recipes.lm.model import load
from gangflow.recipes.lm.ranks import Team
from gangflow.recipes.lm.spread import TrainingBroken
from gangflow.recipes.rlhf_ppo.advantages import whiten
from gangflow.recipes.rlhf_ppo.alone import sample
from gangflow.recipes.rlhf_ppo.policy import PolicyLearner
from gangflow.recipes.rlhf_ppo.steps import Replies, experience, final_scores
from gangflow.recipes.rlhf_ppo.values import ValueLearner
from tests.engines.rlhf_parts import make_model, same, settings

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

ALONE = Team()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("rlhf") / "model")


def _batch(policy: PolicyLearner, seed: int, count: int = 12) -> Sequences:
    prompts = [[5 + n % 3, 9, 10] for n in range(count)]
    replies, logprobs = sample(policy.model, prompts, longest=6, stop=1, seed=seed)
    return pack(prompts, replies, logprobs)


def _train(policy: PolicyLearner, critic: ValueLearner, seed: int) -> float:
    """A step that rewards token 30; how often it was said."""
    batch = _batch(policy, seed)
    said = (batch.tokens[:, 1:] == 30) & batch.answer
    gains = whiten(said.float(), batch.answer)
    policy.train(batch, policy.survey(batch), gains)
    critic.train(batch, critic.values(batch), said.float())
    return float(said.sum() / batch.answer.sum())


def _pair(folder: Path, **changes: Any) -> tuple[PolicyLearner, ValueLearner]:
    config = settings(learning_rate=5e-3, critic_learning_rate=5e-3, **changes)
    return PolicyLearner.start(folder, config, ALONE), ValueLearner.start(folder, config, ALONE)


def test_what_is_rewarded_is_said_more_often(folder: Path) -> None:
    policy, critic = _pair(folder)
    rates = [_train(policy, critic, seed) for seed in range(30)]
    assert sum(rates[:5]) / 5 < 0.1
    assert sum(rates[-5:]) / 5 > 0.6


def test_a_surveyed_policy_says_what_it_sampled_with_and_rounding(folder: Path) -> None:
    policy, _ = _pair(folder)
    batch = _batch(policy, 0)
    apart = torch.where(batch.answer, policy.survey(batch) - batch.sampled, 0.0).abs().max()
    assert float(apart) < 1e-4


def test_a_checkpoint_goes_on_exactly(folder: Path, tmp_path: Path) -> None:
    policy, critic = _pair(folder)
    for seed in range(2):
        _train(policy, critic, seed)
    policy.keep(json.dumps({"kl_weight": 0.125}))
    policy.save(tmp_path / "policy")
    critic.save(tmp_path / "policy" / "critic")
    for seed in range(2, 4):
        _train(policy, critic, seed)
    again, other = _pair(folder)
    assert json.loads(again.load(tmp_path / "policy")) == {"kl_weight": 0.125}
    other.load(tmp_path / "policy" / "critic")
    assert (again.step, other.step) == (2, 2)
    for seed in range(2, 4):
        _train(again, other, seed)
    assert same(again.model.state_dict(), policy.model.state_dict())
    assert same(other.model.state_dict(), critic.model.state_dict())
    assert again.step == policy.step == 4


def test_how_a_minibatch_is_portioned_changes_rounding_only(folder: Path) -> None:
    whole, whole_critic = _pair(folder, micro_batch=64)
    parts, parts_critic = _pair(folder, micro_batch=2)
    _train(whole, whole_critic, 0)
    _train(parts, parts_critic, 0)
    for one, other in ((whole.model, parts.model), (whole_critic.model, parts_critic.model)):
        for name, value in one.state_dict().items():
            torch.testing.assert_close(other.state_dict()[name], value, rtol=1e-3, atol=1e-4)


def test_a_broken_gradient_changes_nothing(folder: Path) -> None:
    policy, critic = _pair(folder)
    batch = _batch(policy, 0)
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    with pytest.raises(TrainingBroken, match="step 0: the gradient's norm is nan"):
        policy.train(batch, policy.survey(batch), torch.full_like(batch.sampled, float("nan")))
    assert same(policy.model.state_dict(), before)
    with pytest.raises(TrainingBroken, match="step 0: the gradient's norm is nan"):
        critic.train(batch, critic.values(batch), torch.full_like(batch.sampled, float("nan")))


def test_the_learning_rates_warm_up_and_fall_together(folder: Path) -> None:
    policy, critic = _pair(folder, steps=4, warmup=2, schedule="linear", min_learning_rate=1e-4)
    rates = []
    for seed in range(4):
        _train(policy, critic, seed)
        rates.append((policy.optimizer.param_groups[0]["lr"], critic.optimizer.param_groups[0]["lr"]))
    assert [round(rate, 6) for rate, _ in rates] == [0.0025, 0.005, 0.005, 0.0001]
    assert [rate for _, rate in rates] == pytest.approx([rate for rate, _ in rates])


@pytest.mark.parametrize("sharding", ["replicate", "full"])
def test_two_ranks_do_what_one_does(folder: Path, tmp_path: Path, sharding: str) -> None:
    """Two gloo ranks, with copied weights and with split ones: all three models; one rank reads what two have saved."""
    program = Path(__file__).with_name("rlhf_ranks.py")
    one, two = tmp_path / "one", tmp_path / "two"
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    for ranks, out in ((1, one), (2, two)):
        done = subprocess.run(
            [*words, f"--nproc-per-node={ranks}", str(program), str(folder), str(out), sharding],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads((out / "found.json").read_text()) for out in (one, two)]
    assert found[0].keys() == found[1].keys()
    for key, value in found[0].items():
        assert found[1][key] == pytest.approx(value, rel=2e-3, abs=2e-4), key
    # What two ranks have saved, one reads.
    policy, critic = _pair(folder)
    policy.load(two / "policy")
    critic.load(two / "critic")
    assert (policy.step, critic.step) == (2, 2)
    exported = load(two / "exported").state_dict()
    for name, value in policy.model.state_dict().items():
        torch.testing.assert_close(exported[name], value)


def _replies(**changes: Any) -> Replies:
    made: dict[str, Any] = {
        "prompts": [[5, 6], [7, 8, 9]],
        "texts": ["a", "b"],
        "replies": [[10, 1], [11, 12]],
        "logprobs": [[-1.0, -2.0], [-3.0, -1.0]],
        "finished": [True, False],
        "makers": ("0/1", "1/1"),
    }
    return Replies(**{**made, **changes})


def test_experience_is_put_together_by_the_book() -> None:
    made = _replies()
    batch = pack(made.prompts, made.replies, made.logprobs)
    found = experience(
        made,
        old=batch.sampled + 1e-5,
        scores=[2.0, 1.0],
        reference=[[-1.5, -2.0], [-3.0, -2.0]],
        values=[[0.5, 1.0], [0.0, -1.0]],
        qualities=[1.0, 0.0],
        kl_weight=0.1,
        config=settings(trace=1.0, unfinished_score=-3.0),
    )
    # The second reply is unfinished: −3 whatever the reward model says. KL per token: 0.5, 0 | 0, 1.
    assert found.reward == pytest.approx((2.0 - 3.0) / 2)
    assert (found.quality, found.unfinished, found.length) == (0.5, 0.5, 2.0)
    assert found.kl == pytest.approx((0.5 + 1.0) / 2, abs=1e-4)
    returns = found.returns[batch.answer].tolist()
    assert returns == pytest.approx([2.0 - 0.05, 2.0, -3.1, -3.1], abs=1e-4)
    gains = found.gains[batch.answer]
    assert float(gains.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(gains.std(correction=0)) == pytest.approx(1.0, abs=1e-3)
    assert found.drift == pytest.approx(1e-5, rel=0.1)


@pytest.mark.parametrize("wrong", [0.01, float("nan")])
def test_samples_of_another_policy_are_never_learned_from(wrong: float) -> None:
    made = _replies()
    batch = pack(made.prompts, made.replies, made.logprobs)
    old = batch.sampled.clone()
    old[1][batch.answer[1]] += wrong
    with pytest.raises(EngineDrift, match="log-probabilities differ by"):
        experience(
            made,
            old=old,
            scores=[0.0, 0.0],
            reference=made.logprobs,
            values=[[0.0, 0.0]] * 2,
            qualities=None,
            kl_weight=0.1,
            config=settings(),
        )


def test_scores_out_of_all_proportion_are_cut_off_and_unfinished_replies_have_their_own() -> None:
    config = settings(score_clip=4.0, unfinished_score=-3.0)
    assert final_scores([7.0, -9.0, 1.0], [True, True, False], config) == [4.0, -4.0, -3.0]
    assert final_scores([1.0], [False], settings(unfinished_score=None)) == [1.0]
