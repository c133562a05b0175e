"""From what a placer took to the tasks of a grant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import NamedTuple

from gangflow.xce.core.asks import SlotAsk
from gangflow.xce.core.state import Task
from gangflow.xce.placement.draft import Chunk, pays
from gangflow.xce.placement.snapshot import ClusterView

Amounts = tuple[tuple[str, int], ...]
Shares = tuple[tuple[int, int], ...]
_PLACED = tuple((getattr(Task, field.name).__set__, field.default) for field in fields(Task)[5:])
_SET_INDEX, _SET_HOST, _SET_COUNTERS, _SET_GPUS, _SET_PORTS = (getattr(Task, field.name).__set__ for field in fields(Task)[:5])


def new_task(
    index: int, host: str, counters: Amounts, gpus: Shares, ports: Amounts, new: Callable[[type[Task]], Task] = Task.__new__
) -> Task:
    """`Task(index, host, counters, gpus, ports)` at half the cost, which is a tenth of the decision about a large group: a
    frozen dataclass sets each field by its name, and here the slots are set themselves.
    """
    task = new(Task)
    _SET_INDEX(task, index)
    _SET_HOST(task, host)
    _SET_COUNTERS(task, counters)
    _SET_GPUS(task, gpus)
    _SET_PORTS(task, ports)
    for put, default in _PLACED:
        put(task, default)
    return task


class Placed(NamedTuple):
    """A chunk and whose it is: all of one slot's, or (`each`) one bundle for each of several slots."""

    slots: Sequence[SlotAsk]
    each: bool
    position: int
    """Of the term in its slot."""
    chunk: Chunk


def slot_tasks(view: ClusterView, placed: Sequence[Placed]) -> dict[tuple[str, int], tuple[Task, ...]]:
    """The tasks of each placed slot, numbered in the order of its terms, then of hosts."""
    names = view.topology.names
    tasks: dict[tuple[str, int], tuple[Task, ...]] = {}
    parts: dict[tuple[str, int], list[Placed]] = {}
    for row in placed:
        if not row.each:
            parts.setdefault((row.slots[0].member, row.slots[0].index), []).append(row)
        elif row.chunk.need.tasks == 1:
            _singles(names[row.chunk.host], row, tasks)
        else:
            for bundle, slot in enumerate(row.slots):
                found: list[Task] = []
                _tasks(names[row.chunk.host], slot.ports, row.chunk, bundle, bundle + 1, found)
                tasks[slot.member, slot.index] = tuple(found)
    for key, rows in parts.items():
        rows.sort(key=lambda row: (row.position, row.chunk.host))
        found = []
        for row in rows:
            _tasks(names[row.chunk.host], row.slots[0].ports, row.chunk, 0, row.chunk.bundles, found)
        tasks[key] = tuple(found)
    return tasks


def _singles(host: str, row: Placed, tasks: dict[tuple[str, int], tuple[Task, ...]]) -> None:
    """Slots of one task each, by far the most common: the first task pays whatever there is to pay."""
    chunk = row.chunk
    counters, each = chunk.need.counters_first, chunk.need.ports
    gpus = chunk.gpus or [()] * chunk.bundles
    for bundle, slot in enumerate(row.slots):
        ports: tuple[tuple[str, int], ...] = ()
        if each == 1:
            ports = ((slot.ports[0], chunk.ports[bundle]),)
        elif each:
            ports = tuple(zip(slot.ports, chunk.ports[bundle * each : (bundle + 1) * each], strict=True))
        tasks[slot.member, slot.index] = (new_task(0, host, counters, gpus[bundle], ports),)


def _tasks(host: str, names: Sequence[str], chunk: Chunk, first: int, end: int, found: list[Task]) -> None:
    """Append the tasks of the bundles from `first` to before `end`."""
    need, each = chunk.need, len(names)
    position = first * need.tasks
    for bundle in range(first, end):
        for task in range(need.tasks):
            counters = need.counters_plain
            if task == 0 and need.counters_first is not counters and pays(need, bundle, task, chunk.paid):
                counters = need.counters_first
            gpus = chunk.gpus[position] if chunk.gpus else ()
            ports: tuple[tuple[str, int], ...] = ()
            if each:
                ports = tuple(zip(names, chunk.ports[position * each : (position + 1) * each], strict=True))
            found.append(new_task(len(found), host, counters, gpus, ports))
            position += 1
