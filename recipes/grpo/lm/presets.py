"""What people run, as changes of the defaults (`tiny`); and machines that the large ones fill.

The sums behind the sizes, in bytes per parameter: a trainer with Adam in float32 has 16 (weights, gradients, two moments),
split over its GPUs; engine and reference have 2 (bfloat16), split over theirs. With GPUs of 80 GB: 8B trains on 4 of them
(32 GB each) and is served by one; 70B trains on 32 at least (35 GB each; the rest is activations) and is served by 4.
"""

from __future__ import annotations

from typing import Any, Final

_GPU: Final[dict[str, Any]] = {
    "device": "gpu",
    "dtype": "bfloat16",
    "sharding": "full",
    "checkpointing": True,
    "level": "nvlink",
    "steps": 1_000,
    "prompts": 64,
    "samples": 8,
    "micro_batch": 2,
    "epochs": 1,
    "max_tokens": 2_048,
    "max_prompt_tokens": 1_024,
    "max_model_len": 4_096,
    "learning_rate": 1e-6,
    "min_learning_rate": 1e-7,
    "warmup": 10,
    "kl_weight": 1e-3,
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
    "quorum_timeout": "30m",
    "hang_timeout": "30m",
    "no_progress_timeout": "2h",
    "sync_timeout": "10m",
    "unhealthy_timeout": "1m",
    "start_timeout": "30m",
    "actor_cpu": 48,
    "actor_mem": "768GiB",
    "rollout_cpu": 8,
    "rollout_mem": "64GiB",
    "reward_cpu": 4,
    "reward_mem": "8GiB",
    "ref_cpu": 8,
    "ref_mem": "64GiB",
}
_8B: Final[dict[str, Any]] = {**_GPU, "model": "/models/8b"}
_70B: Final[dict[str, Any]] = {
    **_GPU,
    "model": "/models/70b",
    "micro_batch": 1,
    "tensor_parallel": 8,
    "ref_gpus": 8,
    "rollout_cpu": 48,
    "rollout_mem": "512GiB",
    "ref_cpu": 48,
    "ref_mem": "512GiB",
    "actor_mem": "1TiB",
    # 141 GB a push.
    "sync_timeout": "30m",
    "quorum_timeout": "1h",
    "hang_timeout": "1h",
}
_ASYNC: Final[dict[str, Any]] = {"max_staleness": 1, "pause": "keep"}

PRESETS: Final[dict[str, dict[str, Any]]] = {
    "tiny": {},
    "tiny-smoke": {"steps": 4, "prompts": 4, "samples": 4, "micro_batch": 16, "checkpoint_every": 2, "evaluate_every": 4},
    "tiny-async": _ASYNC,
    "tiny-ranks": {"actor_procs": 2, "actor_cpu": 2},
    "tiny-trl": {"trainer": "trl"},
    "8b-1-host": {**_8B, "actor_procs": 4, "rollouts": 3, "min_rollouts": 1},
    "8b-2-hosts": {
        **_8B,
        "actor_procs": 8,
        "rollouts": 3,
        "min_rollouts": 2,
        "tensor_parallel": 2,
        "ref_replicas": 2,
    },
    "8b-16-hosts": {
        **_8B,
        **_ASYNC,
        "prompts": 512,
        "actor_tasks": 4,
        "actor_procs": 8,
        "pack_actor": "switch",
        "actor_cpu": 88,
        "tensor_parallel": 2,
        "rollouts": 44,
        "min_rollouts": 32,
        "ref_replicas": 8,
        "reward_replicas": 8,
    },
    "70b-16-hosts": {
        **_70B,
        **_ASYNC,
        "prompts": 512,
        "actor_tasks": 8,
        "actor_procs": 8,
        "pack_actor": "switch",
        "actor_cpu": 88,
        "rollouts": 6,
        "min_rollouts": 4,
        "ref_replicas": 2,
        "reward_replicas": 4,
    },
    "70b-nvl72": {
        **_70B,
        **_ASYNC,
        "prompts": 640,
        "actor_tasks": 10,
        "actor_procs": 4,
        "gpus_per_host": 4,
        "pack_actor": "nvlink",
        "actor_cpu": 88,
        "rollouts": 3,
        "min_rollouts": 2,
        "ref_gpus": 4,
        "ref_replicas": 2,
        "reward_replicas": 4,
    },
}
"""`tiny` learns on a CPU; `tiny-smoke` runs every part of it for 4 small steps; `tiny-async` overlaps generation and training;
`tiny-ranks` trains with two; `tiny-trl` with TRL. The others are for real machines: model class and how many hosts, with 8 GPUs
of 80 GB each; `70b-nvl72` for one rack of 18 hosts with 4 GPUs in one NVLink domain, where an engine spans two hosts."""

MACHINES: Final[dict[str, tuple[int, int, int]]] = {
    "8b-1-host": (1, 8, 1),
    "8b-2-hosts": (2, 8, 1),
    "8b-16-hosts": (16, 8, 1),
    "70b-16-hosts": (16, 8, 1),
    "70b-nvl72": (18, 4, 18),
}
"""What `recipes.lm.machines.machine` is given for a cluster that the preset fills."""
