"""The group: what runs, on what, what a failure means. Imports neither torch nor vLLM.

| member  | kind         | does                                                  | when it fails                              |
|---------|--------------|-------------------------------------------------------|--------------------------------------------|
| actor   | job, primary | trains the policy, by torchrun where there are ranks  | restarts whole, from its newest checkpoint |
| critic  | replica set  | values of tokens; trains its own model with the actor | restarts; the actor brings it to its step  |
| rollout | replica set  | plain `vllm serve`, tensor-parallel in one domain     | restarts, gets the weights, is admitted    |
| reward  | replica set  | trains the reward model, then scores replies          | restarts; serves what it had trained       |
| ref     | replica set  | log-probabilities under the frozen first policy       | restarts; the actor asks again             |
"""

from __future__ import annotations

from typing import Any, Final

from gangflow.integrations.vllm.launch import RENDEZVOUS, VllmServer, find_vllm
from gangflow.recipes.lm import claim, inputs
from gangflow.recipes.rlhf_ppo import data
from gangflow.recipes.rlhf_ppo.config import CLERK, COUNTER, VARIABLE, Config
from gangflow.recipes.rlhf_ppo.presets import PRESETS
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

SERVED: Final = "policy"
"""The name under which the engines serve the model."""
PLOT: Final = "gangflow.recipes.rlhf_ppo.plot"
"""Draws a picture of a run's metrics."""
MAKER: Final = "gangflow.recipes.rlhf_ppo.clerk"
TASK: Final = "gangflow.recipes.rlhf_ppo.task"
"""What the maker's model learns to say."""


def build(config: Config) -> CoStartGroup:
    """The co-start group of a configuration."""
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
            min_rollouts=config.min_rollouts,
            max_staleness=0,
            probe_tolerance=config.probe_tolerance,
            probe_mean_tolerance=config.probe_mean_tolerance,
            quorum_timeout=ms(config.quorum_timeout),
            hang_timeout=ms(config.hang_timeout),
            no_progress_timeout=ms(config.no_progress_timeout),
            sync_timeout=ms(config.sync_timeout),
            unhealthy_timeout=ms(config.unhealthy_timeout),
        ),
        # All are READY by then, the reward model among them: trained.
        barrier={"start_timeout": ms(config.start_timeout + config.reward_timeout)},
        members={
            "actor": _actor(config),
            "critic": ReplicaSet(
                _ranked(config, "critic", config.critic_procs),
                replicas=1,
                claims=_of_members(config),
                resources=_resources(config.critic_cpu, config.critic_mem, _gpus(config, config.critic_procs)),
                ready_timeout=ms(config.start_timeout),
                on_failure=[restart(config.max_restarts, then="fail_group")],
                live=watched(),
                **served(),
            ),
            "rollout": _rollout(config),
            "reward": ReplicaSet(
                _ranked(config, "reward", config.reward_procs),
                replicas=config.reward_replicas,
                claims=_of_members(config),
                resources=_resources(config.reward_cpu, config.reward_mem, _gpus(config, config.reward_procs)),
                # READY means that the model is trained.
                ready_timeout=ms(config.start_timeout + config.reward_timeout),
                on_failure=reader_rules(config.max_restarts),
                live=watched(),
                **served(),
            ),
            "ref": ReplicaSet(
                [config.python, "-m", "gangflow.recipes.lm.reference", "--config", VARIABLE],
                replicas=config.ref_replicas,
                claims=_of_members(config),
                resources=_resources(config.ref_cpu, config.ref_mem, _gpus(config, config.ref_gpus)),
                ready_timeout=ms(config.start_timeout),
                on_failure=[restart(config.max_restarts, then="fail_group")],
                live=watched(),
                **served(),
            ),
        },
    )


def cluster(config: Config) -> ClusterSpec | None:
    """A machine split into virtual hosts that the group fills; None for GPUs, which are not to be pretended."""
    if config.device == "gpu":
        return None
    judges_cpu = config.critic_cpu + config.reward_replicas * config.reward_cpu + config.ref_replicas * config.ref_cpu
    judges_mem = config.critic_mem + config.reward_replicas * config.reward_mem + config.ref_replicas * config.ref_mem
    others = config.actor_tasks + max(config.max_rollouts or config.rollouts, config.rollouts)
    return ClusterSpec(
        name="virtual",
        hosts=[
            HostSpec(
                name=f"h[0-{others}]",
                cpu=max(config.actor_cpu, judges_cpu, config.rollout_cpu) / 1_000,
                mem=max(config.actor_mem, judges_mem, config.rollout_mem),
                gpus=0,
            )
        ],
    )


def missing(config: Config) -> list[Fault]:
    """The faults of what the group would read or start, if this machine were all of its hosts."""
    return [
        *(inputs.unreadable("data", config.data, lambda: data.load(config)) if config.data != COUNTER else ()),
        *(
            fault
            for key in ("model", "critic_model", "reward_base", "reward_model")
            for fault in inputs.missing_model(key, getattr(config, key))
        ),
        *inputs.missing_torch("python", config.python),
        *inputs.missing_program("vllm", config.vllm or find_vllm(), inputs.ENGINES),
    ]


def _actor(config: Config) -> Job:
    several = config.actor_tasks > 1
    return Job(
        _ranked(config, "actor", config.actor_procs, config.actor_tasks),
        tasks=config.actor_tasks if several else None,
        resources=_resources(config.actor_cpu, config.actor_mem, _gpus(config, config.actor_procs)),
        ports=[RENDEZVOUS] if several else [],
        pack=Pack(config.pack_actor) if config.pack_actor else None,
        claims=_of_members(config),
        termination_grace="15s",
        on_failure=actor_rules(config.max_restarts),
    )


def _rollout(config: Config) -> ReplicaSet:
    server = VllmServer(
        model_claim=claim.MODEL,
        served_name=SERVED,
        device=config.device,
        dtype=config.dtype,
        tensor_parallel=config.tensor_parallel,
        hosts=-(-config.tensor_parallel // config.gpus_per_host),
        max_model_len=config.max_model_len,
        gpu_memory_utilization=config.gpu_memory_utilization,
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


def _ranked(config: Config, program: str, procs: int, tasks: int = 1) -> list[str]:
    return ranked(config.python, f"gangflow.recipes.rlhf_ppo.{program}", procs, tasks)


def _of_group(config: Config) -> list[Claim]:
    if config.model == CLERK:
        return [claim.made(MAKER, config.python, TASK)]
    return [] if config.model_sha256 else [claim.in_place(config.model)]


def _of_members(config: Config) -> list[Claim]:
    """What only those get who read it: it is copied to their hosts."""
    return [claim.copied(config.model, config.model_sha256)] if config.model_sha256 else []


def _gpus(config: Config, count: int) -> int:
    return count if config.device == "gpu" else 0


def _resources(cpu: int, mem: int, gpus: int = 0) -> dict[str, Any]:
    wanted: dict[str, Any] = {"cpu": cpu / 1_000, "mem": mem}
    if gpus:
        wanted["gpus"] = gpus
    return wanted
