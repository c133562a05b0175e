"""The problems, their split, and the reward."""

import numpy as np
import pytest

from gangflow.recipes.grpo import task


def test_split_is_disjoint_complete_and_the_same_for_a_seed() -> None:
    trained, held_out = task.split(7)
    assert len(trained) == 8_000
    assert len(held_out) == 2_000
    assert np.array_equal(np.sort(np.concatenate([trained, held_out])), np.arange(10_000))
    again = task.split(7)
    assert np.array_equal(trained, again[0])
    assert np.array_equal(held_out, again[1])
    assert not np.array_equal(held_out, task.split(8)[1])


def test_every_pair_of_digits_of_a_column_is_trained_on() -> None:
    """What the README says: no held-out problem is trained on, every column pair is."""
    trained, _ = task.split()
    prompts = task.prompts_of(trained).astype(int)
    for column in (0, 1):
        assert len(set(prompts[:, column] * 10 + prompts[:, column + 2])) == 100


@pytest.mark.parametrize(
    ("a", "b", "answer"), [(7, 45, (2, 5, 0)), (99, 99, (8, 9, 1)), (0, 0, (0, 0, 0)), (50, 50, (0, 0, 1))]
)
def test_solutions_are_least_significant_digit_first(a: int, b: int, answer: tuple[int, int, int]) -> None:
    prompts = task.prompts_of(np.array([100 * a + b]))
    assert task.text(prompts[0]) == f"{a:02}+{b:02}="
    assert tuple(task.solutions(prompts)[0]) == answer


def test_every_solution_is_the_sum() -> None:
    problems = np.arange(task.PROBLEMS)
    found = task.solutions(task.prompts_of(problems)).astype(int) @ [1, 10, 100]
    assert np.array_equal(found, problems // 100 + problems % 100)


def test_reward_is_exactness_plus_the_fraction_of_right_digits() -> None:
    prompts = np.repeat(task.prompts_of(np.array([745])), 3, axis=0)  # 07+45= 52
    answers = np.array([[2, 5, 0], [2, 5, 1], [0, 0, 7]], np.int8)
    assert task.rewards(prompts, answers) == pytest.approx([task.BEST_REWARD, 2 / 3, 0.0])
