"""Why something waits: the code, what is missing in the best domain, who holds it, and which hosts were never in question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from gangflow.xce.core.state import PendCode, Reason
from gangflow.xce.placement.attributes import CPU
from gangflow.xce.placement.feasible import Fit, Fits
from gangflow.xce.placement.nearest import THOUSAND, Lacking, Near
from gangflow.xce.placement.need import GPUS, PORTS
from gangflow.xce.placement.pack import CLUSTER, Blocked, Heed, Placer, Scope
from gangflow.xce.placement.request import Part, outermost_required
from gangflow.xce.placement.snapshot import ClusterView
from gangflow.xce.placement.topology import Ints

MIB_PER_GIB = 1_024
CLOSED = "closed by an operator"
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


def explain(fits: Fits, request: Part, group: str, blocked: Blocked | None) -> Reason:
    """The reason of a request that does not fit, the view being left as it was.

    `blocked` is the required packing that failed, if an attempt got so far.
    """
    reason = _explain(fits, request, group, blocked)
    if fits.view.unusable and (closed := _closed_that_would_do(fits.view, reason.shortfall)):
        text = f"{reason.text}; {CLOSED}: {closed} host{'s' if closed > 1 else ''}"
        reason = replace(reason, text=text)
    return reason


def _closed_that_would_do(view: ClusterView, shortfall: Iterable[tuple[str, int]]) -> int:
    """How many hosts an operator closed, where what is short is free on them, all of it; else 0."""
    rows = view.closed.nonzero()[0]
    if not len(rows):
        return 0
    where = {**view.column, GPUS: view.gpu_row, PORTS: view.port_row}
    for name, amount in shortfall:
        if name == HOSTS:
            free = len(rows)
        else:
            free = int(view.avail[where[name], rows].sum()) if name in where else 0
        if free < amount:
            return 0
    return len(rows)


def _explain(fits: Fits, request: Part, group: str, blocked: Blocked | None) -> Reason:
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


def _shape(fits: Fits, near: Near | None, missing: int, group: str, excluded: tuple[tuple[str, int], ...]) -> Reason:
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
    if any(fit.anywhere for fit, _ in request.demands):
        everywhere: Ints = fits.sums.level(0)[0]
        return everywhere
    chosen = np.logical_or.reduce([fit.allowed for fit, _ in request.demands]).nonzero()[0]
    found: Ints = fits.sums.free(chosen).sum(axis=0)
    return found


def nearest(fits: Fits, fit: Fit, scope: Scope, tentative: Sequence[int] = ()) -> Near | None:
    """The host of a scope with the least missing for one more bundle; see `Lacking.nearest`."""
    if fit.lacking is None:
        fit.lacking = Lacking(fit)
    assert isinstance(fit.lacking, Lacking)
    return fit.lacking.nearest(*fits.view.topology.hosts(*scope), tentative)


def blocker(view: ClusterView, host: int, shortfall: Iterable[tuple[str, int]], group: str) -> str:
    """The group that holds most of what is short on a host, the oldest of equals; empty if nobody else is there."""
    held: dict[str, int] = {}
    names = [name for name, _ in shortfall]
    for gid in view.holders.on(host):
        if gid != group:
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
    """(constraint, hosts that it rules out): closed, not up, excluded for the group, a select, too small even when empty."""
    view = fits.view
    found: dict[str, int] = {}
    if view.unusable:
        closed = int(view.closed.sum())
        found |= {name: count for name, count in ((CLOSED, closed), ("not up", view.unusable - closed)) if count}
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
        if fit.too_small:
            found["too small"] = max(found.get("too small", 0), fit.too_small)
    return tuple(found.items())
