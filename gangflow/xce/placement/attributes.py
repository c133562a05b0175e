"""What `select` and `order` may name: a host's attributes, its domains, and its counters, as columns.

Every number is an integer in thousandths: `cpu` is milli-CPU and `gpus` thousandths already, other counters and numbers in an
attribute are multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt

from gangflow.xce.placement.need import GPUS
from gangflow.xce.placement.snapshot import ClusterView
from gangflow.xce.placement.topology import Bools, Ints

THOUSAND = 1_000
LARGEST = 10**15
"""A number beyond this is text: products of thousandths stay within 64 bits."""
CPU = "cpu"
HOST_NAMES = ("hname", "host")
GPU_NAMES = (GPUS, "ngpus_physical")
TOTALS = {"maxmem": "mem", "ncpus": CPU, "maxcpu": CPU, "maxgpus": GPUS}
"""LSF's names for what a host has, free or not."""


@dataclass(frozen=True, slots=True)
class Column:
    """One name over some hosts: as numbers where it is one, as text where it is that."""

    known: Bools
    """Where the host has it."""
    number: Ints
    numeric: Bools
    text: npt.NDArray[np.str_]


def thousandths(text: str) -> int | None:
    """A decimal number in thousandths (rounded towards zero); None if it is not one."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    if not number.is_finite() or abs(number) > LARGEST // THOUSAND:
        return None
    return int(number * THOUSAND)


def scale(name: str) -> int:
    """What turns a counter's unit into thousandths of what people write."""
    return 1 if name == CPU or name in GPU_NAMES else THOUSAND


class Attributes:
    """Columns by name, over all hosts of one view."""

    def __init__(self, view: ClusterView) -> None:
        self.view = view
        self._fixed: dict[str, Column] = {}

    def fixed(self, name: str) -> Column:
        """An attribute, a domain (by its level's name), the host's name, or a total: it changes with the hosts only."""
        column = self._fixed.get(name)
        if column is None:
            column = self._fixed[name] = self._make(name)
        return column

    def moving(self, name: str) -> bool:
        """Whether the name is a free amount (and no host's attribute is called so)."""
        return name in self.view.column or name in GPU_NAMES

    def known(self, name: str) -> bool:
        """Whether any host has it."""
        return self.moving(name) or bool(self.fixed(name).known.any())

    def free(self, name: str, free: Ints, gpus: npt.NDArray[np.int32]) -> Ints:
        """A free amount of some hosts, in thousandths, out of their rows."""
        if name in GPU_NAMES:
            devices: Ints = gpus.sum(axis=1, dtype=np.int64)
            return devices
        amounts: Ints = free[:, self.view.column[name]] * scale(name)
        return amounts

    def _make(self, name: str) -> Column:
        view = self.view
        size = view.topology.size
        if name in TOTALS:
            total = TOTALS[name]
            number: Ints = np.zeros(size, dtype=np.int64)
            if self.moving(total):
                number = self.free(total, view.capacity, view.gpu_capacity)
            everywhere = np.ones(size, dtype=np.bool_)
            return Column(everywhere, number, everywhere, np.full(size, "", dtype=np.str_))
        values = [self._value(row, name) for row in range(size)]
        numbers = [None if value is None else thousandths(value) for value in values]
        return Column(
            known=np.array([value is not None for value in values], dtype=np.bool_),
            number=np.array([number or 0 for number in numbers], dtype=np.int64),
            numeric=np.array([number is not None for number in numbers], dtype=np.bool_),
            text=np.array([value or "" for value in values], dtype=np.str_),
        )

    def _value(self, row: int, name: str) -> str | None:
        fact = self.view.topology.facts[row]
        for key, value in fact.attributes:
            if key == name:
                return value
        levels = self.view.topology.levels
        if name in levels and levels.index(name) < len(fact.path):
            return fact.path[levels.index(name)]
        return fact.name if name in HOST_NAMES else None
