"""The cluster as integer arrays: what each host has, what is free, and which group holds it.

Derived data only: `ClusterView(hosts, levels)` followed by one `refresh` equals a view that was refreshed all along. Units
are those of `core.plan`: milli-CPU, MiB, GPUs in thousandths per device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from operator import is_not
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gangflow.xce.core.layers import differing
from gangflow.xce.core.state import Group, Host, HostState, State, Task
from gangflow.xce.placement.holders import Holders
from gangflow.xce.placement.portpools import PortPools
from gangflow.xce.placement.topology import Bools, Ints, Topology

WHOLE = 1_000
"""One GPU, in thousandths."""
LOG_LIMIT = 1 << 18
"""Host changes that are remembered for lazy readers; past it, every reader computes anew once."""

STRETCH = 64
"""Groups that are first compared at once."""

Booked = dict[tuple[str, int], tuple[Task, ...]]


class Taken(NamedTuple):
    """What a draft took from some hosts at once."""

    hosts: list[int]
    rows: npt.NDArray[np.intp]
    """The same as an index array."""
    amounts: Ints
    """As `ClusterView.avail`, of these hosts."""
    before: npt.NDArray[np.int32] | None
    """The hosts' devices before it, if it took any."""
    after: npt.NDArray[np.int32]
    """The same after it."""
    bits: list[tuple[int, int]]
    """Port numbers of each host, as bits."""


