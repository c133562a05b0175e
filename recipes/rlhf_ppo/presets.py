"""What people run, as changes of the defaults (`tiny`); and machines that the large ones fill.

The sums behind the sizes, in bytes per parameter: whatever is trained with Adam in float32 has 16 (weights, gradients, two
moments), split over its GPUs: policy, critic and reward model. Engine and reference have 2 (bfloat16). With GPUs of 80 GB: 8B
trains on 2 of them at the least (64 GB each), better on 4, and is served by one; 70B trains on 32 (35 GB each; the rest is
activations) and is served by 4. Critic and reward model may be smaller than the policy, and have one host each: here the 70B
policy has an 8B critic and an 8B reward model.
"""

from __future__ import annotations

from typing import Any, Final

_GPU: Final[dict[str, Any]] = {
    "device": "gpu",
    "dtype": "bfloat16",
    "sharding": "full",
    "checkpointing": True,
    "level": "nvlink",
    "data": "/data/preferences.jsonl",
    "steps": 1_000,
    "prompts": 512,
    "samples": 1,
    "minibatches": 4,
    "critic_minibatches": 4,
    "epochs": 1,
    "critic_epochs": 1,
    "micro_batch": 2,
    "max_tokens": 1_024,
    "max_prompt_tokens": 1_024,
    "max_model_len": 2_048,
    "learning_rate": 1e-6,
    "critic_learning_rate": 5e-6,
    "beta2": 0.95,
    "schedule": "cosine",
    "warmup": 10,
    "kl_weight": 0.05,
    "kl_target": 6.0,
    "kl_horizon": 10_000.0,
    "held_out_pairs": 2_000,
    "reward_epochs": 1,
    "reward_batch": 64,
    "reward_learning_rate": 5e-6,
    "checkpoint_every": 20,
    "evaluate_every": 20,
    # With the same weights two kernels in bfloat16 differ by a few hundredths of a nat in the mean, on single tokens by half a
    # nat and more: of what is wrong, both are far beyond.
    "max_drift": 5.0,
    "max_mean_drift": 0.1,
    "probe_tolerance": 5.0,
    "probe_mean_tolerance": 0.15,
    "patience": "35m",
    "request_timeout": "10m",
    "reward_timeout": "12h",
    "quorum_timeout": "30m",
    "hang_timeout": "30m",
    "no_progress_timeout": "2h",
    "sync_timeout": "10m",
    "unhealthy_timeout": "1m",
    "start_timeout": "30m",
    "actor_cpu": 32,
    "actor_mem": "512GiB",
    "critic_cpu": 16,
    "critic_mem": "384GiB",
    "rollout_cpu": 8,
    "rollout_mem": "64GiB",
    "reward_cpu": 16,
    "reward_mem": "256GiB",
    "ref_cpu": 4,
    "ref_mem": "64GiB",
}
_1B: Final[dict[str, Any]] = {**_GPU, "model": "/models/1b", "micro_batch": 8}
_8B: Final[dict[str, Any]] = {**_GPU, "model": "/models/8b"}
_70B: Final[dict[str, Any]] = {
    **_GPU,
    "model": "/models/70b",
    "critic_model": "/models/8b",
    "reward_base": "/models/8b",
    "micro_batch": 1,
    "tensor_parallel": 8,
    "ref_gpus": 8,
    "rollout_cpu": 48,
    "rollout_mem": "512GiB",
    "ref_cpu": 48,
    "ref_mem": "512GiB",
    "actor_cpu": 88,
    "actor_mem": "1TiB",
    # 141 GB a push.
    "sync_timeout": "30m",
    "quorum_timeout": "1h",
    "hang_timeout": "1h",
}

PRESETS: Final[dict[str, dict[str, Any]]] = {
    "tiny": {},
    "tiny-smoke": {
        "steps": 4,
        "prompts": 8,
        "samples": 2,
        "pairs": 200,
        "held_out_pairs": 100,
        "reward_epochs": 1,
        "checkpoint_every": 2,
        "evaluate_every": 4,
        "evaluate_prompts": 10,
    },
    "1b-1-host": {**_1B, "actor_procs": 2, "critic_procs": 2, "rollouts": 2},
    "8b-2-hosts": {**_8B, "actor_procs": 4, "critic_procs": 4, "reward_procs": 4, "rollouts": 3, "min_rollouts": 2},
    "8b-16-hosts": {
        **_8B,
        "prompts": 4_096,
        "actor_tasks": 4,
        "actor_procs": 8,
        "actor_cpu": 88,
        "pack_actor": "switch",
        "critic_procs": 8,
        "reward_procs": 4,
        "reward_replicas": 2,
        "ref_replicas": 8,
        "rollouts": 72,
        "min_rollouts": 48,
    },
    "70b-16-hosts": {
        **_70B,
        "prompts": 1_024,
        "actor_tasks": 8,
        "actor_procs": 8,
        "pack_actor": "switch",
        "critic_procs": 4,
        "reward_procs": 4,
        "ref_replicas": 2,
        "rollouts": 5,
        "min_rollouts": 3,
    },
}
"""`tiny` learns on a CPU; `tiny-smoke` runs every part of it for 4 small steps. The others are for real machines: the policy's
class and how many hosts, with 8 GPUs of 80 GB each."""

MACHINES: Final[dict[str, int]] = {"1b-1-host": 1, "8b-2-hosts": 2, "8b-16-hosts": 16, "70b-16-hosts": 16}
"""Hosts of a `recipes.lm.machines.machine` that the preset fills."""
