"""What one bundle of tasks takes from one host: a term of a request as rows of the cluster's columns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from gangflow.xce.core.plan import Per, TaskTerm
from gangflow.xce.placement.snapshot import WHOLE, ClusterView
from gangflow.xce.placement.topology import Ints

GPUS = "gpus"
PORTS = "ports"


class Mode(IntEnum):
    """How the tasks of a term are bundled: a bundle is what must stand on one host."""

    WHOLE = 1
    """All tasks of a slot's only term, or of a `span[hosts=1]` term."""
    EACH = 2
    """One task; several bundles of a slot may share a host, and then share its per-host uses."""
    TILE = 3
    """`span[ptile=n]`: n tasks, and a host takes one bundle of a slot only."""


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """GPUs of one bundle: `whole` devices, and `shares` fractions of `share` thousandths, each on one device."""

    whole: int = 0
    share: int = 0
    shares: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Need:
    """One bundle, resolved against a view's columns.

    `row` is what a bundle takes per counter, `once` what the first bundle on a host takes on top (EACH only). `known` is False
    when a counter is used that no host has.
    """

    term: TaskTerm
    mode: Mode
    tasks: int
    """Tasks of one bundle."""
    ports: int
    """Port numbers of one task."""
    lead: bool
    """The bundle holds the slot's first task, which pays what is used per job."""
    row: Ints
    once: Ints
    take: Ints
    """`row` with GPUs and ports, as a column of `ClusterView.avail`; whole devices only where `devices` tells their number."""
    take_once: Ints
    devices: int
    """Whole devices of a bundle, where that is all about GPUs; 0 if none or if it is not so simple."""
    gpus: GpuNeed
    gpus_once: GpuNeed
    known: bool
    amounts: tuple[tuple[str, int], ...]
    """What one bundle takes in all, `once` included, by name, in the units of `Use`: for sums and for words."""
    gpu_first: int
    gpu_rest: int
    """Thousandths of the first task on the host, and of each other."""
    uses_gpus: bool
    has_once: bool
    counters_plain: tuple[tuple[str, int], ...]
    counters_first: tuple[tuple[str, int], ...]
    """Counters of a task, and of the first task on the host (of the slot, if `lead`)."""


def resolve(view: ClusterView, term: TaskTerm, mode: Mode, tasks: int, ports: int, lead: bool) -> Need:
    """The need of one bundle of `tasks` tasks of a term."""
    task = _summed(term, Per.TASK)
    host = _summed(term, Per.HOST)
    job = _summed(term, Per.JOB) if lead else {}
    first = _merged(task, host, job)
    row, once = _row(view, task, tasks), _row(view, host, 1) + _row(view, job, 1)
    gpu_rest, gpu_first = task.get(GPUS, 0), first.get(GPUS, 0)
    if mode is Mode.EACH:
        gpus, gpus_once = gpu_need([gpu_rest]), gpu_need([gpu_first - gpu_rest])
        in_all = first
    else:
        row, once = row + once, np.zeros_like(once)
        gpus, gpus_once = gpu_need([gpu_first] + [gpu_rest] * (tasks - 1)), GpuNeed()
        in_all = _merged({name: amount * tasks for name, amount in task.items()}, host, job)
    plain, paying = _counters(task), _counters(first)
    devices = 0 if gpus.shares or gpus_once.whole or gpus_once.shares else gpus.whole
    take, take_once = np.zeros((2, len(view.avail)), dtype=np.int64)
    take[: len(row)], take_once[: len(once)] = row, once
    take[view.gpu_row] = gpu_rest * tasks if mode is Mode.EACH else gpu_first + gpu_rest * (tasks - 1)
    take_once[view.gpu_row] = gpu_first - gpu_rest if mode is Mode.EACH else 0
    take[view.whole_row], take[view.port_row] = devices, ports * tasks
    amounts = [(name, amount) for name, amount in in_all.items() if amount]
    if ports:
        amounts.append((PORTS, ports * tasks))
    return Need(
        term=term,
        mode=mode,
        tasks=tasks,
        ports=ports,
        lead=lead,
        row=row,
        once=once,
        take=take[:, None],
        take_once=take_once[:, None],
        devices=devices,
        gpus=gpus,
        gpus_once=gpus_once,
        known=all(name == GPUS or name in view.column for name, amount in in_all.items() if amount),
        amounts=tuple(amounts),
        gpu_first=gpu_first,
        gpu_rest=gpu_rest,
        uses_gpus=gpu_first > 0 or gpu_rest > 0,
        has_once=bool(take_once.any()),
        counters_plain=plain,
        counters_first=plain if paying == plain else paying,
    )


def gpu_need(amounts: list[int]) -> GpuNeed:
    """The devices that some tasks need together.

    A fraction stays on one device. Where tasks have fractions of two sizes, the first task's is counted as a whole device:
    never too little, and the allocation itself takes only the fraction.
    """
    whole = sum(amount // WHOLE for amount in amounts)
    first, others = amounts[0] % WHOLE, [amount % WHOLE for amount in amounts[1:]]
    rest = others[0] if others else 0
    if rest and first and first != rest:
        return GpuNeed(whole + 1, rest, len(others))
    return GpuNeed(whole, first or rest, (1 if first else 0) + (len(others) if rest else 0))


def _summed(term: TaskTerm, per: Per) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for use in term.uses:
        if use.per is per:
            amounts[use.name] = amounts.get(use.name, 0) + use.amount
    return amounts


def _merged(*parts: dict[str, int]) -> dict[str, int]:
    merged: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            merged[name] = merged.get(name, 0) + amount
    return merged


def _counters(amounts: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple((name, amount) for name, amount in amounts.items() if name != GPUS and amount)


def _row(view: ClusterView, amounts: dict[str, int], times: int) -> Ints:
    row = np.zeros(len(view.counters), dtype=np.int64)
    for name, amount in amounts.items():
        column = view.column.get(name)
        if column is not None:
            row[column] += amount * times
    return row
