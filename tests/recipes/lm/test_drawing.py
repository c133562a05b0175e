"""Which problems a step takes is a function of seed and position."""

from types import SimpleNamespace
from typing import Any

import pytest

from gangflow.recipes.lm.drawing import NothingSampled, drawn, sample_seed, sampled
from gangflow.recipes.lm.problems import Problem

PROBLEMS = [Problem(number, f"{number}=", str(number)) for number in range(10)]


def test_each_round_has_every_problem_once_in_an_order_of_its_own() -> None:
    first = [problem for position in range(0, 10, 2) for problem in drawn(PROBLEMS, position, 2, 0)]
    second = [problem for position in range(10, 20, 2) for problem in drawn(PROBLEMS, position, 2, 0)]
    assert sorted(problem.number for problem in first) == sorted(problem.number for problem in second) == list(range(10))
    assert first != second


def test_a_step_may_go_over_the_end_of_a_round() -> None:
    whole = drawn(PROBLEMS, 0, 20, 3)
    assert [drawn(PROBLEMS, position, 4, 3) for position in range(0, 20, 4)] == [whole[n : n + 4] for n in range(0, 20, 4)]


def test_another_seed_is_another_order() -> None:
    assert drawn(PROBLEMS, 0, 10, 0) != drawn(PROBLEMS, 0, 10, 1)
    assert drawn(PROBLEMS, 0, 10, 0) == drawn(PROBLEMS, 0, 10, 0)


def test_seeds_of_samples_are_apart_and_fit_an_engine() -> None:
    seeds = [sample_seed(seed, position) for seed in range(3) for position in range(100)]
    assert len(set(seeds)) == 300
    assert all(0 <= seed < 2**62 for seed in seeds)


def test_what_was_skipped_is_left_out_and_nothing_at_all_is_an_error() -> None:
    made: list[Any] = [SimpleNamespace(skipped="too long"), SimpleNamespace(skipped="")]
    asked = [Problem(number, "a>", "a") for number in range(2)]
    assert sampled("step 7", made, asked) == [(asked[1], made[1])]
    with pytest.raises(NothingSampled, match="step 7: all 1 prompts were skipped; the last: too long"):
        sampled("step 7", made[:1], asked[:1])
