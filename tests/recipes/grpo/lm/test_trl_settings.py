"""What TRL is told for a configuration of the recipe."""

from __future__ import annotations

from typing import Any

import pytest

from gangflow.recipes.grpo.lm.config import LmConfig
from gangflow.recipes.grpo.lm.trl_settings import arguments, micro_batch, updates


def _config(**settings: Any) -> LmConfig:
    return LmConfig(trainer="trl", **settings)


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"prompts": 16, "samples": 8, "micro_batch": 128}, 128),
        ({"prompts": 16, "samples": 8, "micro_batch": 100}, 64),
        ({"prompts": 16, "samples": 8, "micro_batch": 100, "minibatches": 4}, 32),
        ({"prompts": 16, "samples": 8, "micro_batch": 100, "actor_procs": 2}, 64),
        ({"prompts": 7, "samples": 3, "micro_batch": 10}, 7),
    ],
)
def test_a_pass_is_the_largest_part_that_divides_a_ranks_minibatch(settings: dict[str, Any], size: int) -> None:
    assert micro_batch(_config(**settings)) == size


def test_a_step_is_one_generation_however_many_updates_it_has() -> None:
    config = _config(prompts=16, samples=8, micro_batch=16, minibatches=2, epochs=3, steps=10, checkpoint_every=5, warmup=4)
    told = arguments(config, "/ckpt/trainer")
    assert updates(config) == 6
    assert told["per_device_train_batch_size"] * told["steps_per_generation"] == 16 * 8
    assert told["steps_per_generation"] == told["gradient_accumulation_steps"] * 2
    assert (told["max_steps"], told["save_steps"], told["warmup_steps"], told["logging_steps"]) == (60, 30, 24, 6)
    assert told["num_iterations"] == 3


def test_ranks_share_a_generation() -> None:
    told = arguments(_config(prompts=16, samples=8, micro_batch=16, actor_procs=2), "x")
    assert told["per_device_train_batch_size"] * told["steps_per_generation"] * 2 == 16 * 8


def test_clips_are_told_as_distances_from_one() -> None:
    told = arguments(_config(clip_low=0.8, clip_high=1.28, importance_cap=3), "x")
    assert (told["epsilon"], told["epsilon_high"], told["vllm_importance_sampling_clip_max"]) == (0.2, 0.28, 3)


@pytest.mark.parametrize(
    ("schedule", "name", "more"),
    [
        ("constant", "constant_with_warmup", {}),
        ("linear", "polynomial", {"lr_end": 1e-7, "power": 1.0}),
        ("cosine", "cosine_with_min_lr", {"min_lr": 1e-7}),
    ],
)
def test_a_schedule_ends_at_its_minimum(schedule: Any, name: str, more: dict[str, float]) -> None:
    told = arguments(_config(schedule=schedule, min_learning_rate=1e-7), "x")
    assert (told["lr_scheduler_type"], told["lr_scheduler_kwargs"]) == (name, more)


def test_what_computes_in_what() -> None:
    told = [
        arguments(_config(device=device, dtype=dtype), "x")
        for device, dtype in (("cpu", "float32"), ("cpu", "bfloat16"), ("gpu", "float32"), ("gpu", "bfloat16"))
    ]
    assert [each["use_cpu"] for each in told] == [True, True, False, False]
    # As the engines: else what they sampled would be compared with another precision.
    assert [each["bf16"] for each in told] == [False, False, False, True]
