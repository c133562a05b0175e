"""How many bundles of a need fit on each host, and in each domain: kept up to date by what changed only."""

from __future__ import annotations

from collections.abc import Sequence
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
FIT_LIMIT = 128
"""Distinct needs with a vector of their own, at least: at 100,000 hosts one takes about a megabyte."""
FIT_CELLS = 1 << 25
"""On small clusters more are kept, up to so many hosts in all vectors."""


class Rows:
    """Some hosts' free amounts, gathered once for all who read them."""

    __slots__ = ("_domains", "_gpus", "_view", "avail", "index", "usable")

    def __init__(self, view: ClusterView, index: Any, avail: Ints) -> None:
        self.index = index
        """An index array or a slice."""
        self.avail = avail
        """As `ClusterView.avail`, of these hosts."""
        self.usable: Bools | None = view.usable[index] if view.unusable else None
        """None if all are."""
        self._view = view
        self._gpus: npt.NDArray[np.int32] | None = view.gpu_capacity if avail is view.full else None
        self._domains: npt.NDArray[np.intp] | None = None

    @property
    def free(self) -> Ints:
        """The counters, a row for each host."""
        return self.avail[: self._view.gpu_row].T

    @property
    def gpus(self) -> npt.NDArray[np.int32]:
        """The devices of each host."""
        if self._gpus is None:
            self._gpus = self._view.gpu_free[self.index]
        return self._gpus

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
            self._rows = Rows(view, index, view.avail.take(index, axis=1))
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
        rows = [row for row in range(len(need.take)) if row != view.gpu_row]
        self.divisors = [(row, int(need.take[row, 0])) for row in rows if need.take[row, 0]]
        """(row of `ClusterView.avail`, what a bundle takes of it)."""
        self.by_device = need.uses_gpus and not need.devices
        """Fractions: how many fit has to be seen device by device."""
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
        self._best = self._too_small = -1
        self.lacking: object = None
        """What hosts lack for one more bundle, for whoever explains a refusal; made on first use."""
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
            rows = Rows(view, everything, view.full)
            chosen = (
                self.allowed & self.selection.mask(everything, rows.free, rows.gpus) if self.selection.text else self.allowed
            )
            self._empty = np.where(chosen, self._count(rows), 0)
        return self._empty

    @property
    def best(self) -> int:
        """Bundles that fit on the best empty host: 0 means that no host could ever hold one."""
        if self._best < 0:
            self._best = int(self.empty.max(initial=0))
        return self._best

    @property
    def too_small(self) -> int:
        """How many of the allowed hosts could not hold one bundle even when empty."""
        if self._too_small < 0:
            self._too_small = int((self.allowed & (self.empty == 0)).sum())
        return self._too_small

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

    @property
    def behind(self) -> int:
        """How many entries of the view's log were not read yet; -1 if the log starts from nothing again."""
        return len(self.view.touched) - self._seen if self._generation == self.view.generation else -1

    def refresh(self, changed: Rows | None = None) -> None:
        """Read what changed in the view since the last time: `changed`, if somebody gathered it (and perhaps more) already."""
        view = self.view
        log = view.touched
        if self._generation == view.generation and self._seen == len(log):
            return
        if self._generation != view.generation or len(log) - self._seen > view.topology.size:
            self.cap = self._compute(Rows(view, slice(None), view.avail))
            add_up(view.topology, self.cap, self.sums)
        else:
            if changed is None:
                changed = self.recent.since(self._seen)
            now = self._compute(changed)
            delta = now - self.cap.take(changed.index)
            moved = delta.nonzero()[0]
            if len(moved):
                self.cap[changed.index] = now
                np.add.at(self.sums, changed.domains.take(moved, axis=0), delta.take(moved)[:, None])
        self._seen, self._generation = len(log), view.generation

    def _compute(self, rows: Rows) -> Ints:
        found = self._count(rows)
        if rows.usable is not None:
            found *= rows.usable
        if not self.anywhere:
            found *= self.allowed[rows.index]
        if self.selection.moving:
            found *= self.selection.mask(rows.index, rows.free, rows.gpus)
        return found

    def _count(self, rows: Rows) -> Ints:
        """Bundles that the rows hold, whatever the state of the hosts."""
        need, avail = self.need, rows.avail
        found: Ints | None = None
        if need.has_once:
            avail = avail - need.take_once
        for row, divisor in self.divisors:
            room: Ints = avail[row] // divisor
            found = room if found is None else np.minimum(found, room, out=found)
        if self.by_device:
            room = _gpu_bundles(rows.gpus, need.gpus, need.gpus_once)
            found = room if found is None else np.minimum(found, room)
        if found is None:
            found = np.full(avail.shape[1], ENDLESS, dtype=np.int64)
        if need.has_once:
            once = need.take_once[: self.view.gpu_row, 0]
            found[(avail[: self.view.gpu_row][once > 0] < 0).any(axis=0)] = 0
        if need.mode is Mode.TILE:
            np.minimum(found, 1, out=found)
        return np.maximum(found, 0, out=found)


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
        self.column = {**view.column, GPUS: view.gpu_row, PORTS: view.port_row}
        """Of each name: columns are the rows of `ClusterView.avail`."""
        self._rows: Ints = np.zeros((view.topology.size, len(view.avail)), dtype=np.int64)
        self.sums: Ints = np.zeros((view.topology.offset[-1], len(view.avail)), dtype=np.int64)
        self._capacity_sums: Ints | None = None
        self._seen = 0
        self._generation = -1

    def row(self, amounts: dict[str, int]) -> Ints | None:
        """Amounts by name as a row of these columns; None if a name is no host's."""
        row = [0] * len(self.view.avail)
        for name, amount in amounts.items():
            column = self.column.get(name)
            if column is None:
                return None
            row[column] = amount
        return np.array(row, dtype=np.int64)

    def level(self, level: int) -> Ints:
        """The sums of one level's domains, refreshed."""
        self.refresh()
        offset = self.view.topology.offset
        if level == self.view.topology.depth:
            return self._rows
        return self.sums[offset[level] : offset[level + 1]]

    def capacity(self, level: int) -> Ints:
        """The same sums, if every host was UP and nothing ran."""
        view = self.view
        if level == view.topology.depth:
            return view.full.T
        if self._capacity_sums is None:
            self._capacity_sums = np.zeros_like(self.sums)
            add_up(view.topology, view.full.T, self._capacity_sums)
        offset = view.topology.offset
        return self._capacity_sums[offset[level] : offset[level + 1]]

    def free(self, rows: Any) -> Ints:
        """Free amounts of hosts, as rows of these columns; nothing where a host is not usable."""
        return self._free(rows, self.view.avail[:, rows]).T

    def _free(self, rows: Any, avail: Ints) -> Ints:
        found: Ints = np.maximum(avail, 0)
        if self.view.unusable:
            found *= self.view.usable[rows]
        return found

    @property
    def behind(self) -> int:
        """As `Fit.behind`."""
        return len(self.view.touched) - self._seen if self._generation == self.view.generation else -1

    def refresh(self, changed: Rows | None = None) -> None:
        """As `Fit.refresh`."""
        view = self.view
        log = view.touched
        if self._generation == view.generation and self._seen == len(log):
            return
        if self._generation != view.generation or len(log) - self._seen > view.topology.size:
            self._rows = np.ascontiguousarray(self.free(slice(None)))
            add_up(view.topology, self._rows, self.sums)
        else:
            if changed is None:
                changed = self.recent.since(self._seen)
            rows = changed.index
            now = self._free(rows, changed.avail).T
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
        self.limit = max(FIT_LIMIT, min(FIT_CELLS // max(1, view.topology.size), 8 * FIT_LIMIT))
        """Distinct needs that are kept."""
        self.forgotten = 0
        """Grows when one was dropped: whoever holds compiled requests drops them, too."""
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
        """The vector of one bundle of `tasks` tasks, as it was when it was last refreshed."""
        key = (term.uses, term.select, term.order, mode, tasks, ports, lead, excluded)
        fit = self._fits.pop(key, None)
        if fit is None:
            while len(self._fits) >= self.limit:
                del self._fits[next(iter(self._fits))]
                self.forgotten += 1
            need = resolve(self.view, term, mode, tasks, ports, lead)
            fit = Fit(self.recent, need, self.selection(term.select), excluded)
        self._fits[key] = fit
        return fit

    def refresh(self, fits: Sequence[Fit], sums: bool = False) -> None:
        """Refresh several vectors (and the sums of what is free): what changed is gathered once for all of them."""
        readers: list[Fit | FreeSums] = [*fits, self.sums] if sums else [*fits]
        most = max([reader.behind for reader in readers], default=0)
        changed = self.recent.since(len(self.view.touched) - most) if 0 < most <= self.view.topology.size else None
        for reader in readers:
            reader.refresh(changed)