class ClusterView:
    """Capacities and free amounts over the hosts of a topology; row `i` is host `topology.names[i]`."""

    def __init__(self, hosts: Mapping[str, Host], levels: tuple[str, ...]) -> None:
        self.topology = topology = Topology([host.facts for host in hosts.values()], levels)
        columns: dict[str, None] = {}
        for fact in topology.facts:
            columns.update(dict.fromkeys(name for name, _ in fact.counters))
        self.counters = tuple(sorted(columns))
        self.column = {name: position for position, name in enumerate(self.counters)}
        self.capacity: Ints = np.zeros((topology.size, len(self.counters)), dtype=np.int64)
        for row, fact in enumerate(topology.facts):
            for name, amount in fact.counters:
                self.capacity[row, self.column[name]] += amount
        self.gpu_count: Ints = np.array([fact.gpus for fact in topology.facts], dtype=np.int64)
        self.gpu_base = [fact.gpu_first for fact in topology.facts]
        """The number of each host's first device on its node."""
        width = int(self.gpu_count.max(initial=0))
        self.device: list[tuple[int, int]] = [(number, WHOLE) for number in range(max(self.gpu_base, default=0) + width)]
        """Each device as a whole, by its number on its node: tasks share these."""
        self.picks: dict[tuple[int, ...], tuple[list[int], list[tuple[tuple[int, int], ...]]]] = {}
        """Which whole devices are taken from a host, and what is left: by what was there, as there are few different cases."""
        self.gpu_capacity: npt.NDArray[np.int32] = np.where(np.arange(width) < self.gpu_count[:, None], WHOLE, 0).astype(
            np.int32
        )
        self.gpu_free = self.gpu_capacity.copy()
        self.gpu_row = len(self.counters)
        self.whole_row, self.port_row = self.gpu_row + 1, self.gpu_row + 2
        self.full: Ints = np.zeros((self.port_row + 1, topology.size), dtype=np.int64)
        """`avail`, if nothing ran."""
        self.full[: self.gpu_row] = self.capacity.T
        self.full[self.gpu_row] = self.gpu_count * WHOLE
        self.full[self.whole_row] = self.gpu_count
        self.full[self.port_row] = [fact.port_count for fact in topology.facts]
        self.avail: Ints = self.full.copy()
        """What is free: a row for each counter, then thousandths of GPUs, whole devices, ports; a column for each host."""
        self.free: Ints = self.avail[: self.gpu_row].T
        """The counters of `avail`, a row for each host: the same memory."""
        self.ports = PortPools(topology, self.avail[self.port_row])
        self.usable: Bools = np.zeros(topology.size, dtype=np.bool_)
        self.unusable = topology.size
        """How many hosts are not."""
        self.closed: Bools = np.zeros(topology.size, dtype=np.bool_)
        """Hosts that an operator closed; none of them is usable."""
        self.touched: list[int] = []
        """Every host whose row changed, in order: who keeps something derived remembers how far it has read."""
        self.generation = 0
        """Grows when `touched` starts again from nothing."""
        self.booked: dict[str, Booked] = {}
        """What the arrays account for, per group and slot."""
        self.holders = Holders()
        self.granted: dict[str, tuple[Taken, ...]] = {}
        """Groups whose bookings are exactly what was taken for them, and that: they are given back at once."""
        self._expected: dict[str, None] = {}
        self._hosts: Mapping[str, Host] = {}
        self._groups: Mapping[str, Group] = {}
        self._set_hosts(hosts)

    def fits_hosts(self, hosts: Mapping[str, Host], levels: tuple[str, ...]) -> bool:
        """Whether these are the same hosts with the same facts (states may differ): else a new view is needed."""
        if hosts is self._hosts:
            return levels == self.topology.levels
        if levels != self.topology.levels or len(hosts) != len(self._hosts):
            return False
        for host in _changed(hosts.values(), self._hosts.values()):
            known = self.topology.index.get(host.facts.name)
            if known is None or (self.topology.facts[known] is not host.facts and self.topology.facts[known] != host.facts):
                return False
        return True

    def refresh(self, state: State) -> None:
        """Account for whatever differs from the state that was seen last. `fits_hosts` must hold."""
        if state.hosts is not self._hosts:
            self._set_hosts(state.hosts)
        expected, self._expected = self._expected, {}
        if state.groups is not self._groups:
            for gid in _changed_groups(state.groups, self._groups):
                self._reconcile(gid, state.groups.get(gid))
                expected.pop(gid, None)
            self._groups = state.groups
        for gid in expected:
            self._reconcile(gid, state.groups.get(gid))

    def expect(self, gid: str, granted: Booked, tasks_on: dict[int, int], takes: tuple[Taken, ...]) -> None:
        """Note a grant whose amounts are already taken from the arrays; the next `refresh` checks that it came true.

        `tasks_on` has the number of tasks per host, `takes` is how they were taken.
        """
        if gid not in self.booked:
            self.granted[gid] = takes
        elif gid in self.granted:
            self.granted[gid] += takes
        self.booked.setdefault(gid, {}).update(granted)
        self._expected[gid] = None
        self.holders.count(gid, tasks_on, 1)

    def touch(self, rows: Iterable[int]) -> None:
        """Note rows whose arrays were changed by hand."""
        self.touched.extend(rows)
        if len(self.touched) > LOG_LIMIT + 8 * self.topology.size:
            self.touched.clear()
            self.generation += 1

    def _set_hosts(self, hosts: Mapping[str, Host]) -> None:
        index, rows = self.topology.index, []
        for host in _changed(hosts.values(), self._hosts.values()):
            row = index[host.facts.name]
            usable = host.state is HostState.UP
            self.closed[row] = host.state is HostState.CLOSED
            if bool(self.usable[row]) is not usable:
                self.usable[row] = usable
                rows.append(row)
        self._hosts = hosts
        if rows:
            self.unusable = self.topology.size - int(self.usable.sum())
            self.touch(rows)

    def _reconcile(self, gid: str, group: Group | None) -> None:
        """Make what is booked for a group equal to what its slots hold."""
        booked = self.booked.get(gid)
        if group is None and booked is not None and gid in self.granted:
            self._give_back(gid)
            return
        booked = booked or {}
        slots = group.slots if group is not None else {}
        gone: list[Task] = []
        came: list[Task] = []
        for key in [key for key in booked if key not in slots]:
            gone.extend(booked.pop(key))
        for key, slot in slots.items():
            before = booked.get(key, ())
            if before is slot.tasks:
                continue
            if not _same_allocation(before, slot.tasks):
                gone.extend(before)
                came.extend(slot.tasks)
            if slot.tasks:
                booked[key] = slot.tasks
            else:
                booked.pop(key, None)
        if gone or came:
            self.granted.pop(gid, None)
        if gone:
            self._account(gid, gone, 1)
        if came:
            self._account(gid, came, -1)
        if booked:
            self.booked[gid] = booked
        else:
            self.booked.pop(gid, None)

    def _give_back(self, gid: str) -> None:
        """All of a group at once, as it was taken."""
        takes = self.granted.pop(gid)
        hosts = self.holders.drop(gid)
        del self.booked[gid]
        if not takes:
            return
        rows = np.concatenate([taken.rows for taken in takes])
        amounts = np.concatenate([taken.amounts for taken in takes], axis=1)[: self.gpu_row]
        if len(hosts) == len(rows):
            self.free[rows] += amounts.T
        else:
            np.add.at(self.free, rows, amounts.T)
        devices = [(taken.rows, taken.before - taken.after) for taken in takes if taken.before is not None]
        for some, shares in devices:
            self.gpu_free[some] += shares
        if devices:
            # Others may have changed the same devices since: what is whole is counted anew.
            rows = np.concatenate([some for some, _ in devices])
            gpus = self.gpu_free.take(rows, axis=0)
            self.avail[self.gpu_row, rows] = np.add.reduce(gpus, axis=1)
            self.avail[self.whole_row, rows] = np.add.reduce(gpus == WHOLE, axis=1)
        for taken in takes:
            for row, bits in taken.bits:
                changed = self.ports.change(row, bits, False)
                if len(changed) > 1:
                    self.touch(changed)
        self.touch(hosts)

    def _account(self, gid: str, tasks: Sequence[Task], sign: int) -> None:
        """Give a group's allocations back (+1) or take them (-1). Amounts on hosts that do not exist are nobody's."""
        index, base, width = self.topology.index, self.gpu_base, self.gpu_free.shape[1]
        rows: list[int] = []
        amounts: list[list[int]] = []
        devices: list[int] = []
        shares: list[int] = []
        ports: dict[int, list[int]] = {}
        tasks_on: dict[int, int] = {}
        counters: tuple[tuple[str, int], ...] | None = None
        vector: list[int] = []
        for task in tasks:
            row = index.get(task.host)
            if row is None:
                continue
            if task.counters is not counters:
                # Neighbours mostly share this very object.
                counters = task.counters
                vector = self._vector(counters, sign)
            rows.append(row)
            amounts.append(vector)
            if task.gpus:
                first = base[row]
                for number, share in task.gpus:
                    if 0 <= number - first < width:
                        devices.append(row * width + number - first)
                        shares.append(share)
            if task.ports:
                ports.setdefault(row, []).extend([number for _, number in task.ports])
            tasks_on[row] = tasks_on.get(row, 0) + 1
        if not rows:
            return
        np.add.at(self.free, np.array(rows, dtype=np.intp), np.array(amounts, dtype=np.int64))
        hosts = np.fromiter(tasks_on, dtype=np.intp, count=len(tasks_on))
        if devices:
            np.add.at(self.gpu_free.reshape(-1), np.array(devices, dtype=np.intp), np.array(shares, dtype=np.int32) * sign)
            gpus = self.gpu_free.take(hosts, axis=0)
            self.avail[self.gpu_row, hosts] = np.add.reduce(gpus, axis=1)
            self.avail[self.whole_row, hosts] = np.add.reduce(gpus == WHOLE, axis=1)
        for row, numbers in ports.items():
            changed = self.ports.change(row, self.ports.mask(row, numbers), sign < 0)
            if len(changed) > 1:
                self.touch(changed)
        self.touch(tasks_on)
        self.holders.count(gid, tasks_on, -sign)

    def _vector(self, counters: Iterable[tuple[str, int]], sign: int) -> list[int]:
        vector = [0] * len(self.counters)
        for name, amount in counters:
            column = self.column.get(name)
            if column is not None:
                vector[column] += sign * amount
        return vector


