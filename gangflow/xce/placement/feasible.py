"""How many bundles of a need fit on each host, and in each domain: kept up to date by what changed only."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gangflow.xce.core.plan import TaskTerm
from gangflow.xce.placement.need import GPUS, PORTS, GpuNeed, Mode, Need, resolve
from gangflow.xce.placement.select import Selection
from gangflow.xce.placement.snapshot import WHOLE, ClusterView
from gangflow.xce.placement.topology import Bools, Ints, Topology

ENDLESS = 1 << 20
"""Bundles that fit where nothing is asked for; small enough that sums over every host stay in range."""
AT_ONCE = 128
"""Hosts of a domain up to which its free amounts are added up on the spot."""
FIT_LIMIT = 128
"""Distinct needs with a vector of their own: at 100,000 hosts one takes about a megabyte."""


class Rows:
    """Some hosts' rows, gathered once for all who read them."""

    def __init__(self, view: ClusterView, index: Any, free: Ints, gpus: npt.NDArray[np.int32], ports: Ints) -> None:
        self.index = index
        """An index array or a slice."""
        self.free = free
        self.gpus = gpus
        self.ports = ports
        self.usable = view.usable if isinstance(index, slice) else view.usable.take(index)
        self._view = view
        self._whole: Ints | None = None
        self._domains: npt.NDArray[np.intp] | None = None

    @property
    def whole(self) -> Ints:
        """Devices of which nothing is taken."""
        if self._whole is None:
            whole: Ints = np.add.reduce(self.gpus == WHOLE, axis=1)
            self._whole = whole
        return self._whole

    @property
    def domains(self) -> npt.NDArray[np.intp]:
        """The domains of each host on every level, numbered through."""
        if self._domains is None:
            self._domains = self._view.topology.flat.take(self.index, axis=0)
        return self._domains


class Recent:
    """What changed in the view since a point of its log. Readers mostly ask from the same point: it is gathered once."""

    def __init__(self, view: ClusterView) -> None:
        self.view = view
        self._key = (-1, -1, -1)
        self._rows: Rows | None = None

    def since(self, seen: int) -> Rows:
        """The hosts that were touched since the log had `seen` entries, as they are now."""
        view = self.view
        key = (view.generation, seen, len(view.touched))
        if self._rows is None or key != self._key:
            hosts = dict.fromkeys(view.touched[seen:])
            index = np.fromiter(hosts, dtype=np.intp, count=len(hosts))
            free, gpus = view.free.take(index, axis=0), view.gpu_free.take(index, axis=0)
            self._rows = Rows(view, index, free, gpus, view.ports.free.take(index))
            self._key = key
        return self._rows


