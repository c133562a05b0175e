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

from typing import Final

from gangflow.integrations.vllm.launch import find_vllm
from gangflow.recipes.lm import claim, inputs, members
from gangflow.recipes.lm.members import SERVED
from gangflow.recipes.rlhf_ppo import data
from gangflow.recipes.rlhf_ppo.config import CLERK, COUNTER, VARIABLE, Config
from gangflow.recipes.rlhf_ppo.presets import PRESETS
from gangflow.recipes.services.rules import (
    CKPT,
    PORT,
    WRONG_POLICY,
    ms,
    ranked,
    reader_rules,
    restart,
    served,
    watched,
)
from gangflow.specs.claims import Claim
from gangflow.specs.cluster import ClusterSpec, HostSpec
from gangflow.specs.faults import Fault
from gangflow.specs.group import CoStartGroup
from gangflow.specs.member import ReplicaSet

__all__ = ["CKPT", "PLOT", "PORT", "PRESETS", "SERVED", "WRONG_POLICY", "Config", "build", "cluster", "missing"]

PLOT: Final = "gangflow.recipes.rlhf_ppo.plot"
"""Draws a picture of a run's metrics."""
HERE: Final = "gangflow.recipes.rlhf_ppo"
MAKER: Final = f"{HERE}.clerk"
TASK: Final = f"{HERE}.task"
"""What the maker's model learns to say."""


def build(config: Config) -> CoStartGroup:
    """The co-start group of a configuration."""
    return CoStartGroup(
        config.name,
        priority=config.priority,
        environment=members.environment(config),
        claims=[Claim(CKPT, provider="directory", retain=True), *_model(config)],
        coordinator=members.coordinator(config, max_staleness=0),
        # All are READY by then, the reward model among them: trained.
        barrier={"start_timeout": ms(config.start_timeout + config.reward_timeout)},
        members={
            "actor": members.actor(config, f"{HERE}.actor"),
            "critic": ReplicaSet(
                ranked(config.python, f"{HERE}.critic", config.critic_procs),
                replicas=1,
                claims=members.of_members(config),
                resources=members.resources(config, config.critic_cpu, config.critic_mem, config.critic_procs),
                ready_timeout=ms(config.start_timeout),
                on_failure=[restart(config.max_restarts, then="fail_group")],
                live=watched(),
                **served(),
            ),
            "rollout": members.rollout(config),
            "reward": ReplicaSet(
                ranked(config.python, f"{HERE}.reward", config.reward_procs),
                replicas=config.reward_replicas,
                claims=members.of_members(config),
                resources=members.resources(config, config.reward_cpu, config.reward_mem, config.reward_procs),
                # READY means that the model is trained.
                ready_timeout=ms(config.start_timeout + config.reward_timeout),
                on_failure=reader_rules(config.max_restarts),
                live=watched(),
                **served(),
            ),
            "ref": members.reference(config, ["--config", VARIABLE]),
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


def _model(config: Config) -> list[Claim]:
    return [claim.made(MAKER, config.python, TASK)] if config.model == CLERK else members.of_group(config)
