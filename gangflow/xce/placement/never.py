"""What no host of this cluster could ever hold: refused at submission, because waiting would not help."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gangflow.xce.core.asks import Ask, AskKind, SlotAsk
from gangflow.xce.core.plan import GroupPlan, MemberPlan
from gangflow.xce.core.state import Host, PendCode, Reason
from gangflow.xce.placement.attributes import Attributes
from gangflow.xce.placement.explain import amount_text
from gangflow.xce.placement.feasible import Fit, Fits
from gangflow.xce.placement.need import GPUS, PORTS
from gangflow.xce.placement.request import Part, compile_ask
from gangflow.xce.placement.snapshot import ClusterView


def never_fits(hosts: Mapping[str, Host], levels: tuple[str, ...], plan: GroupPlan) -> Reason | None:
    """The reason why no host, or no domain of a required packing, could hold a slot (or the minimum) even when all is empty.

    Hosts count whatever their state: they may come back. Only what is certain is answered: a group that is merely larger than
    the cluster waits. Code NEVER_FITS; MISCONFIGURED for a name that the cluster does not know.
    """
    kept = _KEPT[0] if _KEPT else None
    if kept is None or not kept.fits_hosts(hosts, levels):
        kept = ClusterView(hosts, levels)
        _KEPT[:] = [kept]
    return never_by(Fits(kept), plan)


_KEPT: list[ClusterView] = []
"""The view of the hosts that were asked about last. It is only read, so that threads may share it, and it never shows: facts
that differ make another one."""


def never_by(fits: Fits, plan: GroupPlan) -> Reason | None:
    """The same for hosts that are compiled already. Without any, nothing is known: None."""
    if not fits.view.topology.size:
        return None
    reason = _unknown_order(fits.view, plan) or never_in(fits, plan_ask(plan))
    # A member that may start with none of its slots is no part of the minimum, and a slot that fits nowhere waits in vain.
    optional = (member for member in plan.members if not member.min_replicas and member.replicas)
    return reason or next(filter(None, (never_in(fits, one_slot(plan, member)) for member in optional)), None)


def _unknown_order(view: ClusterView, plan: GroupPlan) -> Reason | None:
    """A wish that nothing can be measured by would be dropped in silence; LSF's load indices (`r15s`, `pg`) are such."""
    attributes = Attributes(view)
    for member in plan.members:
        for key in (key for term in member.terms for key in term.order):
            name = key.lstrip("!-")
            if not attributes.known(name):
                return Reason(PendCode.MISCONFIGURED, f"{member.name}: no host has {name}, which order[{key}] asks for")
    return None


def plan_ask(plan: GroupPlan) -> Ask:
    """What a group asks for when it starts: its required slots."""
    slots = tuple(
        SlotAsk(member.name, index, member.terms, member.ports, member.pack_slot)
        for member in plan.members
        for index in range(member.min_replicas)
    )
    packs = tuple((member.name, member.pack) for member in plan.members if member.pack is not None)
    return Ask("", AskKind.MINIMUM, plan.priority, 0, slots, plan.pack, packs)


def one_slot(plan: GroupPlan, member: MemberPlan) -> Ask:
    """What a single slot of a member asks for."""
    slot = SlotAsk(member.name, 0, member.terms, member.ports, member.pack_slot)
    return Ask("", AskKind.SURPLUS, plan.priority, 0, (slot,), plan.pack, ((member.name, member.pack),) if member.pack else ())


def never_in(fits: Fits, ask: Ask) -> Reason | None:
    """The same for an ask, against a view of any state."""
    for pack in (ask.pack, *(pack for _, pack in ask.pack_members), *(slot.pack_slot for slot in ask.slots)):
        if pack is not None and fits.view.topology.level(pack.level) is None:
            levels = ", ".join((*fits.view.topology.levels, "host"))
            return Reason(PendCode.MISCONFIGURED, f"no topology level {pack.level!r}: the cluster has {levels}")
    return never_part(fits, compile_ask(fits, ask, ask.slots)) if ask.slots else None


