"""Groups that tests of `gangflow.testing` submit."""

from __future__ import annotations

from typing import Any

import gangflow as gf


def rl(name: str = "rl", *, replicas: int = 2, **fields: Any) -> gf.CoStartGroup:
    """A trainer and rollouts with a probe, a GPU each."""
    members = {
        "actor": gf.Job(["train"], resources={"gpus": 1}),
        "rollout": gf.ReplicaSet(
            ["serve"], replicas=replicas, min_replicas=1, max_replicas=6, ports=["http"],
            ready=gf.HttpProbe("http", "/health"), resources={"gpus": 1},
        ),
    }  # fmt: skip
    return gf.CoStartGroup(name, members, **fields)


def job(name: str = "one", gpus: int = 1) -> gf.CoStartGroup:
    """One job."""
    return gf.CoStartGroup(name, {"main": gf.Job(["work"], resources={"gpus": gpus})})