def _same_allocation(one: tuple[Task, ...], other: tuple[Task, ...]) -> bool:
    """Whether two incarnations, or two phases of one, hold exactly the same."""
    if len(one) != len(other):
        return False
    return all(
        a is b or (a.host == b.host and a.counters == b.counters and a.gpus == b.gpus and a.ports == b.ports)
        for a, b in zip(one, other, strict=True)
    )


def _changed(now: Iterable[Host], before: Iterable[Host]) -> list[Host]:
    """Hosts that differ from what stood at the same position: a superset of the changed ones, found without a Python loop."""
    now, before = list(now), list(before)
    found = list(compress(now, map(is_not, now, before)))
    return found + now[len(before) :]


def _changed_groups(now: Mapping[str, Group], before: Mapping[str, Group]) -> list[str]:
    """Ids whose group differs, forgotten ones too.

    States that follow each other mostly know what differs. Else a list comparison takes equal stretches at the speed of C,
    so it is only asked where the next difference is: what changed, what was forgotten, what is new. Groups keep their order; if
    they did not, all are compared.
    """
    told = differing(now, before)
    if told is not None:
        return told
    new, old = list(now.values()), list(before.values())
    found: list[str] = []
    at, behind = 0, 0
    while True:
        equal = _alike(new, at, old, behind)
        at, behind = at + equal, behind + equal
        if behind == len(old):
            return found + [group.id for group in new[at:]]
        gid = old[behind].id
        if gid not in now:
            found.append(gid)
            behind += 1
        elif at < len(new) and new[at].id == gid:
            found.append(gid)
            at, behind = at + 1, behind + 1
        elif at < len(new) and new[at].id not in before:
            found.append(new[at].id)
            at += 1
        else:
            return [gid for gid in {**before, **now} if now.get(gid) is not before.get(gid)]


def _alike(new: Sequence[Group], at: int, old: Sequence[Group], behind: int) -> int:
    """How many groups, from `at` in the one and `behind` in the other, are the same."""
    most = min(len(new) - at, len(old) - behind)
    equal, step = 0, STRETCH
    while equal < most:
        step = min(step, most - equal)
        # A stretch that differs is halved; one that does not is followed by a longer one.
        if new[at + equal : at + equal + step] == old[behind + equal : behind + equal + step]:
            equal, step = equal + step, step * 2
        elif step == 1:
            return equal
        else:
            step //= 2
    return equal
