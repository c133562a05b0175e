"""`python -m gangflow.ray.control`: speaks to a Ray cluster on behalf of a process that should not itself be connected to it.

A process can be in one Ray cluster only, and reads its token when Ray is imported: a training script that uses Ray itself, or
that runs two groups, must not have ours forced on it. So `RayCluster` asks this process, a JSON line for each request on its
standard input, a JSON line for each answer; it ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gangflow import __version__
from gangflow.errors import GangflowError, SetupError
from gangflow.home import root
from gangflow.ray.agents import NAMESPACE
from gangflow.ray.controller import ControllerActor
from gangflow.ray.coordinator import CoordinatorActor
from gangflow.ray.lease import Lease

CONTROLLER = f"controller-{__version__}"
"""With the version of the code: Ray would hand a newer one an older actor."""
READY_S = 150.0
DOWN_S = 330.0


def join(address: str) -> dict[str, Any]:
    """Connect to Ray. SetupError when nobody answers there, or the token is not the cluster's."""
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    except (ConnectionError, RuntimeError, OSError, ValueError) as error:
        raise SetupError(f"Ray at {address} cannot be joined: {error}") from error
    gcs = ray.get_runtime_context().gcs_address
    return {"address": gcs, "home": str(root() / f"ray-{sha256(gcs.encode()).hexdigest()[:8]}")}


def controller(home: str, ours: bool) -> dict[str, Any]:
    """Start the controller's actor, or find it; what it says when it is ready: {url, token, home}, or its error. `ours`: Ray
    was started for it alone."""
    options: dict[str, Any] = {
        "name": CONTROLLER,
        "namespace": NAMESPACE,
        "get_if_exists": True,
        "lifetime": "detached",
        "max_restarts": -1,
        "max_concurrency": 64,
        "num_cpus": 0,
        # The journal is a file on this node.
        "scheduling_strategy": NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False),
    }
    lease = asdict(Lease.from_environment())
    described = (Path(home) / "cluster.yaml").exists()
    actor = ray.remote(ControllerActor).options(**options).remote(home, CONTROLLER, lease, has_cluster=described, loopback=ours)
    said: dict[str, Any] = ray.get(actor.ready.remote(), timeout=READY_S)
    if "error" in said:
        ray.kill(actor)
    return said


def coordinate(group: str, url: str, token: str, log: str) -> dict[str, Any]:
    """Start a group's coordinator as a detached actor."""
    name = f"gangflow/{group}"
    options: dict[str, Any] = {
        "name": name,
        "namespace": NAMESPACE,
        "get_if_exists": True,
        "lifetime": "detached",
        "max_restarts": -1,
        "num_cpus": 0,
    }
    actor = ray.remote(CoordinatorActor).options(**options).remote(group, url, token, name, log)
    ray.get(actor.alive.remote(), timeout=READY_S)
    return {}


def take_down() -> dict[str, Any]:
    """End every group and agent of the controller that runs here, if one does, and its actor."""
    try:
        actor = ray.get_actor(CONTROLLER, NAMESPACE)
    except ValueError:
        # No controller any more: the agents' leases end their tasks, since nobody renews them.
        return {"controller": False}
    try:
        ray.get(actor.take_down.remote(), timeout=DOWN_S)
    except ray.exceptions.RayActorError:
        return {"controller": False}
    finally:
        ray.kill(actor)
    return {"controller": True}


REQUESTS: dict[str, Callable[..., dict[str, Any]]] = {
    "join": join,
    "controller": controller,
    "coordinate": coordinate,
    "take_down": take_down,
}


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """What a request answers; an error as {error, code, exit_code, advice}."""
    try:
        return REQUESTS[request["do"]](**request.get("with", {}))
    except GangflowError as error:
        return {"error": error.message, "code": error.code, "exit_code": error.exit_code, "advice": error.advice}
    except Exception as error:
        # Whatever it is, it is the asker's to hear: nobody reads this process's log first.
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}", "code": "setup", "exit_code": 9, "advice": ""}


def main() -> None:
    """Answer until the input ends."""
    # Answers have a way of their own: whatever Ray prints goes to the log.
    with os.fdopen(os.dup(1), "w", buffering=1) as out:
        os.dup2(2, 1)
        for line in sys.stdin:
            out.write(json.dumps(answer(json.loads(line))) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
