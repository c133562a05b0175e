"""Filling one scope with bundles of one need: down the tree into the tightest domains, then onto hosts."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np

from gangflow.xce.placement.feasible import Fit
from gangflow.xce.placement.need import Need
from gangflow.xce.placement.order import host_order
from gangflow.xce.placement.snapshot import ClusterView
from gangflow.xce.placement.topology import Ints

Piece = tuple[int, int]
"""(host, bundles)."""
NONE = 1 << 62


class Fill(Enum):
    """Which hosts of a domain come first."""

    FRAGMENTS = "fragments"
    """Independent bundles: the hosts with the least room first, each filled up."""
    FEW_HOSTS = "few_hosts"
    """Bundles of one slot: the tightest single host, else the roomiest, and the tightest for what is left."""
    TILES = "tiles"
    """One bundle a host."""


def pieces_for(
    view: ClusterView, fit: Fit, count: int, scope: tuple[int, int], fill: Fill, apart: Sequence[int] = ()
) -> list[Piece]:
    """Hosts for up to `count` bundles within a scope, in host order; less only when the scope has no more.

    `apart` are hosts that must not be used. The vector of `fit` must be fresh; nothing is taken yet.
    """
    level, domain = scope
    low, high = view.topology.hosts(level, domain)
    if fit.need.term.order or apart:
        cap = fit.cap[low:high]
        if apart:
            cap = cap.copy()
            cap[[host - low for host in apart if low <= host < high]] = 0
        found = _in_order(view, fit.need, cap, low, count, fill)
    elif level == view.topology.depth:
        found = [(domain, min(count, int(fit.cap[domain])))] if fit.cap[domain] else []
    else:
        found = _descend(view, fit, count, level, domain, fill)
    found.sort()
    return found


def _descend(view: ClusterView, fit: Fit, count: int, level: int, domain: int, fill: Fill) -> list[Piece]:
    """The tightest domain, of the innermost level on which one holds everything; else spread over few."""
    topology = view.topology
    for inner in range(topology.depth - 1, level, -1):
        low, high = topology.within(level, domain, inner)
        sums = fit.level(inner)[low:high]
        masked = np.where(sums >= count, sums, NONE)
        best = int(masked.argmin())
        if masked[best] != NONE:
            level, domain = inner, low + best
            break
    if level == topology.depth - 1:
        low, high = topology.hosts(level, domain)
        return _hosts(fit.cap[low:high], low, count, fill)
    return _spread(view, fit, count, level, domain, fill)


def _spread(view: ClusterView, fit: Fit, count: int, level: int, domain: int, fill: Fill) -> list[Piece]:
    """Over the domains of the next level: the roomiest first, and the tightest that holds what is left."""
    low, high = view.topology.within(level, domain, level + 1)
    sums: list[int] = fit.level(level + 1)[low:high].tolist()
    found: list[Piece] = []
    for child, share in _roomiest_first(sums, count):
        found.extend(_descend(view, fit, share, level + 1, low + child, fill))
    return found


def _roomiest_first(room: Sequence[int], count: int) -> list[Piece]:
    """Shares of `count`: all of the largest rooms, then, once one room holds the rest, the smallest such; ties by index."""
    shares: list[Piece] = []
    left = count
    order = sorted([(-size, index) for index, size in enumerate(room) if size])
    for position, (size, index) in enumerate(order):
        if -size >= left:
            # What follows is smaller: the tightest that still holds the rest, and of equals the first.
            best = (-size, index)
            for other, place in order[position + 1 :]:
                if -other < left:
                    break
                if -other < best[0]:
                    best = (-other, place)
            shares.append((best[1], left))
            return shares
        shares.append((index, -size))
        left += size
    return shares


def _hosts(cap: Ints, low: int, count: int, fill: Fill) -> list[Piece]:
    """Hosts of one innermost domain: few enough that sorting a list beats an array's fixed costs."""
    room: list[int] = cap.tolist()
    if fill is Fill.FEW_HOSTS:
        return [(low + host, share) for host, share in _roomiest_first(room, count)]
    if fill is Fill.TILES:
        return [(low + host, 1) for host, size in enumerate(room) if size][:count]
    found: list[Piece] = []
    left = count
    for size, host in sorted([(size, host) for host, size in enumerate(room) if size]):
        found.append((low + host, min(size, left)))
        left -= size
        if left <= 0:
            break
    return found


def _in_order(view: ClusterView, need: Need, cap: Ints, low: int, count: int, fill: Fill) -> list[Piece]:
    """Hosts by the term's `order` keys, each filled up."""
    hosts = np.flatnonzero(cap)
    hosts = hosts[host_order(view, need.term.order, hosts + low, cap[hosts])]
    if fill is Fill.TILES:
        return [(low + host, 1) for host in hosts[:count].tolist()]
    return _filled(hosts, cap, low, count)


def _filled(hosts: Ints, cap: Ints, low: int, count: int) -> list[Piece]:
    sizes = cap[hosts]
    before = np.cumsum(sizes) - sizes
    number = int(np.searchsorted(before, count))
    shares = np.minimum(sizes[:number], count - before[:number])
    return list(zip((hosts[:number] + low).tolist(), shares.tolist(), strict=True))
