"""Ray's nodes as a cluster's nodes: names, addresses, and what each has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gangflow.errors import Problem, SpecError
from gangflow.specs.cluster import ClusterSpec, HostSpec
from gangflow.xce.core.state import HostFacts
from gangflow.xce.inventory import Machine, host_facts

LOCAL = "local"
"""A description's word for the node that the controller runs on."""


@dataclass(frozen=True, slots=True)
class Node:
    """One live node of the Ray cluster."""

    ray_id: str
    name: str
    """Unique in the cluster: Ray's node name, or its host name; `local` is another name of the controller's."""
    address: str
    machine: Machine
    is_head: bool


def live_nodes(listed: Iterable[Mapping[str, Any]], own: str) -> list[Node]:
    """Nodes out of `ray.nodes()`, in a stable order; `own` is the Ray id of the controller's node."""
    taken: set[str] = set()
    nodes = []
    for entry in sorted(listed, key=lambda entry: str(entry["NodeID"])):
        if not entry.get("Alive", False):
            continue
        name = _word(str(entry.get("NodeName") or entry["NodeManagerHostname"]))
        if name in taken:  # several nodes of one machine, as in tests
            name = f"{name}-{str(entry['NodeID'])[:6]}"
        taken.add(name)
        resources = entry.get("Resources", {})
        machine = Machine(
            int(resources.get("CPU", 0) * 1000), int(resources.get("memory", 0)) // 2**20, int(resources.get("GPU", 0))
        )
        ray_id = str(entry["NodeID"])
        nodes.append(Node(ray_id, name, str(entry["NodeManagerAddress"]), machine, ray_id == own))
    return nodes


def _word(text: str) -> str:
    return re.sub(r"[^a-z0-9-]", "-", text.lower()).strip("-")[:40] or "node"


def describe(spec: ClusterSpec | None, nodes: Sequence[Node]) -> dict[str, tuple[HostFacts, ...]]:
    """The hosts of each node (by its Ray id). Without a description every node is one host with what Ray says it has.

    Raises:
        SpecError: a host names a node that the Ray cluster has not.
    """
    single = len({node.address for node in nodes}) == 1
    by_name = {node.name: node for node in nodes} | {node.address: node for node in nodes if not single}
    head = next((node for node in nodes if node.is_head), nodes[0])
    by_name[LOCAL] = head
    if spec is None:
        # A host's name must not change when another node joins, so it is the node's, also when there is only one.
        spec = ClusterSpec(hosts=[HostSpec(node.name, node=node.name) for node in nodes])
    for index, host in enumerate(spec.hosts):
        if "[" not in host.node and host.node not in by_name:
            raise SpecError(
                [Problem(f"hosts.{index}.node", repr(host.node), "a node of the Ray cluster: " + ", ".join(sorted(by_name)))]
            )
    found: dict[str, list[HostFacts]] = {}
    for facts in host_facts(spec, {name: node.machine for name, node in by_name.items()}):
        node = by_name[facts.node]
        address = "127.0.0.1" if single else facts.address if facts.address != "127.0.0.1" else node.address
        found.setdefault(node.ray_id, []).append(replace(facts, node=node.name, address=address))
    return {ray_id: tuple(hosts) for ray_id, hosts in found.items()}
