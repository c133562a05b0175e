"""A Ray cluster of several emulated nodes, as a program: somebody else's Ray, that gangflow joins.

A JSON line for each request on its standard input (`{"add": cpus}`), one for each answer: the node's id, the pid of its raylet,
and the cluster's address. Ends with its input, and the cluster with it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ray
from ray._private import ray_constants
from ray.cluster_utils import Cluster

STORE_BYTES = 80_000_000
DEATH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
"""A dead node is known to be dead in seconds."""


def main() -> None:
    cluster: Any = Cluster()
    try:
        for line in sys.stdin:
            more = {"_system_config": DEATH, "include_dashboard": False} if cluster.head_node is None else {}
            node = cluster.add_node(num_cpus=json.loads(line)["add"], object_store_memory=STORE_BYTES, **more)
            (raylet,) = node.all_processes[ray_constants.PROCESS_TYPE_RAYLET]
            print(json.dumps({"id": node.node_id, "raylet": raylet.process.pid, "address": cluster.address}), flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
