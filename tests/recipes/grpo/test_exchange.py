"""Prompts and outputs as JSON."""

import json
from typing import Any

import numpy as np
import pytest

from gangflow.recipes.grpo import exchange, task
from gangflow.recipes.grpo.learner import sample_batch
from gangflow.recipes.grpo.policy import Policy


def test_samples_through_json_are_those_made_in_process_to_the_bit() -> None:
    policy, problems = Policy.fresh(0), np.arange(0, 10_000, 201)
    seeds = np.random.default_rng(0).integers(0, 2**63, len(problems), dtype=np.uint64)
    asked = json.loads(json.dumps(exchange.ask(task.prompts_of(problems), seeds)))
    groups = json.loads(json.dumps(exchange.answer(policy, asked, 8)))
    assert [len(group) for group in groups] == [8] * len(problems)
    answers, logprobs = exchange.read([output for group in groups for output in group])
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
        exchange.answer(Policy.fresh(0), [prompt], 2)


@pytest.mark.parametrize("output", [None, {}, ["25", -1, -1, -1], ["2a0", -1, -1, -1], ["250", -1, -1], ["250", "x", -1, -1]])
def test_what_is_not_an_output_is_refused(output: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each says it in its own words
        exchange.read([output])
