"""A configuration of the recipe as arguments of TRL's `GRPOConfig`. Pure: imports neither TRL nor torch.

A step of the recipe (`prompts` × `samples`) is one generation of TRL's, with `epochs` × `minibatches` optimizer steps; TRL
counts the latter. What TRL has no setting for is refused with the configuration.
"""

from __future__ import annotations

from typing import Any

from gangflow.recipes.grpo.lm.config import LmConfig

_SCHEDULES = {"constant": "constant_with_warmup", "linear": "polynomial", "cosine": "cosine_with_min_lr"}


def updates(config: LmConfig) -> int:
    """Optimizer steps in a step of the recipe."""
    return config.epochs * config.minibatches


def micro_batch(config: LmConfig) -> int:
    """Samples of one forward and backward of a rank: the most up to `micro_batch` that divide its part of a minibatch."""
    part = config.prompts * config.samples // (config.ranks * config.minibatches)
    return max(size for size in range(1, min(config.micro_batch, part) + 1) if part % size == 0)


def arguments(config: LmConfig, output_dir: str) -> dict[str, Any]:
    """Of `GRPOConfig`."""
    size, each = micro_batch(config), updates(config)
    passes = config.prompts * config.samples // (config.ranks * size)
    schedule: dict[str, Any] = {}
    if config.schedule == "linear":
        schedule = {"lr_end": config.min_learning_rate, "power": 1.0}
    elif config.schedule == "cosine":
        schedule = {"min_lr": config.min_learning_rate}
    return {
        "output_dir": output_dir,
        "seed": config.seed,
        "max_steps": config.steps * each,
        "per_device_train_batch_size": size,
        "steps_per_generation": passes,
        "gradient_accumulation_steps": passes // config.minibatches,
        "num_generations": config.samples,
        "num_iterations": config.epochs,
        "max_completion_length": config.max_tokens,
        "temperature": config.temperature,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": _SCHEDULES[config.schedule],
        "lr_scheduler_kwargs": schedule,
        "warmup_steps": config.warmup * each,
        "adam_beta1": config.beta1,
        "adam_beta2": config.beta2,
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.grad_clip,
        "epsilon": round(1 - config.clip_low, 12),
        "epsilon_high": round(config.clip_high - 1, 12),
        "beta": config.kl_weight,
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": config.importance_cap,
        "bf16": config.device == "gpu" and config.dtype == "bfloat16",
        "use_cpu": config.device == "cpu",
        "model_init_kwargs": {"dtype": "float32"},
        "gradient_checkpointing": config.checkpointing,
        "save_steps": config.checkpoint_every * each,
        "save_total_limit": config.keep_checkpoints,
        "logging_steps": each,
        "report_to": [],
        "disable_tqdm": True,
        # The other ranks wait while the first one waits for rollouts.
        "ddp_timeout": 86_400,
    }
