"""Hosts as `bhosts` shows them: what each has, what is in use, and who uses it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gangflow.xce.core.state import Host, HostState, State, Task, TaskKey, TaskPhase
from gangflow.xce.rest.schema import HeldSlot, HostView, Quantity
from gangflow.xce.rest.sight import EVERYTHING, Sight

HOST_WORDS: Mapping[HostState, str] = {
    HostState.UP: "ok",
    HostState.UNKNOWN: "unreach",
    HostState.LOST: "unavail",
    HostState.FENCED: "unavail",
    HostState.CLOSED: "closed",
}
"""LSF's word for each state."""
GPUS = "gpus"
PORTS = "ports"


def host_views(state: State, sight: Sight = EVERYTHING) -> tuple[HostView, ...]:
    """All hosts, in the state's order. Capacity is in use exactly while a slot has the task (design 3.1).

    What is in use is shown to everybody as a sum; who uses it, of the members that the caller may look at.
    """
    used: dict[str, Counter[str]] = {name: Counter() for name in state.hosts}
    held: dict[str, list[HeldSlot]] = {name: [] for name in state.hosts}
    for group in state.groups.values():
        his = sight.members(group)
        for slot in group.slots.values():
            here: dict[str, list[Task]] = {}
            for task in slot.tasks:
                here.setdefault(task.host, []).append(task)
            for name, tasks in here.items():
                if name not in used:
                    continue
                for task in tasks:
                    used[name].update(amounts(task))
                if slot.member not in his:
                    continue
                running = sum(task.phase in (TaskPhase.RUNNING, TaskPhase.READY) for task in tasks)
                held[name].append(
                    HeldSlot(group=group.id, member=slot.member, index=slot.index, tasks=len(tasks), running=running)
                )
    return tuple(_host_view(state, host, used[name], held[name], sight) for name, host in state.hosts.items())


def capacity(host: Host) -> dict[str, int]:
    """Everything that a host has to give, by name."""
    return {**dict(host.facts.counters), GPUS: host.facts.gpus * 1_000, PORTS: host.facts.port_count}


def amounts(task: Task) -> dict[str, int]:
    """Everything that a task holds, by name."""
    return {**dict(task.counters), GPUS: sum(milli for _, milli in task.gpus), PORTS: len(task.ports)}


def _host_view(state: State, host: Host, used: Counter[str], held: list[HeldSlot], sight: Sight) -> HostView:
    facts = host.facts
    return HostView(
        name=facts.name,
        node=facts.node,
        state=host.state,
        lsf=HOST_WORDS[host.state],
        address=facts.address,
        domains=dict(zip(state.levels, facts.path, strict=False)),
        counters={name: Quantity(total=total, used=used[name]) for name, total in capacity(host).items()},
        attributes=dict(facts.attributes),
        slots=tuple(held),
        superseded=tuple(str(task) for task in host.superseded if _his(task, state, sight)),
        # Whose they are nobody knows.
        strays=host.strays if sight.everything else (),
        closed=host.closed,
        draining=host.draining,
        since_ms=host.since_ms,
        until_ms=host.until_ms,
    )


def _his(task: TaskKey, state: State, sight: Sight) -> bool:
    group = state.groups.get(task.group)
    return sight.everything or (group is not None and task.member in sight.members(group))
