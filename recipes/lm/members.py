"""The parts that the groups of both recipes have in common: trainer, vLLM rollouts, reference, coordinator, environment, model.

Imports neither torch nor vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from gangflow.integrations.vllm.launch import RENDEZVOUS, VllmServer
from gangflow.recipes.lm import claim
from gangflow.recipes.lm.settings import Settings
from gangflow.recipes.services.rules import PORT, actor_rules, ms, ranked, restart, rollout_rules, served, watched
from gangflow.specs.claims import Claim
from gangflow.specs.coordinator import RLCoordinator
from gangflow.specs.member import Job, Pack, ReplicaSet

SERVED: Final = "policy"
"""The name under which the engines serve the model."""


def actor(config: Settings, program: str) -> Job:
    """The trainer: a module, by torchrun where it has several ranks; over several hosts they meet at a port of the first."""
    several = config.actor_tasks > 1
    return Job(
        ranked(config.python, program, config.actor_procs, config.actor_tasks),
        tasks=config.actor_tasks if several else None,
        resources=resources(config, config.actor_cpu, config.actor_mem, config.actor_procs),
        ports=[RENDEZVOUS] if several else [],
        pack=Pack(config.pack_actor) if config.pack_actor else None,
        claims=of_members(config),
        termination_grace="15s",
        on_failure=actor_rules(config.max_restarts),
    )


def rollout(config: Settings, logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] = "raw_logprobs") -> ReplicaSet:
    """Plain `vllm serve`, tensor-parallel within one domain of the topology. `logprobs_mode`: see `VllmServer`."""
    server = VllmServer(
        model_claim=claim.MODEL,
        served_name=SERVED,
        device=config.device,
        dtype=config.dtype,
        tensor_parallel=config.tensor_parallel,
        hosts=-(-config.tensor_parallel // config.gpus_per_host),
        max_model_len=config.max_model_len,
        gpu_memory_utilization=config.gpu_memory_utilization,
        logprobs_mode=logprobs_mode,
        command=config.vllm,
        extra_args=config.vllm_args,
    )
    return server.replica_set(
        config.rollouts,
        resources=resources(config, config.rollout_cpu, config.rollout_mem),
        min_replicas=config.min_rollouts,
        max_replicas=config.max_rollouts,
        claims=of_members(config),
        pack_slot=Pack(config.level, required=True) if config.level else None,
        ready_timeout=ms(config.start_timeout),
        on_failure=rollout_rules(config.max_restarts, config.min_rollouts, config.quorum_timeout),
    )


def reference(config: Settings, arguments: Sequence[str] = ()) -> ReplicaSet:
    """Log-probabilities under the frozen first policy."""
    return ReplicaSet(
        [config.python, "-m", "gangflow.recipes.lm.reference", *arguments],
        replicas=config.ref_replicas,
        claims=of_members(config),
        resources=resources(config, config.ref_cpu, config.ref_mem, config.ref_gpus),
        ready_timeout=ms(config.start_timeout),
        on_failure=[restart(config.max_restarts, then="fail_group")],
        live=watched(),
        **served(),
    )


def coordinator(config: Settings, **more: Any) -> RLCoordinator:
    """Who brings weights to the rollouts; `more`: what a recipe has settings for."""
    return RLCoordinator(
        actor="actor",
        rollout="rollout",
        port=PORT,
        engine="vllm",
        min_rollouts=config.min_rollouts,
        probe_tolerance=config.probe_tolerance,
        probe_mean_tolerance=config.probe_mean_tolerance,
        quorum_timeout=ms(config.quorum_timeout),
        hang_timeout=ms(config.hang_timeout),
        no_progress_timeout=ms(config.no_progress_timeout),
        sync_timeout=ms(config.sync_timeout),
        unhealthy_timeout=ms(config.unhealthy_timeout),
        **more,
    )


def environment(config: Settings) -> dict[str, str]:
    """What all programs of the group are told."""
    return {
        config.variable: config.for_programs(),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        # Several processes share the machine: one thread each, or they take turns in waiting for each other.
        **({"OMP_NUM_THREADS": "1"} if config.device == "cpu" else {}),
    }


def of_group(config: Settings) -> list[Claim]:
    """The model, where it is read in place; empty for one that is copied to the hosts of those who read it."""
    return [] if config.model_sha256 else [claim.in_place(config.model)]


def of_members(config: Settings) -> list[Claim]:
    """The model, for a member that reads it: only where it is copied to its host."""
    return [claim.copied(config.model, config.model_sha256)] if config.model_sha256 else []


def resources(config: Settings, cpu: int, mem: int, gpus: int = 0) -> dict[str, Any]:
    """Of one task: thousandths of a CPU, MiB, and GPUs where the recipe computes on them."""
    wanted: dict[str, Any] = {"cpu": cpu / 1_000, "mem": mem}
    if gpus and config.device == "gpu":
        wanted["gpus"] = gpus
    return wanted
