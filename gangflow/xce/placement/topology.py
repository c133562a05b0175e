"""Where hosts stand: sorted so that every topology domain, on every level, is one contiguous range of host indices.

Level 0 is the whole cluster, then the cluster's named levels from the outside in, then (only where innermost domains are very
large) a nameless level of chunks that bounds the work of one search. The host itself is level `depth`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gangflow.xce.core.state import HostFacts

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

CHUNK_ABOVE = 256
"""An innermost domain of more hosts than this is searched in chunks: a search sorts the hosts of one chunk only."""
CHUNK = 64

HOST_LEVEL = "host"
"""Every cluster has this innermost level, unless it gives the name to a level of its own."""

_DIGITS = re.compile(r"([0-9]+)")


def natural(name: str) -> tuple[tuple[object, ...], str]:
    """A sort key under which `h2` comes before `h10`; total, because the name itself breaks ties."""
    parts: list[object] = list(_DIGITS.split(name))
    parts[1::2] = [int(str(part)) for part in parts[1::2]]
    return tuple(parts), name


class Topology:
    """The fixed part of a cluster: hosts in order, and the host range of every domain.

    `first[level]` holds the first host of each domain (and, last, the number of hosts); `child[level]` the first domain of the
    next level in each (and, last, their number). `flat[host]` are the host's domains on all levels, numbered through
    (`offset[level] + domain`), so that sums of all levels live in one array.
    """

    def __init__(self, facts: Sequence[HostFacts], levels: Sequence[str]) -> None:
        self.levels = tuple(levels)
        keyed = sorted(((self._path(fact), natural(fact.name), fact) for fact in facts), key=lambda row: (row[0], row[1]))
        self.facts = tuple(row[2] for row in keyed)
        self.names = tuple(fact.name for fact in self.facts)
        self.index = {name: position for position, name in enumerate(self.names)}
        self.size = len(self.facts)
        paths = [row[0] for row in keyed]
        starts = [[0] if paths else []]
        for level in range(1, len(self.levels) + 1):
            starts.append([i for i in range(self.size) if i == 0 or paths[i][:level] != paths[i - 1][:level]])
        ends = [*starts[-1][1:], self.size] if paths else []
        if max((end - begin for begin, end in zip(starts[-1], ends, strict=True)), default=0) > CHUNK_ABOVE:
            starts.append(_chunked(starts[-1], self.size))
        self.depth = len(starts)
        self.first: list[list[int]] = [[*start, self.size] for start in starts]
        self.child: list[list[int]] = []
        for outer, inner in pairwise(starts):
            self.child.append([*np.searchsorted(np.array(inner), np.array(outer)).tolist(), len(inner)])
        self.offset: list[int] = [0]
        for start in starts:
            self.offset.append(self.offset[-1] + len(start))
        hosts = np.arange(self.size)
        columns = [np.searchsorted(np.array(s), hosts, side="right") - 1 + o for s, o in zip(starts, self.offset, strict=False)]
        self.flat: npt.NDArray[np.intp] = np.stack(columns, axis=1).astype(np.intp)
        self.starts: npt.NDArray[np.intp] = np.concatenate([np.array(start, dtype=np.intp) for start in starts])
        """First host of every domain, numbered through as in `flat`."""

    def _path(self, fact: HostFacts) -> tuple[object, ...]:
        """The host's domains as sort keys. Where it names none, it is a domain of its own: it is near nobody."""
        path = [fact.path[i] if i < len(fact.path) else "" for i in range(len(self.levels))]
        return tuple((0, natural(name)) if name else (1, natural(fact.name)) for name in path)

    def level(self, name: str) -> int | None:
        """The number of a level by its name; None if the cluster has none of that name."""
        if name in self.levels:
            return self.levels.index(name) + 1
        return self.depth if name == HOST_LEVEL else None

    def within(self, level: int, domain: int, inner: int) -> tuple[int, int]:
        """The range of domains of level `inner` that lie in one domain of `level`; hosts, when `inner` is `depth`."""
        if inner == level:
            return domain, domain + 1
        low, high = domain, domain + 1
        for step in range(level, min(inner, self.depth - 1)):
            low, high = self.child[step][low], self.child[step][high]
        if inner == self.depth:
            return self.first[-1][low], self.first[-1][high]
        return low, high

    def hosts(self, level: int, domain: int) -> tuple[int, int]:
        """The host range of one domain."""
        if level == self.depth:
            return domain, domain + 1
        return self.first[level][domain], self.first[level][domain + 1]

    def domain_of(self, host: int, level: int) -> int:
        """The domain of `level` that a host lies in."""
        return host if level == self.depth else int(self.flat[host, level]) - self.offset[level]

    def label(self, level: int, domain: int) -> str:
        """A domain as people write it: `block1/switch3`; empty for the whole cluster, the host's name for a host."""
        if level == self.depth:
            return self.names[domain]
        fact = self.facts[self.first[level][domain]]
        named = min(level, len(self.levels))
        parts = [fact.path[i] if i < len(fact.path) and fact.path[i] else fact.name for i in range(named)]
        return "/".join(parts)


def _chunked(starts: Sequence[int], size: int) -> list[int]:
    chunks: list[int] = []
    for low, high in zip(starts, [*starts[1:], size], strict=True):
        chunks.extend(range(low, high, CHUNK))
    return chunks
