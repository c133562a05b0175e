"""A placement in the making: bundles are taken from the view at once and can be given back, in reverse, to any mark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gangflow.xce.placement.need import Mode, Need
from gangflow.xce.placement.snapshot import WHOLE, ClusterView

Shares = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bundles of one need that stand on one host. `gpus` has an entry for each task (devices as the node
    numbers them), `ports` a list per task."""

    need: Need
    host: int
    bundles: int
    gpus: tuple[Shares, ...]
    ports: tuple[int, ...]
    shares_host: bool = False
    """The slot's earlier tasks of this term on the host pay what is used per host."""


class Draft:
    """Takes and gives back; the view is consistent at every moment, so vectors over it stay true while a group is tried."""

    def __init__(self, view: ClusterView) -> None:
        self.view = view
        self._undo: list[Callable[[], None]] = []

    def mark(self) -> int:
        """A point to come back to."""
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Give back everything that was taken since the mark."""
        while len(self._undo) > mark:
            self._undo.pop()()

    def settle(self) -> None:
        """Keep what was taken."""
        self._undo.clear()

    def take(self, need: Need, pieces: Sequence[tuple[int, int]], paid: int = -1) -> list[Chunk]:
        """Take `(host, bundles)` pieces; a piece may come back smaller where a shared port pool has run dry.

        `paid` is a host on which the per-host uses of this slot are paid for already. Hosts must not repeat.
        """
        view = self.view
        chunks: list[Chunk] = []
        for host, wanted in pieces:
            bundles = wanted
            if need.ports:
                bundles = min(wanted, int(view.ports.free[host]) // (need.ports * need.tasks))
            if bundles < 1:
                continue
            gpus: tuple[Shares, ...] = ()
            if need.uses_gpus:
                found = self._gpus(need, host, bundles, host == paid)
                if found is None:
                    continue
                gpus = found
            ports = self._ports(host, bundles * need.tasks * need.ports) if need.ports else ()
            chunks.append(Chunk(need, host, bundles, gpus, ports, host == paid))
        if chunks:
            self._counters(need, chunks)
        return chunks

    def _counters(self, need: Need, chunks: Sequence[Chunk]) -> None:
        view = self.view
        rows = np.array([chunk.host for chunk in chunks], dtype=np.intp)
        times = np.array([chunk.bundles for chunk in chunks], dtype=np.int64)
        taken = times[:, None] * need.row
        for position, chunk in enumerate(chunks):
            if not chunk.shares_host:
                taken[position] += need.once
        view.free[rows] -= taken
        touched = rows.tolist()
        view.touch(touched)

        def give_back() -> None:
            view.free[rows] += taken
            view.touch(touched)

        self._undo.append(give_back)

    def _gpus(self, need: Need, host: int, bundles: int, paid: bool) -> tuple[Shares, ...] | None:
        """Devices for every task of some bundles on one host; None (and nothing taken) if they are not there."""
        view = self.view
        first = view.topology.facts[host].gpu_first
        before = view.gpu_free[host].tolist()
        left = list(before)
        found: list[Shares] = []
        for bundle in range(bundles):
            for task in range(need.tasks):
                shares = grab(left, need.gpu_first if pays(need, bundle, task, paid) else need.gpu_rest)
                if shares is None:
                    return None
                found.append(tuple((first + device, share) for device, share in shares) if first else shares)
        view.gpu_free[host] = left
        view.touch((host,))

        def give_back() -> None:
            view.gpu_free[host] = before
            view.touch((host,))

        self._undo.append(give_back)
        return tuple(found)

    def _ports(self, host: int, count: int) -> tuple[int, ...]:
        view = self.view
        numbers = view.ports.lowest(host, count)
        if numbers is None:
            raise AssertionError(f"ports of host {view.topology.names[host]} ran out after they were counted")
        bits = view.ports.mask(host, numbers)
        view.touch(view.ports.change(host, bits, True))
        self._undo.append(lambda: view.touch(view.ports.change(host, bits, False)))
        return tuple(numbers)


def pays(need: Need, bundle: int, task: int, paid: bool) -> bool:
    """Whether a task pays what its slot uses per host (and per job): the first of its bundle, or, where bundles of one slot
    share a host, the first on that host."""
    return task == 0 and (need.mode is not Mode.EACH or (bundle == 0 and not paid))


def grab(left: list[int], amount: int) -> Shares | None:
    """Take `amount` thousandths from a host's devices in place: whole devices first, then the tightest for a fraction."""
    if amount == 0:
        return ()
    taken: list[tuple[int, int]] = []
    for device, free in enumerate(left):
        if len(taken) * WHOLE + WHOLE > amount:
            break
        if free == WHOLE:
            taken.append((device, WHOLE))
            left[device] = 0
    fraction = amount - len(taken) * WHOLE
    if fraction >= WHOLE:
        for device, share in taken:
            left[device] += share
        return None
    if fraction:
        fitting = [(free, device) for device, free in enumerate(left) if free >= fraction]
        if not fitting:
            for device, share in taken:
                left[device] += share
            return None
        device = min(fitting)[1]
        left[device] -= fraction
        taken.append((device, fraction))
        taken.sort()
    return tuple(taken)
