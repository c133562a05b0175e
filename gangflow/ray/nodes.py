"""Ray's nodes as a cluster's nodes: names that stay, addresses, and what each has."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gangflow.errors import Problem, SpecError
from gangflow.specs.cluster import MAX_HOSTS, ClusterSpec, HostSpec
from gangflow.specs.hostrange import expand_range
from gangflow.xce.core.state import HostFacts
from gangflow.xce.hosts.standing import write_atomically
from gangflow.xce.inventory import Machine, host_facts

LOCAL = "local"
"""A description's word for the node that the controller runs on."""
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Node:
    """One live node of the Ray cluster."""

    ray_id: str
    name: str
    """Unique in the cluster: Ray's node name, or its host name; `local` is another name of the controller's."""
    address: str
    machine: Machine
    is_head: bool


class NodeNames:
    """Which node has which name, and what was measured there, in a file of the home: hosts stay what they are when other nodes,
    their own Ray, or the controller come and go."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._by_id: dict[str, str] = {}
        self._machines: dict[str, Machine] = {}
        try:
            kept = json.loads(file.read_text())
            self._by_id = {str(ray_id): str(name) for ray_id, name in kept["names"].items()}
            self._machines = {str(name): Machine(*map(int, measured)) for name, measured in kept["machines"].items()}
        except (OSError, ValueError, AttributeError, KeyError, TypeError):
            pass

    @property
    def known(self) -> frozenset[str]:
        """Every name that a node of this cluster has, or once had."""
        return frozenset(self._by_id.values())

    def live(self, listed: Iterable[Mapping[str, Any]], own: str) -> list[Node]:
        """Nodes out of `ray.nodes()`, in a stable order; `own` is the Ray id of the controller's node."""
        alive = {str(entry["NodeID"]): entry for entry in listed if entry.get("Alive", False)}
        taken = {self._by_id[ray_id] for ray_id in alive if ray_id in self._by_id}
        changed = False
        nodes = []
        for ray_id in sorted(alive):
            entry = alive[ray_id]
            if ray_id not in self._by_id:
                # A name whose node is dead is free: a machine's Ray that was started again keeps its name, and its agent.
                name = _word(entry)
                self._by_id[ray_id] = name if name not in taken else f"{name}-{ray_id[:6]}"
                taken.add(self._by_id[ray_id])
                changed = True
            name = self._by_id[ray_id]
            machine, before = _machine(entry.get("Resources", {})), self._machines.get(name)
            if before is None or (before.cpu, before.gpus) != (machine.cpu, machine.gpus):
                self._machines[name] = machine
                changed = True
            # Ray takes for memory what is free when it starts, another figure each time: the first one holds.
            nodes.append(Node(ray_id, name, str(entry["NodeManagerAddress"]), self._machines[name], ray_id == own))
        if changed:
            machines = {name: (machine.cpu, machine.mem, machine.gpus) for name, machine in self._machines.items()}
            write_atomically(self._file, json.dumps({"names": self._by_id, "machines": machines}, indent=1))
        return nodes


def _machine(resources: Mapping[str, float]) -> Machine:
    return Machine(
        round(resources.get("CPU", 0) * 1000), int(resources.get("memory", 0)) // 2**20, int(resources.get("GPU", 0))
    )


def _word(entry: Mapping[str, Any]) -> str:
    """Ray calls a node that nobody named by its address; its host name says more."""
    given = str(entry.get("NodeName") or "")
    text = given if given and given != entry["NodeManagerAddress"] else str(entry["NodeManagerHostname"])
    return re.sub(r"[^a-z0-9-]", "-", text.lower()).strip("-")[:40] or "node"


def describe(
    spec: ClusterSpec | None, nodes: Sequence[Node], known: Collection[str] = (), *, loopback: bool = False
) -> dict[str, tuple[HostFacts, ...]]:
    """The hosts of each live node (by its Ray id). Without a description every node is one host with what Ray says it has.

    A node in `known` may be missing: it is away. `loopback`: all of them are this machine, and nobody else needs to reach them.

    Raises:
        SpecError: a host names a node that the Ray cluster has not.
    """
    by_name = {node.name: node for node in nodes}
    for node in nodes:
        if sum(other.address == node.address for other in nodes) == 1:
            by_name.setdefault(node.address, node)
    if head := next((node for node in nodes if node.is_head), None):
        by_name[LOCAL] = head
    if spec is None:
        # A host's name must not change when another node joins, so it is the node's, also when there is only one.
        spec = ClusterSpec(hosts=[HostSpec(node.name, node=node.name) for node in nodes])
    present: list[HostSpec] = []
    for index, given in enumerate(spec.hosts):
        for host in _spelt_out(given):
            if host.node in by_name:
                # By one name only: whether a node has several hosts is looked at by name.
                present.append(host.model_copy(update={"node": by_name[host.node].name}))
            elif host.node not in known:
                nodes_here = "a node of the Ray cluster: " + ", ".join(sorted(by_name))
                raise SpecError([Problem(f"hosts.{index}.node", repr(host.node), nodes_here)])
    found: dict[str, list[HostFacts]] = {}
    here = spec.model_copy(update={"hosts": tuple(present)})
    for facts in host_facts(here, {name: node.machine for name, node in by_name.items()}):
        node = by_name[facts.node]
        address = LOOPBACK if loopback else facts.address if facts.address != LOOPBACK else node.address
        found.setdefault(node.ray_id, []).append(replace(facts, node=node.name, address=address))
    return {ray_id: tuple(hosts) for ray_id, hosts in found.items()}


def _spelt_out(spec: HostSpec) -> Iterator[HostSpec]:
    """The hosts of a range, one by one: some of their nodes may be away."""
    names = expand_range(spec.name, MAX_HOSTS)
    nodes, addresses = (
        (expand_range(text, MAX_HOSTS) if "[" in text else (text,) * len(names)) for text in (spec.node, spec.address)
    )
    for name, node, address in zip(names, nodes, addresses, strict=True):
        yield spec.model_copy(update={"name": name, "node": node, "address": address})
