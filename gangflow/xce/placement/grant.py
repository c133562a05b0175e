"""From what a placer took to the tasks of a grant."""

from __future__ import annotations

from collections.abc import Sequence

from gangflow.xce.core.asks import SlotAsk
from gangflow.xce.core.state import Task
from gangflow.xce.placement.draft import Chunk, pays
from gangflow.xce.placement.snapshot import ClusterView

Placed = tuple[SlotAsk, int, Chunk, int, int]


def slot_tasks(view: ClusterView, placed: Sequence[Placed]) -> dict[tuple[str, int], tuple[Task, ...]]:
    """The tasks of each placed slot, numbered in the order of its terms, then of hosts."""
    rows: dict[tuple[str, int], list[Placed]] = {}
    for row in placed:
        rows.setdefault((row[0].member, row[0].index), []).append(row)
    tasks: dict[tuple[str, int], tuple[Task, ...]] = {}
    for key, parts in rows.items():
        if len(parts) > 1:
            parts.sort(key=lambda row: (row[1], row[2].host))
        found: list[Task] = []
        for slot, _, chunk, first, bundles in parts:
            _chunk_tasks(view, slot, chunk, first, bundles, found)
        tasks[key] = tuple(found)
    return tasks


def _chunk_tasks(view: ClusterView, slot: SlotAsk, chunk: Chunk, first: int, bundles: int, found: list[Task]) -> None:
    need, host = chunk.need, view.topology.names[chunk.host]
    each = need.ports
    for bundle in range(first, first + bundles):
        for task in range(need.tasks):
            position = bundle * need.tasks + task
            paying = pays(need, bundle, task, chunk.shares_host)
            found.append(
                Task(
                    len(found),
                    host,
                    need.counters_first if paying else need.counters_plain,
                    chunk.gpus[position] if chunk.gpus else (),
                    tuple(zip(slot.ports, chunk.ports[position * each : (position + 1) * each], strict=True)) if each else (),
                )
            )
