"""The host on which one more bundle of a need is the closest to fitting: kept up to date by what changed only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gangflow.xce.placement.feasible import Fit, Rows
from gangflow.xce.placement.need import GPUS, PORTS
from gangflow.xce.placement.snapshot import WHOLE
from gangflow.xce.placement.topology import Ints

THOUSAND = 1_000
LATER, TOO_SMALL = 1 << 39, 1 << 40
"""Added to what is missing: hosts that only a tentative fill made short come after others, those that are too small last."""
UNMEASURED, NEVER = 1 << 60, 1 << 62
"""Hosts that lack nothing that is counted, and those that are not in question: they have room, or may not be used."""


@dataclass(frozen=True, slots=True)
class Near:
    """A host, and what is missing there for one more bundle."""

    host: int
    shortfall: tuple[tuple[str, int], ...]


class Lacking:
    """What each host lacks for one more bundle of a need, in thousandths of what a bundle takes, summed over resources."""

    def __init__(self, fit: Fit) -> None:
        self.fit = fit
        self.counters: Ints = (fit.need.row + fit.need.once)[:, None]
        self._score: Ints = np.zeros(fit.view.topology.size, dtype=np.int64)
        self._seen = -1
        self._generation = -1

    def nearest(self, low: int, high: int, tentative: Sequence[int] = ()) -> Near | None:
        """Among the hosts from `low` to before `high`: the one that lacks least, of equals the first.

        Hosts that could hold a bundle when empty come first, and those that only a tentative fill made short come last. None
        if no host that may be used is without room.
        """
        self._refresh()
        score = self._score[low:high]
        if len(tentative):
            score = score.copy()
            score[[host - low for host in tentative if low <= host < high]] += LATER
        best = int(score.argmin()) if high > low else 0
        if high <= low or score[best] >= UNMEASURED:
            return None
        host = low + best
        view, row = self.fit.view, slice(low + best, low + best + 1)
        missing = self._missing(view.avail[:, row], view.gpu_free[row])
        found = [(name, int(missing[0][column, 0])) for name, column in view.column.items()]
        found += [(GPUS, int(missing[1][0])), (PORTS, int(missing[2][0]))]
        return Near(host, tuple(sorted((name, amount) for name, amount in found if amount)))

    def _refresh(self) -> None:
        fit, view = self.fit, self.fit.view
        fit.refresh()
        seen = len(view.touched)
        if self._generation == view.generation and self._seen == seen:
            return
        if self._generation != view.generation or seen - self._seen > view.topology.size:
            self._score = self._scores(Rows(view, slice(None), view.avail))
        else:
            changed = fit.recent.since(self._seen)
            self._score[changed.index] = self._scores(changed)
        self._seen, self._generation = seen, view.generation

    def _scores(self, rows: Rows) -> Ints:
        fit, need, index = self.fit, self.fit.need, rows.index
        counters, gpus, ports = self._missing(rows.avail, rows.gpus)
        score: Ints = (counters * THOUSAND // np.maximum(self.counters, 1)).sum(axis=0)
        if need.uses_gpus:
            score += gpus * THOUSAND // max(1, dict(need.amounts).get(GPUS, 1))
        if need.ports:
            score += ports * THOUSAND // (need.ports * need.tasks)
        score[score == 0] = UNMEASURED
        score[fit.empty[index] == 0] += TOO_SMALL
        concerned = (fit.cap[index] == 0) & fit.allowed[index]
        if rows.usable is not None:
            concerned &= rows.usable
        return np.where(concerned, score, NEVER)

    def _missing(self, avail: Ints, devices: npt.NDArray[np.int32]) -> tuple[Ints, Ints, Ints]:
        """Counters (a row for each), thousandths of GPUs and ports that hosts lack."""
        view, need = self.fit.view, self.fit.need
        counters = np.maximum(self.counters - np.maximum(avail[: view.gpu_row], 0), 0)
        nothing: Any = np.zeros(avail.shape[1], dtype=np.int64)
        gpus = _gpus_lacking(self.fit, devices, avail[view.whole_row]) if need.uses_gpus else nothing
        ports = np.maximum(need.ports * need.tasks - avail[view.port_row], 0) if need.ports else nothing
        return counters, gpus, ports


def _gpus_lacking(fit: Fit, devices: npt.NDArray[np.int32], free: Ints) -> Ints:
    """Thousandths missing for one bundle: whole devices that are not free, and fractions that no device has room for."""
    need, once = fit.need.gpus, fit.need.gpus_once
    lacking: Ints = np.maximum(need.whole + once.whole - free, 0) * WHOLE
    opened = np.maximum(free - need.whole, 0)
    for share, shares in ((need.share, need.shares), (once.share, once.shares)):
        if shares:
            room = np.where(devices < WHOLE, devices // share, 0).sum(axis=1) + opened * (WHOLE // share)
            widest = np.where(devices < WHOLE, devices, 0).max(axis=1, initial=0)
            lacking += np.where(room < shares, (shares - room) * share - np.where(shares - room == 1, widest, 0), 0)
    return lacking
