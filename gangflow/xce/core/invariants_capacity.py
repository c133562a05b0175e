"""I3: per host and per resource, used ≤ capacity; an instance (GPU share, port) has one holder."""

from __future__ import annotations

from collections.abc import Iterator

from gangflow.xce.core.state import State

WHOLE_GPU = 1_000


def capacity(state: State) -> Iterator[str]:
    """Everything that all slots hold, against what the hosts have."""
    used: dict[tuple[str, str], int] = {}
    gpus: dict[tuple[str, int], int] = {}
    ports: dict[tuple[str, int], str] = {}
    for group in state.groups.values():
        for slot in group.slots.values():
            holder = f"{group.id}/{slot.member}[{slot.index}]"
            for task in slot.tasks:
                for name, amount in task.counters:
                    used[task.host, name] = used.get((task.host, name), 0) + amount
                for device, share in task.gpus:
                    gpus[task.host, device] = gpus.get((task.host, device), 0) + share
                for _, number in task.ports:
                    if (task.host, number) in ports:
                        yield f"I3 port {number} of {task.host}: {holder} and {ports[task.host, number]}"
                    ports[task.host, number] = holder
    for (host, name), amount in used.items():
        has = dict(state.hosts[host].facts.counters).get(name, 0)
        if amount > has:
            yield f"I3 {name} of {host}: {amount} used of {has}"
    for (host, device), share in gpus.items():
        if share > WHOLE_GPU:
            yield f"I3 GPU {device} of {host}: {share} thousandths used"
