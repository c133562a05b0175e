"""Port numbers as instances: one pool a node, shared by the virtual hosts whose ranges overlap."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gangflow.xce.placement.topology import Topology


class PortPools:
    """Which numbers are taken, as one bit mask a node, and how many are left to each host.

    Two hosts of one node may be given overlapping ranges; a number that one takes is then gone for the other, too.
    """

    def __init__(self, topology: Topology, free: npt.NDArray[np.int64]) -> None:
        """`free` is the count of free numbers of each host, all of them at first: kept by this, and shared with its owner."""
        nodes: dict[str, int] = {}
        self.node: list[int] = []
        """Of each host."""
        members: list[list[int]] = []
        for host, fact in enumerate(topology.facts):
            node = nodes.setdefault(fact.node, len(nodes))
            if node == len(members):
                members.append([])
            members[node].append(host)
            self.node.append(node)
        self.base = [min(topology.facts[host].port_first for host in hosts) for hosts in members]
        self.shift = [fact.port_first - self.base[node] for fact, node in zip(topology.facts, self.node, strict=True)]
        self.range = [((1 << fact.port_count) - 1) << s for fact, s in zip(topology.facts, self.shift, strict=True)]
        self.sharers = [_overlapping(hosts, self.range) for hosts in members]
        self.taken = [0] * len(members)
        self.count: npt.NDArray[np.int64] = np.array([fact.port_count for fact in topology.facts], dtype=np.int64)
        self.free = free
        self.overlapping = any(self.sharers)
        """Whether any two hosts have a number in common: if not, whoever takes numbers may keep `free` himself."""

    def shared(self, host: int) -> bool:
        """Whether other hosts of its node have numbers of its range."""
        return host in self.sharers[self.node[host]]

    def lowest(self, host: int, count: int) -> tuple[list[int], int]:
        """The lowest free numbers of a host's range, and their bits; nothing is taken yet. There must be so many."""
        node = self.node[host]
        left = free = self.range[host] & ~self.taken[node]
        first = (left & -left).bit_length() - 1
        run = ((1 << count) - 1) << first
        if count and left & run == run:
            # Neighbours, as nearly always.
            first += self.base[node]
            return list(range(first, first + count)), run
        offset, numbers = self.base[node] - 1, []
        for _ in range(count):
            low = left & -left
            numbers.append(offset + low.bit_length())
            left ^= low
        return numbers, free ^ left

    def mask(self, host: int, numbers: list[int]) -> int:
        """The bits of some numbers in the pool of the host's node; numbers outside the host's range are nobody's."""
        base, bits = self.base[self.node[host]], 0
        for number in numbers:
            if number >= base:
                bits |= 1 << (number - base)
        return bits & self.range[host]

    def mark(self, host: int, bits: int, take: bool) -> None:
        """As `change`, of numbers that are known to be free (or taken), where the caller keeps `free`."""
        node = self.node[host]
        self.taken[node] = self.taken[node] | bits if take else self.taken[node] & ~bits

    def change(self, host: int, bits: int, take: bool) -> list[int]:
        """Take or give back the numbers of `bits`; the hosts whose free count changed, the host itself first."""
        node = self.node[host]
        before = self.taken[node]
        after = before | bits if take else before & ~bits
        self.taken[node] = after
        sharers = self.sharers[node].get(host) if self.sharers[node] else None
        if sharers is None:
            self.free[host] += before.bit_count() - after.bit_count()
            return [host]
        for sharer in sharers:
            self.free[sharer] = (self.range[sharer] & ~after).bit_count()
        return [host, *sharers]


def _overlapping(hosts: list[int], ranges: list[int]) -> dict[int, list[int]]:
    """For each host whose range overlaps another's: all the hosts of the node, in order. Empty when ranges are disjoint."""
    seen, shared = 0, False
    for host in hosts:
        shared = shared or bool(seen & ranges[host])
        seen |= ranges[host]
    return dict.fromkeys(hosts, hosts) if shared else {}
