"""Why something waits: the code, what is missing in the best domain, who holds it, and which hosts were never in question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gangflow.xce.core.state import PendCode, Reason
from gangflow.xce.placement.attributes import CPU
from gangflow.xce.placement.feasible import Fit, Fits
from gangflow.xce.placement.need import GPUS, PORTS
from gangflow.xce.placement.pack import CLUSTER, Blocked, Heed, Placer, Scope
from gangflow.xce.placement.request import Part, outermost_required
from gangflow.xce.placement.snapshot import WHOLE, ClusterView
from gangflow.xce.placement.topology import Ints

THOUSAND = 1_000
MIB_PER_GIB = 1_024
HOSTS = "hosts"
"""What is short when hosts as such are: `span[ptile=n]` wants more of them."""


def amount_text(name: str, amount: int) -> str:
    """An amount as people write it: `cpu: 8`, `mem: 64GiB`, `gpus: 0.5`."""
    if name in (CPU, GPUS):
        whole, rest = divmod(amount, THOUSAND)
        return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)
    if name == "mem":
        whole, rest = divmod(amount, MIB_PER_GIB)
        return f"{amount}MiB" if rest else f"{whole}GiB"
    return str(amount)


def missing_text(shortfall: Iterable[tuple[str, int]], where: str) -> str:
    """`cpu: 8 missing on node x`."""
    parts = ", ".join(f"{name}: {amount_text(name, amount)}" for name, amount in shortfall)
    return f"{parts} missing {where}"


@dataclass(frozen=True, slots=True)
class _Near:
    """The host on which one more bundle of a need is the closest to fitting."""

    host: int
    shortfall: tuple[tuple[str, int], ...]


def explain(fits: Fits, request: Part, group: str, blocked: Blocked | None) -> Reason:
    """The reason of a request that does not fit, the view being left as it was.

    `blocked` is the required packing that failed, if an attempt got so far.
    """
    if blocked is None and (part := outermost_required(request)) is not None and part.pack is not None:
        blocked = (part, fits.view.topology.level(part.pack.level) or 0, CLUSTER)
    excluded = exclusions(fits, request)
    shortfall = _shortfall(fits, request.amounts, _free_for(fits, request))
    if shortfall:
        return _capacity(fits, request, group, blocked, shortfall, excluded)
    for fit, count in sorted(request.demands, key=lambda row: row[0].best):
        fit.refresh()
        if fit.total < count:
            # No need to try: this alone does not fit, wherever the others go.
            return _shape(fits, nearest(fits, fit, CLUSTER), count - fit.total, group, excluded)
    relaxed = Placer(fits, Heed.NONE)
    if relaxed.place(request) and blocked is not None:
        relaxed.draft.rollback(0)
        # Once more, up to where it fails: what the other parts of the group take is then taken.
        again = Placer(fits, Heed.REQUIRED)
        again.place(request)
        reason = _topology(fits, again.blocked or blocked, group, excluded)
        again.draft.rollback(0)
        return reason
    short = relaxed.short
    near = nearest(fits, short[1], CLUSTER, [row.chunk.host for row in relaxed.placed]) if short is not None else None
    relaxed.draft.rollback(0)
    return _shape(fits, near, short[2] if short is not None else 1, group, excluded)


def _shape(fits: Fits, near: _Near | None, missing: int, group: str, excluded: tuple[tuple[str, int], ...]) -> Reason:
    """Enough is free in all, but not where one host must have it."""
    if near is None:
        shortfall = ((HOSTS, missing),)
        return Reason(PendCode.WAITING_SHAPE, missing_text(shortfall, "in the cluster"), shortfall, excluded=excluded)
    name = fits.view.topology.names[near.host]
    text = missing_text(near.shortfall, f"on node {name}")
    who = blocker(fits.view, near.host, near.shortfall, group)
    return Reason(PendCode.WAITING_SHAPE, text, near.shortfall, name, who, excluded)


def _capacity(
    fits: Fits,
    request: Part,
    group: str,
    blocked: Blocked | None,
    shortfall: tuple[tuple[str, int], ...],
    excluded: tuple[tuple[str, int], ...],
) -> Reason:
    """Less is free in all than the request takes."""
    view = fits.view
    domain, where, scope = "", "in the cluster", CLUSTER
    if blocked is not None and blocked[0].amounts == request.amounts:
        best, lacking = best_domain(fits, *blocked)
        if lacking:
            shortfall, domain, scope = lacking, view.topology.label(blocked[1], best), (blocked[1], best)
            where = f"in {level_name(blocked[0])} {domain}"
    text = missing_text(shortfall, where)
    # The need that is the furthest from being met, and the host that lacks least for one more of it.
    names = [name for name, _ in shortfall]
    for fit, _ in request.demands:
        fit.refresh()
    concerned = [row for row in request.demands if any(name in names for name, _ in row[0].need.amounts)] or request.demands
    hardest = min(concerned, key=lambda row: (row[0].total >= row[1], row[0].best))[0]
    near = nearest(fits, hardest, scope)
    if near is None:
        return Reason(PendCode.WAITING_CAPACITY, text, shortfall, domain, excluded=excluded)
    node = view.topology.names[near.host]
    if near.shortfall == shortfall:
        text, domain = missing_text(shortfall, f"on node {node}"), domain or node
    else:
        text += f"; nearest for one more: {missing_text(near.shortfall, f'on node {node}')}"
    return Reason(PendCode.WAITING_CAPACITY, text, shortfall, domain, blocker(view, near.host, shortfall, group), excluded)


def level_name(part: Part) -> str:
    """The name of the level that a part is packed on."""
    return part.pack.level if part.pack is not None else ""


def _topology(fits: Fits, blocked: Blocked, group: str, excluded: tuple[tuple[str, int], ...]) -> Reason:
    """It would fit, were it not for a required packing."""
    view, (part, level, scope) = fits.view, blocked
    best, shortfall = best_domain(fits, part, level, scope)
    hardest = min(part.demands, key=lambda row: row[0].best)[0]
    near = nearest(fits, hardest, (level, best))
    if not shortfall:
        # Enough in sum: what is missing is room of the right shape. A tentative fill shows what runs out.
        trial = Placer(fits, Heed.REQUIRED)
        fitted = trial.inside(part, (level, best))
        if not fitted and trial.blocked is not None:
            reason = _topology(fits, trial.blocked, group, excluded)
            trial.draft.rollback(0)
            return reason
        if trial.short is not None:
            near = nearest(fits, trial.short[1], (level, best), [row.chunk.host for row in trial.placed])
        shortfall = near.shortfall if near is not None else ((HOSTS, trial.short[2] if trial.short is not None else 1),)
        trial.draft.rollback(0)
    label = view.topology.label(level, best)
    text = f"{missing_text(shortfall, f'in {level_name(part)} {label}')}, where all of {part.name or 'the group'} must stand"
    held = near.host if near is not None else view.topology.hosts(level, best)[0]
    return Reason(PendCode.WAITING_TOPOLOGY, text, shortfall, label, blocker(view, held, shortfall, group), excluded)


def best_domain(fits: Fits, part: Part, level: int, scope: Scope) -> tuple[int, tuple[tuple[str, int], ...]]:
    """The domain that lacks least of what a part takes (relative to what it takes), and what it lacks there."""
    low, high = fits.view.topology.within(scope[0], scope[1], level)
    held = dict.fromkeys(fits.view.topology.domain_of(host, level) for host in part.held)
    domains = [domain for domain in held if low <= domain < high] or list(range(low, high))
    needed = fits.sums.row({name: amount for name, amount in part.amounts.items() if name in fits.sums.column})
    assert needed is not None
    free = fits.sums.level(level)[domains]
    lacking = np.maximum(needed - free, 0)
    relative = (lacking * THOUSAND // np.maximum(needed, 1)).sum(axis=1)
    short = np.zeros(len(domains), dtype=np.int64)
    for fit, count in part.demands:
        fit.refresh()
        short += np.maximum(count - fit.level(level)[domains], 0) * THOUSAND // max(1, count)
    best = int(np.lexsort((short, relative))[0])
    return domains[best], _shortfall(fits, part.amounts, free[best])


def _shortfall(fits: Fits, amounts: dict[str, int], free: Ints) -> tuple[tuple[str, int], ...]:
    """What is missing, by name in order; a resource that no host has is missing altogether."""
    missing = []
    for name in sorted(amounts):
        column = fits.sums.column.get(name)
        lack = amounts[name] - (int(free[column]) if column is not None else 0)
        if lack > 0:
            missing.append((name, lack))
    return tuple(missing)


def _free_for(fits: Fits, request: Part) -> Ints:
    """What is free in all on the hosts that at least one of the needs may use."""
    masks = [fit.allowed for fit, _ in request.demands]
    if any(bool(mask.all()) for mask in masks):
        everywhere: Ints = fits.sums.level(0)[0]
        return everywhere
    found: Ints = fits.sums.free(np.logical_or.reduce(masks)).sum(axis=0)
    return found


def nearest(fits: Fits, fit: Fit, scope: Scope, tentative: Sequence[int] = ()) -> _Near | None:
    """The host of a scope with the least missing for one more bundle; hosts that could hold one when empty come first, and
    those that only a tentative fill made short come last.

    None if no host that may be used is without room for it.
    """
    view, need = fits.view, fit.need
    fit.refresh()
    low, high = view.topology.hosts(*scope)
    rows = np.flatnonzero((fit.cap[low:high] == 0) & fit.allowed[low:high] & view.usable[low:high]) + low
    if not len(rows):
        return None
    if bool((fit.empty[rows] > 0).any()):
        rows = rows[fit.empty[rows] > 0]
    if len(tentative):
        others = rows[~np.isin(rows, np.array(tentative))]
        rows = others if len(others) else rows
    counters = need.row + need.once
    lacking = np.maximum(counters - np.maximum(view.free[rows], 0), 0)
    relative = (lacking * THOUSAND // np.maximum(counters, 1)).sum(axis=1)
    gpus = np.zeros(len(rows), dtype=np.int64)
    if need.uses_gpus:
        gpus = _gpus_lacking(fit, view.gpu_free[rows])
        relative += gpus * THOUSAND // max(1, dict(need.amounts).get(GPUS, 1))
    ports = np.maximum(need.ports * need.tasks - view.ports.free[rows], 0)
    if need.ports:
        relative += ports * THOUSAND // (need.ports * need.tasks)
    relative[relative == 0] = np.iinfo(np.int64).max
    best = int(relative.argmin())
    found = [(name, int(lacking[best, column])) for name, column in view.column.items() if lacking[best, column]]
    found += [(name, amount) for name, amount in ((GPUS, int(gpus[best])), (PORTS, int(ports[best]))) if amount]
    return _Near(int(rows[best]), tuple(sorted(found))) if found else None


def _gpus_lacking(fit: Fit, devices: npt.NDArray[np.int32]) -> Ints:
    """Thousandths missing for one bundle: whole devices that are not free, and fractions that no device has room for."""
    need, once = fit.need.gpus, fit.need.gpus_once
    free: Ints = (devices == WHOLE).sum(axis=1)
    lacking = np.maximum(need.whole + once.whole - free, 0) * WHOLE
    opened = np.maximum(free - need.whole, 0)
    for share, shares in ((need.share, need.shares), (once.share, once.shares)):
        if shares:
            room = np.where(devices < WHOLE, devices // share, 0).sum(axis=1) + opened * (WHOLE // share)
            widest = np.where(devices < WHOLE, devices, 0).max(axis=1, initial=0)
            lacking += np.where(room < shares, (shares - room) * share - np.where(shares - room == 1, widest, 0), 0)
    return lacking


def blocker(view: ClusterView, host: int, shortfall: Iterable[tuple[str, int]], group: str) -> str:
    """The group that holds most of what is short on a host, the oldest of equals; empty if nobody else is there."""
    held: dict[str, int] = {}
    names = [name for name, _ in shortfall]
    for gid, hosts in view.holders.items():
        if host in hosts and gid != group:
            held[gid] = sum(_held(view, gid, host, name) for name in names[:1])
    if not held:
        return ""
    return min(held, key=lambda gid: (-held[gid], len(gid), gid))


def _held(view: ClusterView, gid: str, host: int, name: str) -> int:
    total, where = 0, view.topology.names[host]
    for tasks in view.booked.get(gid, {}).values():
        for task in tasks:
            if task.host != where:
                continue
            if name == GPUS:
                total += sum(share for _, share in task.gpus)
            elif name == PORTS:
                total += len(task.ports)
            else:
                total += sum(amount for counter, amount in task.counters if counter == name)
    return total


def exclusions(fits: Fits, request: Part) -> tuple[tuple[str, int], ...]:
    """(constraint, hosts that it rules out): not up, excluded for the group, a select, too small even when empty."""
    view = fits.view
    found: dict[str, int] = {}
    down = int(view.topology.size - view.usable.sum())
    if down:
        found["not up"] = down
    for fit, _ in request.demands:
        if fit.excluded:
            found["excluded"] = sum(1 for name in fit.excluded if name in view.topology.index)
        text = fit.need.term.select
        if text:
            ruled = int(view.topology.size - fit.selection.fixed.sum())
            if fit.selection.moving:
                ruled = int((~fit.selection.mask(slice(None), view.free, view.gpu_free)).sum())
            if ruled:
                found[f"select[{text}]"] = ruled
        small = int((fit.allowed & (fit.empty == 0)).sum())
        if small:
            found["too small"] = max(found.get("too small", 0), small)
    return tuple(found.items())
