"""The network: what it sees, what it draws, and that its gradients are those of what it computes."""

from pathlib import Path

import numpy as np
import pytest

from gangflow.recipes.grpo import task
from gangflow.recipes.grpo.policy import NOTHING, Policy, chances, contexts_of


def _some(count: int, seed: int = 0) -> tuple[task.Digits, np.ndarray]:
    rng = np.random.default_rng(seed)
    prompts = task.prompts_of(rng.integers(0, task.PROBLEMS, count))
    return prompts, chances(rng.integers(0, 2**63, count, dtype=np.uint64), np.zeros(count, np.int64))


def test_contexts_show_a_column_the_one_before_and_the_previous_output() -> None:
    prompts = task.prompts_of(np.array([745]))  # 07+45=
    found = contexts_of(prompts, np.array([[2, 5, 0]], np.int8))[0]
    assert found.tolist() == [[7, 5, NOTHING, NOTHING, NOTHING], [0, 4, 7, 5, 2], [0, 0, 0, 4, 5]]


def test_a_context_does_not_show_the_digit_that_is_asked_for() -> None:
    prompts, _ = _some(50)
    right = task.solutions(prompts)
    for column in range(task.ANSWER_DIGITS):
        other = right.copy()
        other[:, column:] = (other[:, column:] + 1) % 10
        assert np.array_equal(contexts_of(prompts, right)[:, column], contexts_of(prompts, other)[:, column])


def test_gradients_are_those_of_finite_differences() -> None:
    policy = Policy.fresh(3)
    # In float64 a difference quotient is exact enough to hold the gradients to.
    policy.parameters = {name: value.astype(np.float64) for name, value in policy.parameters.items()}  # type: ignore[misc]
    policy.parameters["w2"] *= 20  # away from the nearly uniform start
    prompts, drawn = _some(40, 1)
    answers, _ = policy.sample(prompts, drawn)
    rng = np.random.default_rng(2)
    weights = rng.standard_normal(answers.shape)
    found = policy.gradients(prompts, answers, weights)

    def objective() -> float:
        rows = contexts_of(prompts, answers).reshape(-1, 5)
        chosen = policy.log_distribution(rows)[np.arange(len(rows)), answers.reshape(-1)]
        return float((chosen * weights.reshape(-1)).sum())

    for name, value in policy.parameters.items():
        flat = value.reshape(-1)
        for at in rng.choice(flat.size, min(12, flat.size), replace=False):
            kept, small = flat[at], 1e-5
            flat[at] = kept + small
            up = objective()
            flat[at] = kept - small
            down = objective()
            flat[at] = kept
            assert found[name].reshape(-1)[at] == pytest.approx((up - down) / (2 * small), rel=2e-3, abs=2e-4), (name, at)


def test_logprobs_of_samples_are_those_that_they_were_drawn_with() -> None:
    policy = Policy.fresh(0)
    prompts, drawn = _some(300)
    answers, logprobs = policy.sample(prompts, drawn)
    assert np.array_equal(policy.logprobs(prompts, answers), logprobs)
    every = np.exp(policy.log_distribution(contexts_of(prompts, answers).reshape(-1, 5)))
    assert every.sum(axis=1) == pytest.approx(1.0, abs=1e-5)


def test_a_sample_is_the_same_in_whatever_batch_it_is_drawn() -> None:
    """To the bit: otherwise samples re-dispatched to another engine would change the run."""
    policy = Policy.fresh(0)
    prompts, drawn = _some(1_000)
    answers, logprobs = policy.sample(prompts, drawn)
    rng = np.random.default_rng(5)
    for size in (1, 2, 3, 15, 16, 17, 64, 333, 999):
        part = rng.permutation(1_000)[:size]
        again, logs = policy.sample(prompts[part], drawn[part])
        assert np.array_equal(again, answers[part]), size
        assert np.array_equal(logs, logprobs[part]), size


def test_draws_follow_the_distribution() -> None:
    policy = Policy.fresh(0)
    policy.parameters["w2"] *= 20
    prompts = np.repeat(task.prompts_of(np.array([1234])), 20_000, axis=0)
    answers, _ = policy.sample(prompts, chances(np.full(20_000, 7, np.uint64), np.arange(20_000)))
    expected = np.exp(policy.log_distribution(contexts_of(prompts[:1], answers[:1])[:, 0])[0])
    assert np.bincount(answers[:, 0], minlength=10) / 20_000 == pytest.approx(expected, abs=0.015)


def test_chances_are_in_the_unit_interval_and_spread() -> None:
    found = chances(np.repeat(np.arange(1_000, dtype=np.uint64), 50), np.tile(np.arange(50), 1_000))
    assert found.shape == (50_000, 3)
    assert found.min() >= 0.0
    assert found.max() < 1.0
    for column in found.T:
        assert np.histogram(column, 10, (0, 1))[0] / 50_000 == pytest.approx(0.1, abs=0.01)
    assert abs(np.corrcoef(found.T)[np.triu_indices(3, 1)]).max() < 0.02


def test_no_two_samples_share_their_chances() -> None:
    seeds = np.array([3, 2**63 - 1, 2**64 - 1], np.uint64)
    found = chances(np.repeat(seeds, 16), np.tile(np.arange(16), 3))
    assert len(np.unique(found)) == found.size


def test_greedy_is_the_most_probable_digit() -> None:
    policy = Policy.fresh(1)
    prompts, _ = _some(30)
    answers = policy.greedy(prompts)
    rows = contexts_of(prompts, answers).reshape(-1, 5)
    assert np.array_equal(policy.log_distribution(rows).argmax(axis=1), answers.reshape(-1))


def test_a_saved_policy_comes_back_and_leaves_nothing_else_behind(tmp_path: Path) -> None:
    policy = Policy.fresh(4)
    digest = policy.save(tmp_path / "w.npz")
    assert len(digest) == 64
    again = Policy.load(tmp_path / "w.npz")
    assert all(np.array_equal(again.parameters[name], value) for name, value in policy.parameters.items())
    assert [path.name for path in tmp_path.iterdir()] == ["w.npz"]


def test_a_copy_is_independent() -> None:
    policy = Policy.fresh(0)
    other = policy.copy()
    policy.parameters["w1"] += 1
    assert not np.array_equal(policy.parameters["w1"], other.parameters["w1"])
