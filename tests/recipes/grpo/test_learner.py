"""GRPO: what a step computes, that runs are reproducible and resumable, and that the policy learns."""

import json
from pathlib import Path

import numpy as np
import pytest

from gangflow.recipes.grpo import task
from gangflow.recipes.grpo.alone import main, train
from gangflow.recipes.grpo.config import Config
from gangflow.recipes.grpo.learner import (
    Batch,
    EngineDrift,
    Hyperparameters,
    Learner,
    StepReport,
    accuracy,
    advantages,
    sample_batch,
)
from gangflow.recipes.grpo.policy import Policy


def _fresh(seed: int, settings: Hyperparameters | None = None) -> tuple[Learner, Policy]:
    policy = Policy.fresh(seed)
    return Learner(policy, settings or Hyperparameters(), seed=seed), policy.copy()


def _steps(learner: Learner, reference: Policy, count: int) -> list[StepReport]:
    trained, _ = task.split()
    reports = []
    for _ in range(count):
        problems, seeds = learner.draw(trained)
        reports.append(learner.train(sample_batch(learner.policy, reference, problems, seeds, learner.settings.samples)))
    return reports


def _same(one: Policy, other: Policy) -> bool:
    return all(np.array_equal(other.parameters[name], value) for name, value in one.parameters.items())


def test_advantages_are_normalised_in_their_group_only() -> None:
    found = advantages(np.array([0, 2, 0, 2, 1, 1, 1, 1, 5, 5, 5, 9], np.float32), 4).reshape(3, 4)
    assert found[0] == pytest.approx([-1, 1, -1, 1], abs=1e-3)
    assert found[1].tolist() == [0, 0, 0, 0]
    assert found[2].sum() == pytest.approx(0, abs=1e-4)


def test_the_surrogates_slope_is_that_of_the_objective() -> None:
    """Against finite differences of min(r·A, clip(r)·A) − β·k3, away from the kinks."""
    settings = Hyperparameters(kl_weight=0.3)
    learner, _ = _fresh(0, settings)
    rng = np.random.default_rng(0)
    old, now, reference = (rng.uniform(-3, -0.1, (50, 3)) for _ in range(3))
    gains = rng.standard_normal((50, 1))
    empty = np.zeros((50, 4), np.int8)
    batch = Batch(empty, empty[:, :3], old, gains[:, 0], reference)  # type: ignore[arg-type]

    def objective(at: np.ndarray) -> np.ndarray:
        ratio = np.exp(at - old)
        gain = np.minimum(ratio * gains, np.clip(ratio, 0.8, 1.28) * gains)
        apart = reference - at
        return gain - 0.3 * (np.exp(apart) - apart - 1)

    small = 1e-6
    expected = (objective(now + small) - objective(now - small)) / (2 * small) / now.size
    slope, cut, kl = learner._surrogate(now, batch, gains)  # type: ignore[arg-type]
    assert slope == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert 0 < cut < 1
    assert kl > 0


def test_a_step_makes_rewarded_answers_more_probable() -> None:
    learner, reference = _fresh(0, Hyperparameters(kl_weight=0.0))
    problems, seeds = learner.draw(task.split()[0])
    batch = sample_batch(learner.policy, reference, problems, seeds, 16)
    gains = advantages(batch.rewards, 16)
    report = learner.train(batch)
    change = (learner.policy.logprobs(batch.prompts, batch.answers) - batch.logprobs).sum(axis=1)
    assert change[gains > 0.5].mean() > change[gains < -0.5].mean() + 0.05
    assert report.drift == 0.0
    assert learner.step == 1


@pytest.mark.parametrize("off", [2e-3, np.nan])
def test_samples_of_another_policy_are_refused_before_anything_is_learned(off: float) -> None:
    learner, reference = _fresh(0)
    problems, seeds = learner.draw(task.split()[0])
    batch = sample_batch(learner.policy, reference, problems, seeds, 16)
    batch.logprobs[500, 1] += np.float32(off)
    with pytest.raises(EngineDrift, match="differ by"):
        learner.train(batch)
    assert learner.step == 0
    assert _same(learner.policy, reference)


def test_the_same_seed_is_the_same_run_and_another_is_not() -> None:
    first, second, other = (_fresh(seed) for seed in (5, 5, 6))
    assert _steps(*first, 4) == _steps(*second, 4)
    assert _same(first[0].policy, second[0].policy)
    _steps(*other, 4)
    assert not _same(first[0].policy, other[0].policy)


def test_a_resumed_run_equals_one_that_was_not_interrupted(tmp_path: Path) -> None:
    straight, reference = _fresh(5)
    expected = _steps(straight, reference, 9)
    broken, _ = _fresh(5)
    _steps(broken, reference, 4)
    broken.save(tmp_path / "ckpt.npz")
    _steps(broken, reference, 2)  # lost with the process
    resumed = Learner.load(tmp_path / "ckpt.npz", Hyperparameters())
    assert resumed.step == 4
    assert _steps(resumed, reference, 5) == expected[4:]
    assert _same(resumed.policy, straight.policy)
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt.npz"]


def test_a_checkpoint_of_another_layout_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, _ = _fresh(0)
    monkeypatch.setattr("gangflow.recipes.grpo.learner.LAYOUT", 99)
    learner.save(tmp_path / "ckpt.npz")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="layout 99, expected 1"):
        Learner.load(tmp_path / "ckpt.npz", Hyperparameters())


def test_samples_of_two_engines_are_those_of_one() -> None:
    """A rollout that is lost changes nothing: whoever makes a sample, it is the same."""
    learner, reference = _fresh(2)
    problems, seeds = learner.draw(task.split()[0])
    whole = sample_batch(learner.policy, reference, problems, seeds, 16)
    parts = [sample_batch(learner.policy, reference, problems[cut], seeds[cut], 16) for cut in (slice(0, 23), slice(23, 64))]
    assert np.array_equal(whole.answers, np.concatenate([part.answers for part in parts]))
    assert np.array_equal(whole.logprobs, np.concatenate([part.logprobs for part in parts]))


def test_it_learns_something_within_forty_steps() -> None:
    learner, reference = _fresh(1)
    reports = _steps(learner, reference, 40)
    assert reports[0].reward < 0.2
    assert np.mean([report.reward for report in reports[-5:]]) > 3 * reports[0].reward


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_it_learns_addition_of_problems_that_it_never_saw(seed: int) -> None:
    assert accuracy(Policy.fresh(seed), task.split()[1]) < 0.05
    lines = list(train(Config(seed=seed)))
    assert lines[-1]["step"] == 250
    assert lines[-1]["accuracy"] >= 0.9


def test_the_run_in_one_process_is_told_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["steps=3", "prompts=4", "samples=2", "evaluate_every=2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["step"] for line in lines] == [2, 3]
    assert len(lines[-1]["policy"]) == 64
    assert main(["stepps=3"]) == 2
    assert "did you mean 'steps'" in capsys.readouterr().err
