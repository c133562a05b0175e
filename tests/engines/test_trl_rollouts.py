"""What TRL's rollout function asks and returns."""

from __future__ import annotations

import pytest
from trl import GRPOConfig

from gangflow.integrations.trl.rollouts import Asked, SkippedPrompts, asked, columns, params_of, seed_of
from gangflow.member.samples import PromptSamples, Sample, SampleId

# TRL's own defaults use names that transformers has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed in v6:FutureWarning")


def _group(number: int, *texts: tuple[int, ...], skipped: str = "") -> PromptSamples:
    samples = tuple(
        Sample(SampleId("g1", f"0/{number}", index), {"token_ids": list(text), "logprobs": [-1.0] * len(text)}, None, 0, 1, 1)
        for index, text in enumerate(texts)
    )
    return PromptSamples(number, None, samples, skipped)


def test_copies_of_a_prompt_are_asked_for_once() -> None:
    batch = asked([[1, 2], [1, 2], [3], [3]], 2)
    assert batch == [Asked(0, 2, (1, 2)), Asked(2, 2, (3,))]


def test_the_same_prompt_twice_is_two_questions() -> None:
    assert asked([[1], [1], [1], [1]], 2) == [Asked(0, 2, (1,)), Asked(2, 2, (1,))]


def test_an_evaluation_may_end_within_the_copies() -> None:
    assert [question.count for question in asked([[1], [1], [2]], 2)] == [2, 1]


def test_seeds_differ_by_run_step_and_prompt_and_are_the_same_again() -> None:
    seeds = {seed_of(seed, step, number) for seed in range(3) for step in range(10) for number in range(10)}
    assert len(seeds) == 300
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert seed_of(1, 2, 3) == seed_of(1, 2, 3)


def test_params_say_what_is_not_the_engines_default() -> None:
    plain = GRPOConfig("x", max_completion_length=7, use_cpu=True, report_to=[])
    assert params_of(plain, [1, 5]) == {"temperature": 1.0, "max_tokens": 7, "stop_token_ids": [1, 5]}
    other = GRPOConfig(
        "x", max_completion_length=7, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.1, temperature=0.5,
        generation_kwargs={"min_tokens": 2}, use_cpu=True, report_to=[],
    )  # fmt: skip
    assert params_of(other, []) == {
        "temperature": 0.5, "max_tokens": 7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 2,
    }  # fmt: skip


def test_columns_have_a_row_for_each_completion() -> None:
    batch = [Asked(0, 2, (8, 9)), Asked(2, 2, (7,))]
    made = columns(batch, [_group(0, (1,), (2, 3)), _group(1, (4,), (5,))], filler=0, mask=False)
    assert made == {
        "prompt_ids": [[8, 9], [8, 9], [7], [7]],
        "completion_ids": [[1], [2, 3], [4], [5]],
        "logprobs": [[-1.0], [-1.0, -1.0], [-1.0], [-1.0]],
        "skipped": [False, False, False, False],
    }


def test_a_skipped_prompt_is_an_error_or_masked_and_never_scored() -> None:
    """What could not be sampled is no sample of reward 0."""
    batch = [Asked(0, 2, (8, 9)), Asked(2, 2, (7,))]
    groups = [_group(0, (1,), (2, 3)), _group(1, skipped="HTTP 400: too long")]
    with pytest.raises(SkippedPrompts, match="1 of 2 prompts were skipped, the first for: HTTP 400: too long"):
        columns(batch, groups, filler=6, mask=False)
    made = columns(batch, groups, filler=6, mask=True)
    assert made["completion_ids"] == [[1], [2, 3], [6], [6]]
    assert made["env_mask"] == [[1], [1, 1], [0], [0]]
    assert made["skipped"] == [False, False, True, True]
