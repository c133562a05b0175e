"""A placement in the making: bundles are taken from the view at once and can be given back, in reverse, to any mark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gangflow.xce.placement.need import Mode, Need
from gangflow.xce.placement.snapshot import WHOLE, ClusterView, Taken

Shares = tuple[tuple[int, int], ...]
PICKS_KEPT = 1 << 14
NO_DEVICES = np.zeros((0, 0), dtype=np.int32)
NO_PORTS: tuple[int, ...] = ()


class Chunk(NamedTuple):
    """Bundles of one need that stand on one host."""

    need: Need
    host: int
    bundles: int
    gpus: Sequence[Shares]
    """Of each task, devices as the node numbers them; empty if the need has none."""
    ports: Sequence[int]
    """`need.ports` numbers of each task."""
    paid: bool = False
    """The slot's earlier tasks on the host pay what is used per host."""


class Draft:
    """Takes and gives back; the view is consistent at every moment, so vectors over it stay true while a group is tried."""

    def __init__(self, view: ClusterView) -> None:
        self.view = view
        self._undo: list[Taken] = []

    def mark(self) -> int:
        """A point to come back to."""
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Give back everything that was taken since the mark."""
        while len(self._undo) > mark:
            self._give_back(self._undo.pop())

    def take(self, need: Need, pieces: Sequence[tuple[int, int]], paid: int = -1) -> list[Chunk]:
        """Take `(host, bundles)` pieces; a piece may come back smaller where a shared port pool has run dry.

        `paid` is a host on which the per-host uses of this slot are paid for already. Hosts must not repeat.
        """
        if need.ports and self.view.ports.overlapping:
            pieces = self._with_ports(need, pieces)
        if not pieces:
            return []
        view = self.view
        hosts = [host for host, _ in pieces]
        rows = np.array(hosts, dtype=np.intp)
        taken = need.take * np.array([bundles for _, bundles in pieces], dtype=np.int64)
        if need.has_once:
            taken += need.take_once
            if paid in hosts:
                taken[:, hosts.index(paid)] -= need.take_once[:, 0]
        gpus: Sequence[Sequence[Shares]] = ()
        before, after = None, NO_DEVICES
        if need.uses_gpus:
            before = view.gpu_free.take(rows, axis=0)
            left = before.tolist()
            base = view.gpu_base
            found = [devices(view, need, left[i], n, base[host], host == paid) for i, (host, n) in enumerate(pieces)]
            if None in found:
                # Counted too generously (never for devices of one size): leave the host out.
                return self.take(need, [piece for piece, shares in zip(pieces, found, strict=True) if shares is not None], paid)
            gpus = [shares for shares in found if shares is not None]
            view.gpu_free[rows] = after = np.array(left, dtype=np.int32)
            if not need.devices:
                taken[view.whole_row] = np.add.reduce(before == WHOLE, axis=1) - np.add.reduce(after == WHOLE, axis=1)
        if need.ports and view.ports.overlapping:
            taken[view.port_row] = 0
        view.avail[:, rows] -= taken
        ports, bits = self._take_ports(need, pieces) if need.ports else ((), [])
        view.touch(hosts)
        self._undo.append(Taken(hosts, rows, taken, before, after, bits))
        return [
            Chunk(need, host, bundles, gpus[i] if gpus else (), ports[i] if ports else NO_PORTS, host == paid)
            for i, (host, bundles) in enumerate(pieces)
        ]

    def takes(self) -> tuple[Taken, ...]:
        """All that was taken and not given back."""
        return tuple(self._undo)

    def _give_back(self, taken: Taken) -> None:
        view = self.view
        view.avail[:, taken.rows] += taken.amounts
        if taken.before is not None:
            view.gpu_free[taken.rows] = taken.before
        for host, mask in taken.bits:
            if view.ports.overlapping:
                view.touch(view.ports.change(host, mask, False))
            else:
                view.ports.mark(host, mask, False)
        view.touch(taken.hosts)

    def _with_ports(self, need: Need, pieces: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The pieces, cut to what is left in pools that several of their hosts may share."""
        pools, each = self.view.ports, need.ports * need.tasks
        claimed: dict[int, int] = {}
        cut: list[tuple[int, int]] = []
        for host, wanted in pieces:
            bundles = wanted
            if pools.shared(host):
                node = pools.node[host]
                before = claimed.get(node, 0)
                bundles = min(wanted, max(0, int(pools.free[host]) - before) // each)
                claimed[node] = before + bundles * each
            if bundles:
                cut.append((host, bundles))
        return cut

    def _take_ports(
        self, need: Need, pieces: Sequence[tuple[int, int]]
    ) -> tuple[Sequence[Sequence[int]], list[tuple[int, int]]]:
        pools, each = self.view.ports, need.ports * need.tasks
        numbers: list[Sequence[int]] = []
        bits: list[tuple[int, int]] = []
        for host, bundles in pieces:
            found, mask = pools.lowest(host, bundles * each)
            if pools.overlapping:
                self.view.touch(pools.change(host, mask, True))
            else:
                pools.mark(host, mask, True)
            numbers.append(found)
            bits.append((host, mask))
        return numbers, bits


def pays(need: Need, bundle: int, task: int, paid: bool) -> bool:
    """Whether a task pays what its slot uses per host (and per job): the first of its bundle, or, where bundles of one slot
    share a host, the first on that host."""
    return task == 0 and (need.mode is not Mode.EACH or (bundle == 0 and not paid))


def devices(view: ClusterView, need: Need, left: list[int], bundles: int, base: int, paid: bool) -> list[Shares] | None:
    """Devices of every task of some bundles, taken from one host's `left` in place; None if they are not there."""
    amount, tasks = need.gpu_rest, bundles * need.tasks
    if need.gpu_first == amount and amount % WHOLE == 0:
        each = amount // WHOLE
        key = (base, each, tasks, *left)
        known = view.picks.get(key)
        if known is not None:
            left[:], shares_of = known
            return shares_of
        whole = [device for device, free in enumerate(left) if free == WHOLE][: each * tasks]
        if len(whole) < each * tasks:
            return None
        for device in whole:
            left[device] = 0
        pairs = [view.device[base + device] for device in whole]
        shares_of = [tuple(pairs[i : i + each]) for i in range(0, len(pairs), each)]
        if len(view.picks) < PICKS_KEPT:
            view.picks[key] = (left.copy(), shares_of)
        return shares_of
    found: list[Shares] = []
    for bundle in range(bundles):
        for task in range(need.tasks):
            shares = grab(left, need.gpu_first if pays(need, bundle, task, paid) else amount)
            if shares is None:
                return None
            found.append(tuple((base + device, share) for device, share in shares))
    return found


def grab(left: list[int], amount: int) -> Shares | None:
    """Take `amount` thousandths from a host's devices in place: whole devices first, then the tightest for a fraction."""
    whole, fraction = divmod(amount, WHOLE)
    free = [device for device, room in enumerate(left) if room == WHOLE][:whole]
    if len(free) < whole:
        return None
    taken = [(device, WHOLE) for device in free]
    if fraction:
        fitting = [(room, device) for device, room in enumerate(left) if room >= fraction and device not in free]
        if not fitting:
            return None
        device = min(fitting)[1]
        left[device] -= fraction
        taken.append((device, fraction))
        taken.sort()
    for device in free:
        left[device] = 0
    return tuple(taken)