def never_part(fits: Fits, part: Part) -> Reason | None:
    """The same for a compiled request; its levels are known."""
    for fit, count in part.demands if not part.children else ():
        if count and fit.best == 0:
            return _no_host(fits, part, fit)
    if part.pack is not None and part.pack.required:
        reason = _no_domain(fits, part)
        if reason is not None:
            return reason
    for child in part.children:
        reason = never_part(fits, child)
        if reason is not None:
            return reason
    return None


def _no_host(fits: Fits, part: Part, fit: Fit) -> Reason:
    """No host could hold one bundle: say for which resource, or because of which constraint."""
    view, need = fits.view, fit.need
    excluded: list[tuple[str, int]] = []
    if need.term.select:
        ruled = int(view.topology.size - fit.selection.fixed.sum())
        excluded.append((f"select[{need.term.select}]", ruled))
        if fit.selection.unknown:
            names = ", ".join(fit.selection.unknown)
            text = f"{part.name}: no host has {names}, which select[{need.term.select}] asks for"
            return Reason(PendCode.NEVER_FITS, text, excluded=tuple(excluded))
    rows = np.flatnonzero(fit.allowed) if need.known else np.arange(view.topology.size)
    if not len(rows):
        return Reason(PendCode.NEVER_FITS, f"{part.name}: no host is left to choose from", excluded=tuple(excluded))
    excluded.append(("too small", len(rows)))
    most = {name: int(view.capacity[rows, column].max()) for name, column in view.column.items()}
    most[GPUS] = int(view.gpu_capacity[rows].sum(axis=1).max(initial=0))
    most[PORTS] = int(view.ports.count[rows].max())
    lacking = tuple((name, amount - most.get(name, 0)) for name, amount in need.amounts if amount > most.get(name, 0))
    tasks = "a task" if need.tasks == 1 else f"{need.tasks} tasks on one host"
    if lacking:
        parts = ", ".join(
            f"{name}: {amount_text(name, amount)} (the largest host has {amount_text(name, most.get(name, 0))})"
            for name, amount in need.amounts
            if amount > most.get(name, 0)
        )
        return Reason(PendCode.NEVER_FITS, f"{part.name}: no host can hold {tasks}: {parts}", lacking, excluded=tuple(excluded))
    wanted = ", ".join(f"{name}: {amount_text(name, amount)}" for name, amount in need.amounts)
    text = f"{part.name}: no single host has all that {tasks} take ({wanted})"
    return Reason(PendCode.NEVER_FITS, text, excluded=tuple(excluded))


def _no_domain(fits: Fits, part: Part) -> Reason | None:
    """No domain of the required level could hold all of the part, even when it is empty."""
    assert part.pack is not None
    view = fits.view
    level = view.topology.level(part.pack.level)
    assert level is not None
    room = fits.sums.capacity(level)
    needed = fits.sums.row({name: amount for name, amount in part.amounts.items() if name in fits.sums.column})
    assert needed is not None
    ok = (room >= needed).all(axis=1)
    for fit, count in part.demands:
        ok &= fit.empty_level(level) >= count
    if bool(ok.any()):
        return None
    relative = (np.maximum(needed - room, 0) * 1_000 // np.maximum(needed, 1)).sum(axis=1)
    best = int(relative.argmin())
    lacking = tuple(
        (name, part.amounts[name] - int(room[best, fits.sums.column[name]]))
        for name in sorted(part.amounts)
        if name in fits.sums.column and part.amounts[name] > int(room[best, fits.sums.column[name]])
    )
    who = part.name or "the group"
    short = ": " + ", ".join(f"{name}: {amount_text(name, amount)} missing" for name, amount in lacking) if lacking else ""
    label = view.topology.label(level, best)
    text = f"no {part.pack.level} could hold all of {who}, even when it is empty; nearest is {label}{short}"
    return Reason(PendCode.NEVER_FITS, text, lacking, label)