class Fit:
    """The vector of one need (and excluded hosts): `cap` bundles per host, `sums` per domain of every level."""

    def __init__(self, recent: Recent, need: Need, selection: Selection, excluded: tuple[str, ...]) -> None:
        self.view = view = recent.view
        self.recent = recent
        self.need = need
        self.excluded = excluded
        self.selection = selection
        self.divisors = [(int(column), int(need.row[column])) for column in np.flatnonzero(need.row)]
        self.devices = need.gpus.whole if need.uses_gpus and not need.gpus.shares and not need.has_gpus_once else 0
        """Whole devices of a bundle, where that is all about GPUs."""
        self.allowed: Bools = selection.fixed.copy()
        for name in excluded:
            row = view.topology.index.get(name)
            if row is not None:
                self.allowed[row] = False
        if not need.known:
            self.allowed[:] = False
        self.anywhere = bool(self.allowed.all())
        self._empty: Ints | None = None
        self._empty_sums: Ints | None = None
        self._best = -1
        self._seen = -1
        self._generation = -1
        self.cap: Ints = np.zeros(view.topology.size, dtype=np.int64)
        self.sums: Ints = np.zeros(view.topology.offset[-1], dtype=np.int64)
        self.refresh()

    @property
    def total(self) -> int:
        """Bundles that fit in the whole cluster."""
        return int(self.sums[0])

    @property
    def empty(self) -> Ints:
        """`cap`, if every host was UP and nothing ran."""
        if self._empty is None:
            everything = slice(None)
            view = self.view
            found = self._count(Rows(view, everything, view.capacity, view.gpu_capacity, view.ports.count))
            self._empty = np.where(self.allowed & self.selection.mask(everything, view.capacity, view.gpu_capacity), found, 0)
        return self._empty

    @property
    def best(self) -> int:
        """Bundles that fit on the best empty host: 0 means that no host could ever hold one."""
        if self._best < 0:
            self._best = int(self.empty.max(initial=0))
        return self._best

    def level(self, level: int) -> Ints:
        """The sums of one level's domains; of the host level, `cap`."""
        offset = self.view.topology.offset
        if level == self.view.topology.depth:
            return self.cap
        return self.sums[offset[level] : offset[level + 1]]

    def empty_level(self, level: int) -> Ints:
        """`level`, if every host was UP and nothing ran."""
        if level == self.view.topology.depth:
            return self.empty
        if self._empty_sums is None:
            self._empty_sums = np.zeros_like(self.sums)
            add_up(self.view.topology, self.empty, self._empty_sums)
        offset = self.view.topology.offset
        return self._empty_sums[offset[level] : offset[level + 1]]

    def refresh(self) -> None:
        """Read what changed in the view since the last time."""
        view = self.view
        log = view.touched
        if self._generation == view.generation and self._seen == len(log):
            return
        if self._generation != view.generation or len(log) - self._seen > view.topology.size:
            self.cap = self._compute(Rows(view, slice(None), view.free, view.gpu_free, view.ports.free))
            add_up(view.topology, self.cap, self.sums)
        else:
            changed = self.recent.since(self._seen)
            now = self._compute(changed)
            delta = now - self.cap.take(changed.index)
            self.cap[changed.index] = now
            np.add.at(self.sums, changed.domains, delta[:, None])
        self._seen, self._generation = len(log), view.generation

    def _compute(self, rows: Rows) -> Ints:
        found = self._count(rows) * rows.usable
        if not self.anywhere:
            found *= self.allowed[rows.index]
        if self.selection.moving:
            found *= self.selection.mask(rows.index, rows.free, rows.gpus)
        return found

    def _count(self, rows: Rows) -> Ints:
        """Bundles that the rows hold, whatever the state of the hosts."""
        need, free = self.need, rows.free
        found: Ints | None = None
        if need.has_once:
            free = free - need.once
        for column, divisor in self.divisors:
            found = _least(found, free[:, column] // divisor)
        if self.devices:
            whole: Ints = rows.whole // self.devices
            found = _least(found, whole)
        elif need.uses_gpus:
            found = _least(found, _gpu_bundles(rows.gpus, need.gpus, need.gpus_once))
        if need.ports:
            found = _least(found, rows.ports // (need.ports * need.tasks))
        if found is None:
            found = np.full(len(free), ENDLESS, dtype=np.int64)
        if need.has_once:
            found[(free < 0)[:, need.once > 0].any(axis=1)] = 0
        if need.mode is Mode.TILE:
            np.minimum(found, 1, out=found)
        return np.maximum(found, 0)


def _least(one: Ints | None, other: Ints) -> Ints:
    return other if one is None else np.minimum(one, other)


def add_up(topology: Topology, rows: Ints, sums: Ints) -> None:
    """Sum per-host rows into the domains of every level."""
    for low, high in zip(topology.offset, topology.offset[1:], strict=False):
        if high > low:
            sums[low:high] = np.add.reduceat(rows, topology.starts[low:high], axis=0)


def _gpu_bundles(gpus: npt.NDArray[np.int32], need: GpuNeed, once: GpuNeed) -> Ints:
    """How many times `need` fits on each row of devices, after `once`."""
    free: Ints = (gpus == WHOLE).sum(axis=1)
    if once.whole or once.shares:
        if not need.whole and not need.shares:
            return np.where(_gpu_bundles(gpus, once, GpuNeed()) > 0, ENDLESS, 0)
        free = free - once.whole - once.shares
    if not need.shares:
        return free // need.whole if need.whole else np.full(len(gpus), ENDLESS, dtype=np.int64)
    partial: Ints = np.where(gpus < WHOLE, np.maximum(gpus, 0) // need.share, 0).sum(axis=1)
    each = WHOLE // need.share
    if not need.whole:
        shares: Ints = (partial + np.maximum(free, 0) * each) // need.shares
        return shares
    found = np.zeros(len(gpus), dtype=np.int64)
    for times in range(1, gpus.shape[1] // need.whole + 1):
        opened = -(-np.maximum(times * need.shares - partial, 0) // each)
        found[times * need.whole + opened <= free] = times
    return found


class FreeSums:
    """Free amounts per domain over usable hosts: the counters, then GPUs, then ports. A joint bound for several needs."""

    def __init__(self, recent: Recent) -> None:
        self.view = view = recent.view
        self.recent = recent
        self.names = (*view.counters, GPUS, PORTS)
        self.column = {name: position for position, name in enumerate(self.names)}
        self._rows: Ints = np.zeros((view.topology.size, len(self.names)), dtype=np.int64)
        self.sums: Ints = np.zeros((view.topology.offset[-1], len(self.names)), dtype=np.int64)
        self._capacity: Ints | None = None
        self._capacity_sums: Ints = self.sums
        self._seen = 0
        self._generation = -1

    def row(self, amounts: dict[str, int]) -> Ints | None:
        """Amounts by name as a row of these columns; None if a name is no host's."""
        row = np.zeros(len(self.names), dtype=np.int64)
        for name, amount in amounts.items():
            column = self.column.get(name)
            if column is None:
                return None
            row[column] = amount
        return row

    def level(self, level: int) -> Ints:
        """The sums of one level's domains, refreshed."""
        self._refresh()
        offset = self.view.topology.offset
        if level == self.view.topology.depth:
            return self._rows
        return self.sums[offset[level] : offset[level + 1]]

    def of(self, level: int, domain: int) -> Ints:
        """The sums of one domain; a small one is added up at once, which is cheaper than to keep all sums up to date."""
        low, high = self.view.topology.hosts(level, domain)
        fresh = self._generation == self.view.generation and self._seen == len(self.view.touched)
        if fresh or high - low > AT_ONCE:
            kept: Ints = self.level(level)[domain]
            return kept
        found: Ints = np.add.reduce(self.free(slice(low, high)), axis=0)
        return found

    def capacity(self, level: int) -> Ints:
        """The same sums, if every host was UP and nothing ran."""
        view = self.view
        if self._capacity is None:
            devices = view.gpu_capacity.sum(axis=1, dtype=np.int64)
            self._capacity = np.concatenate((view.capacity, devices[:, None], view.ports.count[:, None]), axis=1)
            self._capacity_sums = np.zeros_like(self.sums)
            add_up(view.topology, self._capacity, self._capacity_sums)
        offset = view.topology.offset
        return self._capacity if level == view.topology.depth else self._capacity_sums[offset[level] : offset[level + 1]]

    def free(self, rows: Any) -> Ints:
        """Free amounts of hosts, as rows of these columns; nothing where a host is not usable."""
        view = self.view
        free = view.free[rows]
        found: Ints = np.empty((len(free), len(self.names)), dtype=np.int64)
        np.maximum(free, 0, out=found[:, :-2])
        np.add.reduce(view.gpu_free[rows], axis=1, out=found[:, -2])
        found[:, -1] = view.ports.free[rows]
        found *= view.usable[rows][:, None]
        return found

    def _refresh(self) -> None:
        view = self.view
        log = view.touched
        if self._generation == view.generation and self._seen == len(log):
            return
        if self._generation != view.generation or len(log) - self._seen > view.topology.size:
            self._rows = self.free(slice(None))
            add_up(view.topology, self._rows, self.sums)
        else:
            changed = self.recent.since(self._seen)
            rows = changed.index
            now = self.free(rows)
            delta = now - self._rows.take(rows, axis=0)
            self._rows[rows] = now
            np.add.at(self.sums, changed.domains, delta[:, None, :])
        self._seen, self._generation = len(log), view.generation


class Fits:
    """All the vectors of one view: made on first use, kept while they are used."""

    def __init__(self, view: ClusterView) -> None:
        self.view = view
        self.recent = Recent(view)
        self.sums = FreeSums(self.recent)
        self._fits: dict[tuple[object, ...], Fit] = {}
        self._selections: dict[str, Selection] = {}

    def selection(self, text: str) -> Selection:
        """The hosts that a select expression chooses, evaluated once per text."""
        found = self._selections.get(text)
        if found is None:
            if len(self._selections) >= FIT_LIMIT:
                self._selections.clear()
            found = self._selections[text] = Selection(self.view, text)
        return found

    def get(
        self, term: TaskTerm, mode: Mode, tasks: int, ports: int = 0, lead: bool = True, excluded: tuple[str, ...] = ()
    ) -> Fit:
        """The refreshed vector of one bundle of `tasks` tasks."""
        key = (term.uses, term.select, term.order, mode, tasks, ports, lead, excluded)
        fit = self._fits.pop(key, None)
        if fit is None:
            while len(self._fits) >= FIT_LIMIT:
                del self._fits[next(iter(self._fits))]
            need = resolve(self.view, term, mode, tasks, ports, lead)
            fit = Fit(self.recent, need, self.selection(term.select), excluded)
        self._fits[key] = fit
        fit.refresh()
        return fit
