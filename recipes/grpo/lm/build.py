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

from typing import Final

from gangflow.integrations.vllm.launch import find_vllm
from gangflow.recipes.grpo.lm.config import TINY, LmConfig
from gangflow.recipes.grpo.lm.presets import PRESETS
from gangflow.recipes.lm import claim, inputs, members
from gangflow.recipes.lm.members import SERVED
from gangflow.recipes.services.rules import (
    CKPT,
    PORT,
    WRONG_POLICY,
    ms,
    reader_rules,
    served,
    watched,
)
from gangflow.specs.claims import Claim
from gangflow.specs.cluster import ClusterSpec, HostSpec
from gangflow.specs.faults import Fault
from gangflow.specs.group import CoStartGroup
from gangflow.specs.member import Job, ReplicaSet

__all__ = ["CKPT", "PLOT", "PORT", "PRESETS", "SERVED", "WRONG_POLICY", "Config", "build", "cluster", "missing"]

Config = LmConfig

PLOT: Final = "gangflow.recipes.grpo.plot"
"""Draws a picture of a run's metrics."""
MAKER: Final = "gangflow.recipes.lm.tiny"


def build(config: LmConfig) -> CoStartGroup:
    """The co-start group of a configuration."""
    parts: dict[str, Job | ReplicaSet] = {
        "actor": members.actor(config, f"gangflow.recipes.grpo.lm.{'trl_actor' if config.trainer == 'trl' else 'actor'}"),
        # The trainer corrects for the distribution that was sampled from.
        "rollout": members.rollout(config, "raw_logprobs" if config.temperature == 1 else "processed_logprobs"),
        "reward": ReplicaSet(
            [config.python, "-m", "gangflow.recipes.lm.verifier"],
            replicas=config.reward_replicas,
            resources=members.resources(config, config.reward_cpu, config.reward_mem),
            on_failure=reader_rules(config.max_restarts),
            live=watched(),
            **served(),
        ),
    }
    if config.kl_weight and config.trainer == "torch":
        parts["ref"] = members.reference(config)
    return CoStartGroup(
        config.name,
        priority=config.priority,
        environment=members.environment(config),
        claims=[Claim(CKPT, provider="directory", retain=True), *_model(config)],
        coordinator=members.coordinator(config, pause=config.pause, max_staleness=config.max_staleness),
        barrier={"start_timeout": ms(config.start_timeout)},
        members=parts,
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


def _model(config: LmConfig) -> list[Claim]:
    return [claim.made(MAKER, config.python)] if config.model == TINY else members.of_group(config)
