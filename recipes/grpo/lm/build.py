"""The group: what runs, on what, what a failure means. Imports neither torch nor vLLM.

| member  | kind         | does                                              | when it fails                              |
|---------|--------------|---------------------------------------------------|--------------------------------------------|
| actor   | job, primary | trains, by torchrun where it has several ranks    | restarts whole, from its newest checkpoint |
| rollout | replica set  | plain `vllm serve`, tensor-parallel in one domain | restarts, gets the weights, is admitted    |
| reward  | replica set  | verifies answers                                  | restarts; the actor asks again             |
| ref     | replica set  | log-probabilities under the frozen first policy   | restarts; the actor asks again             |

`ref` is left out where nobody asks it: without a KL term (`kl_weight` 0), and with TRL, whose trainer has its own.
"""

from __future__ import annotations

from typing import Any, Final

from gangflow.integrations.vllm.launch import RENDEZVOUS, VllmServer, find_vllm
from gangflow.recipes.grpo.lm.config import TINY, VARIABLE, LmConfig
from gangflow.recipes.grpo.lm.presets import PRESETS
from gangflow.recipes.lm import claim, inputs
from gangflow.recipes.services.rules import (
    CKPT,
    PORT,
    WRONG_POLICY,
    actor_rules,
    ms,
    ranked,
    reader_rules,
    restart,
    rollout_rules,
    served,
    watched,
)
from gangflow.specs.claims import Claim
from gangflow.specs.cluster import ClusterSpec, HostSpec
from gangflow.specs.coordinator import RLCoordinator
from gangflow.specs.faults import Fault
from gangflow.specs.group import CoStartGroup
from gangflow.specs.member import Job, Pack, ReplicaSet

__all__ = ["CKPT", "PLOT", "PORT", "PRESETS", "SERVED", "WRONG_POLICY", "Config", "build", "cluster", "missing"]

Config = LmConfig

SERVED: Final = "policy"
"""The name under which the engines serve the model."""
PLOT: Final = "gangflow.recipes.grpo.plot"
"""Draws a picture of a run's metrics."""
MAKER: Final = "gangflow.recipes.lm.tiny"


def build(config: LmConfig) -> CoStartGroup:
    """The co-start group of a configuration."""
    members: dict[str, Job | ReplicaSet] = {
        "actor": _actor(config),
        "rollout": _rollout(config),
        "reward": ReplicaSet(
            [config.python, "-m", "gangflow.recipes.lm.verifier"],
            replicas=config.reward_replicas,
            resources=_resources(config.reward_cpu, config.reward_mem),
            on_failure=reader_rules(config.max_restarts),
            live=watched(),
            **served(),
        ),
    }
    if config.kl_weight and config.trainer == "torch":
        members["ref"] = ReplicaSet(
            [config.python, "-m", "gangflow.recipes.lm.reference"],
            replicas=config.ref_replicas,
            claims=_of_members(config),
            resources=_resources(config.ref_cpu, config.ref_mem, config.ref_gpus if config.device == "gpu" else 0),
            ready_timeout=ms(config.start_timeout),
            on_failure=[restart(config.max_restarts, then="fail_group")],
            live=watched(),
            **served(),
        )
    return CoStartGroup(
        config.name,
        priority=config.priority,
        environment={
            VARIABLE: config.for_programs(),
            "PYTHONUNBUFFERED": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            # Several processes share the machine: one thread each, or they take turns in waiting for each other.
            **({"OMP_NUM_THREADS": "1"} if config.device == "cpu" else {}),
        },
        claims=[Claim(CKPT, provider="directory", retain=True), *_of_group(config)],
        coordinator=RLCoordinator(
            actor="actor",
            rollout="rollout",
            port=PORT,
            engine="vllm",
            pause=config.pause,
            min_rollouts=config.min_rollouts,
            max_staleness=config.max_staleness,
            probe_tolerance=config.probe_tolerance,
            probe_mean_tolerance=config.probe_mean_tolerance,
            quorum_timeout=ms(config.quorum_timeout),
            hang_timeout=ms(config.hang_timeout),
            no_progress_timeout=ms(config.no_progress_timeout),
            sync_timeout=ms(config.sync_timeout),
            unhealthy_timeout=ms(config.unhealthy_timeout),
        ),
        barrier={"start_timeout": ms(config.start_timeout)},
        members=members,
    )


