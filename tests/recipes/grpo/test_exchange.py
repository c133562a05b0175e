"""Prompts and outputs as JSON."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gangflow.recipes.grpo import exchange, task
from gangflow.recipes.grpo.learner import sample_batch
from gangflow.recipes.grpo.policy import Policy
from gangflow.recipes.grpo.rollout import Rollout


def test_samples_through_json_are_those_made_in_process_to_the_bit() -> None:
    policy, problems = Policy.fresh(0), np.arange(0, 10_000, 201)
    seeds = np.random.default_rng(0).integers(0, 2**63, len(problems), dtype=np.uint64)
    asked = json.loads(json.dumps(exchange.ask(task.prompts_of(problems), seeds)))
    repeated = [prompt for prompt in asked for _ in range(8)]
    outputs = json.loads(json.dumps(exchange.answer(policy, repeated, [*range(8)] * len(problems))))
    answers, logprobs = exchange.read(outputs)
    expected = sample_batch(policy, policy, problems, seeds, 8)
    assert np.array_equal(answers, expected.answers)
    assert np.array_equal(logprobs, expected.logprobs)


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        "07+45=",
        {},
        {"text": "7+45=", "seed": 1},
        {"text": "07+45=", "seed": -1},
        {"text": "٠7+45=", "seed": 1},
        {"text": 7},
    ],
)
def test_what_is_not_a_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(ValueError, match="expected a"):
        exchange.answer(Policy.fresh(0), [prompt], [0])


@pytest.mark.parametrize("output", [None, {}, ["25", -1, -1, -1], ["2a0", -1, -1, -1], ["250", -1, -1], ["250", "x", -1, -1]])
def test_what_is_not_an_output_is_refused(output: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each says it in its own words
        exchange.read([output])


def test_a_rollout_draws_by_the_last_part_of_the_sample_id() -> None:
    rollout, policy = Rollout(), Policy.fresh(0)
    prompt = {"text": "12+34=", "seed": 5}
    params = {"sample_ids": ["r/3/0/0", "r/3/0/7", "r/3/0/7"]}
    first, second, third = rollout.generate(policy, [prompt] * 3, params)
    assert second == third
    assert first != second
    assert rollout.generate(policy, [prompt], {"sample_ids": ["other/9/1/0"]}) == [first]


def test_a_rollout_loads_what_the_trainer_saved(tmp_path: Path) -> None:
    policy = Policy.fresh(3)
    policy.save(tmp_path / "w.npz")
    assert Rollout().load(str(tmp_path / "w.npz")).fingerprint() == policy.fingerprint()
