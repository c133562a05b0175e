"""The group: what runs, on what, what a failure means.

| member  | kind             | does                                            | when it fails                                 |
|---------|------------------|-------------------------------------------------|-----------------------------------------------|
| actor   | job, primary     | trains; its end is the group's                  | restarts from its newest checkpoint           |
| rollout | replica set of 2 | generates samples with the newest weights       | restarts, gets the weights, is admitted again |
| reward  | replica set of 1 | scores answers                                  | restarts; the actor asks again                |
| ref     | replica set of 1 | log-probabilities under the frozen first policy | restarts; the actor asks again                |
"""

from __future__ import annotations

from typing import Any, Final

from gangflow.recipes.grpo.config import PRESETS, VARIABLE, Config
from gangflow.recipes.services.rules import CKPT, PORT, WRONG_POLICY, actor_rules, ms, restart, rollout_rules, served, watched
from gangflow.specs.claims import Claim
from gangflow.specs.cluster import ClusterSpec, HostSpec
from gangflow.specs.coordinator import RLCoordinator
from gangflow.specs.group import CoStartGroup
from gangflow.specs.member import Job, ReplicaSet

__all__ = ["CLAIM", "PLOT", "PORT", "PRESETS", "WRONG_POLICY", "Config", "build", "cluster"]

PLOT: Final = "gangflow.recipes.grpo.plot"
"""Draws a picture of a run's metrics."""
CLAIM = CKPT


def build(config: Config) -> CoStartGroup:
    """The co-start group of a configuration."""
    return CoStartGroup(
        config.name,
        priority=config.priority,
        environment={
            VARIABLE: config.for_programs(),
            # Five processes share the machine: one thread each, or they take turns in waiting for each other.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        },
        claims=[Claim(CLAIM, provider="directory", retain=True)],
        coordinator=RLCoordinator(
            actor="actor",
            rollout="rollout",
            port=PORT,
            engine="embedded",
            min_rollouts=config.min_rollouts,
            max_staleness=0,
            quorum_timeout=ms(config.quorum_timeout),
            hang_timeout=ms(config.hang_timeout),
        ),
        members={
            "actor": Job(
                _command(config, "actor"),
                resources=_resources(config, gpu=True),
                termination_grace="5s",
                on_failure=actor_rules(config.max_restarts),
            ),
            "rollout": ReplicaSet(
                _command(config, "rollout"),
                replicas=config.rollouts,
                min_replicas=config.min_rollouts,
                resources=_resources(config, gpu=True),
                on_failure=rollout_rules(config.max_restarts, config.min_rollouts, config.quorum_timeout),
                **served(),
            ),
            "reward": ReplicaSet(
                _command(config, "reward"),
                replicas=1,
                resources=_resources(config, gpu=False),
                on_failure=[restart(config.max_restarts, then="fail_group")],
                live=watched(),
                **served(),
            ),
            "ref": ReplicaSet(
                _command(config, "ref"),
                replicas=1,
                resources=_resources(config, gpu=True),
                on_failure=[restart(config.max_restarts, then="fail_group")],
                live=watched(),
                **served(),
            ),
        },
    )


def cluster(config: Config) -> ClusterSpec:
    """A machine split into virtual hosts that the group fills: whoever comes next waits for a GPU.

    Hosts, CPUs and GPUs are what the scheduler counts by; the processes share the real machine.
    """
    return ClusterSpec(
        name="virtual",
        hosts=[
            HostSpec(
                name=f"h[0-{config.rollouts + 1}]",
                cpu=2 * config.cpu / 1_000,
                mem=2 * config.mem,
                gpus=-(-config.gpus // 1_000),
                gpu_model="virtual" if config.gpus else "",
            )
        ],
    )


def _command(config: Config, program: str) -> list[str]:
    return [config.python, "-m", f"gangflow.recipes.grpo.{program}"]


def _resources(config: Config, *, gpu: bool) -> dict[str, Any]:
    wanted: dict[str, Any] = {"cpu": config.cpu / 1_000, "mem": config.mem}
    if gpu and config.gpus:
        wanted["gpus"] = config.gpus / 1_000
    return wanted