def cluster(config: LmConfig) -> ClusterSpec | None:
    """A machine split into virtual hosts that the group fills; None for GPUs, which are not to be pretended."""
    if config.device == "gpu":
        return None
    judges_cpu = config.reward_replicas * config.reward_cpu + config.ref_replicas * config.ref_cpu
    judges_mem = config.reward_replicas * config.reward_mem + config.ref_replicas * config.ref_mem
    cpu = max(config.actor_cpu + judges_cpu, config.rollout_cpu) / 1_000
    mem = max(config.actor_mem + judges_mem, config.rollout_mem)
    others = config.actor_tasks - 1 + max(config.max_rollouts or config.rollouts, config.rollouts)
    return ClusterSpec(name="virtual", hosts=[HostSpec(name=f"h[0-{others}]", cpu=cpu, mem=mem, gpus=0)])


def missing(config: LmConfig) -> list[Fault]:
    """The faults of what the group would read or start, if this machine were all of its hosts."""
    return [
        *inputs.missing_problems("problems", config.problems, config.split_seed),
        *inputs.missing_model("model", config.model),
        *inputs.missing_model("ref_model", config.ref_model),
        *inputs.missing_torch("python", config.python),
        *inputs.missing_program("vllm", config.vllm or find_vllm(), inputs.ENGINES),
    ]


def _actor(config: LmConfig) -> Job:
    program = "trl_actor" if config.trainer == "trl" else "actor"
    return Job(
        ranked(config.python, f"gangflow.recipes.grpo.lm.{program}", config.actor_procs, config.actor_tasks),
        tasks=config.actor_tasks if config.actor_tasks > 1 else None,
        resources=_resources(config.actor_cpu, config.actor_mem, config.actor_procs if config.device == "gpu" else 0),
        ports=[RENDEZVOUS] if config.ranks > 1 else [],
        pack=Pack(config.pack_actor) if config.pack_actor else None,
        claims=_of_members(config),
        termination_grace="15s",
        on_failure=actor_rules(config.max_restarts),
    )


def _rollout(config: LmConfig) -> ReplicaSet:
    hosts = -(-config.tensor_parallel // config.gpus_per_host)
    server = VllmServer(
        model_claim=claim.MODEL,
        served_name=SERVED,
        device=config.device,
        dtype=config.dtype,
        tensor_parallel=config.tensor_parallel,
        hosts=hosts,
        max_model_len=config.max_model_len,
        gpu_memory_utilization=config.gpu_memory_utilization,
        # The trainer corrects for the distribution that was sampled from.
        logprobs_mode="raw_logprobs" if config.temperature == 1 else "processed_logprobs",
        command=config.vllm,
        extra_args=config.vllm_args,
    )
    return server.replica_set(
        config.rollouts,
        resources=_resources(config.rollout_cpu, config.rollout_mem),
        min_replicas=config.min_rollouts,
        max_replicas=config.max_rollouts,
        claims=_of_members(config),
        pack_slot=Pack(config.level, required=True) if config.level else None,
        ready_timeout=ms(config.start_timeout),
        on_failure=rollout_rules(config.max_restarts, config.min_rollouts, config.quorum_timeout),
    )


def _of_group(config: LmConfig) -> list[Claim]:
    if config.model == TINY:
        return [claim.made(MAKER, config.python)]
    return [] if config.model_sha256 else [claim.in_place(config.model)]


def _of_members(config: LmConfig) -> list[Claim]:
    """What only those get who read it: it is copied to their hosts."""
    return [claim.copied(config.model, config.model_sha256)] if config.model_sha256 else []


def _resources(cpu: int, mem: int, gpus: int = 0) -> dict[str, Any]:
    wanted: dict[str, Any] = {"cpu": cpu / 1_000, "mem": mem}
    if gpus:
        wanted["gpus"] = gpus
    return wanted
