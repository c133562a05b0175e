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
from gangflow.specs.claims import Claim
from gangflow.specs.cluster import ClusterSpec, HostSpec
from gangflow.specs.coordinator import RLCoordinator
from gangflow.specs.failure import Backoff, FailureMatch, FailureRule
from gangflow.specs.group import CoStartGroup
from gangflow.specs.member import Job, ReplicaSet
from gangflow.specs.probes import HttpProbe

__all__ = ["PRESETS", "Config", "build", "cluster"]

CLAIM: Final = "ckpt"
"""The shared folder: checkpoints, weights, metrics, result."""
PORT: Final = "http"
FLOOR_AFTER_QUORUM_MS: Final = 30_000
WRONG_POLICY: Final = 65
"""Exit code of an actor that must not go on: its engines or its reference are not what it thinks. A restart would not help."""


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
            quorum_timeout=_ms(config.quorum_timeout),
            hang_timeout=_ms(config.hang_timeout),
        ),
        members={
            "actor": Job(
                _command(config, "actor"),
                resources=_resources(config, gpu=True),
                termination_grace="5s",
                on_failure=[
                    FailureRule("fail_group", match=FailureMatch(cause=("app_exit",), exit_codes=(WRONG_POLICY,))),
                    _restart(config, then="fail_group"),
                ],
            ),
            "rollout": ReplicaSet(
                _command(config, "rollout"),
                replicas=config.rollouts,
                min_replicas=config.min_rollouts,
                resources=_resources(config, gpu=True),
                # Too few of them is the coordinator's to judge, which knows who is eligible; XCE's floor is behind it.
                on_failure=[
                    _restart(
                        config,
                        then="tolerate",
                        floor=config.min_rollouts,
                        floor_grace=_ms(config.quorum_timeout + FLOOR_AFTER_QUORUM_MS),
                    )
                ],
                **_service(),
            ),
            "reward": ReplicaSet(
                _command(config, "reward"),
                replicas=1,
                resources=_resources(config, gpu=False),
                on_failure=[_restart(config, then="fail_group")],
                live=HttpProbe(PORT, "/health", period="2s", timeout="5s", failures=3),
                **_service(),
            ),
            "ref": ReplicaSet(
                _command(config, "ref"),
                replicas=1,
                resources=_resources(config, gpu=True),
                on_failure=[_restart(config, then="fail_group")],
                live=HttpProbe(PORT, "/health", period="2s", timeout="5s", failures=3),
                **_service(),
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


def _restart(config: Config, *, then: str, **floor: Any) -> FailureRule:
    """Restart what failed by itself, soon: nothing of a program's start is worth a long wait."""
    return FailureRule(
        "restart_member",
        max_restarts=config.max_restarts,
        window="1h",
        backoff=Backoff(initial=_ms(200), factor=2, max=_ms(10_000)),
        then=then,
        **floor,
    )


def _service() -> dict[str, Any]:
    return {
        "ports": [PORT],
        "ready": HttpProbe(PORT, "/health", period="200ms", timeout="2s", successes=1),
        "termination_grace": "3s",
    }


def _ms(duration: int) -> Any:
    """A number of milliseconds as specs read it: a bare number would mean seconds."""
    return f"{duration}ms"
