"""A cluster description as facts about hosts: ranges spelt out, one machine split into virtual hosts, the rest measured."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gangflow.specs.cluster import MAX_HOSTS, ClusterSpec, HostSpec
from gangflow.specs.faults import Fault, fault_error
from gangflow.specs.hostrange import expand_range
from gangflow.xce.core.state import HostFacts


@dataclass(frozen=True, slots=True)
class Machine:
    """What one machine has: milli-CPU, MiB, devices."""

    cpu: int
    mem: int
    gpus: int = 0


def this_machine() -> Machine:
    """This machine, as far as this process may use it."""
    total = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    gpus = sum(1 for path in Path("/dev").glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdecimal())
    return Machine(len(os.sched_getaffinity(0)) * 1000, int(total[1]) // 1024 if total else 0, gpus)


def host_facts(cluster: ClusterSpec, machines: Mapping[str, Machine] | None = None) -> tuple[HostFacts, ...]:
    """The hosts of a cluster, in its order. `machines`: what nodes have, for hosts that leave it out.

    `port_first` stays 0: the agent fills it in. Raises SpecError for a host that leaves out what nobody measured.
    """
    first_gpu: dict[str, int] = {}
    facts = []
    for index, spec in enumerate(cluster.hosts):
        for name, node, address in _places(spec):
            host = _completed(index, spec, node, cluster, (machines or {}).get(node))
            for part, share in _split(name, host, spec.virtual_hosts):
                facts.append(
                    HostFacts(
                        name=part,
                        node=node,
                        address=address,
                        path=tuple(spec.domains[level] for level in cluster.levels),
                        counters=(("cpu", share.cpu), ("mem", share.mem), *share.counters),
                        gpus=share.gpus,
                        gpu_first=first_gpu.get(node, 0),
                        port_count=spec.ports,
                        attributes=tuple(spec.attributes.items())
                        + ((("gpu_model", spec.gpu_model),) if spec.gpu_model else ()),
                    )
                )
                first_gpu[node] = first_gpu.get(node, 0) + share.gpus
    return tuple(facts)


@dataclass(frozen=True, slots=True)
class _Share:
    cpu: int
    mem: int
    gpus: int
    counters: tuple[tuple[str, int], ...]


def _places(spec: HostSpec) -> Iterator[tuple[str, str, str]]:
    """(name, node, address) of each host of a range; a node or an address may be a range of the same length."""
    names = expand_range(spec.name, MAX_HOSTS)
    nodes, addresses = (
        (expand_range(text, MAX_HOSTS) if "[" in text else (text,) * len(names)) for text in (spec.node, spec.address)
    )
    yield from zip(names, nodes, addresses, strict=True)


def _completed(index: int, spec: HostSpec, node: str, cluster: ClusterSpec, machine: Machine | None) -> _Share:
    found: dict[str, int] = {}
    for key in ("cpu", "mem", "gpus"):
        given = getattr(spec, key)
        if given is None:
            # Several hosts of one machine would each claim all of it.
            alone = sum(1 for other in cluster.hosts for _, other_node, _ in _places(other) if other_node == node) == 1
            if machine is None or not alone:
                why = f"a number: node {node} " + (
                    "was not measured" if machine is None else "has several hosts (or use virtual_hosts)"
                )
                raise fault_error([Fault(("hosts", index, key), given, why)])
            given = getattr(machine, key)
        found[key] = given
    return _Share(**found, counters=tuple(spec.counters.items()))


def _split(name: str, host: _Share, parts: int) -> Iterator[tuple[str, _Share]]:
    """Even shares; what does not divide goes to the first ones, so that the sum is the machine."""
    if parts == 1:
        yield name, host
        return
    for part in range(parts):
        counters = tuple((key, _share(value, parts, part)) for key, value in host.counters)
        cpu, mem, gpus = (_share(value, parts, part) for value in (host.cpu, host.mem, host.gpus))
        yield f"{name}-{part}", _Share(cpu, mem, gpus, counters)


def _share(whole: int, parts: int, part: int) -> int:
    return whole // parts + (1 if part < whole % parts else 0)
