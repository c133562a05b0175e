"""An ask as a tree of parts: the group, its members, their slots; each part may have to stand together in one domain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gangflow.xce.core.asks import Ask, SlotAsk
from gangflow.xce.core.plan import Pack, Per, TaskTerm
from gangflow.xce.placement.feasible import Fit, Fits
from gangflow.xce.placement.need import PORTS, Mode

Demands = tuple[tuple[Fit, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class TermPart:
    """How one term of a slot is placed: `count` bundles of `fit`, and before them a lead bundle, after them a remainder."""

    position: int
    """Of the term in its slot: tasks are numbered in this order."""
    term: TaskTerm
    fit: Fit
    count: int
    lead: Fit | None = None
    remainder: Fit | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A group (children: members), a member (children: batches or slots), a batch of equal one-host slots, or a slot."""

    name: str
    """The member's name; empty for the group."""
    demands: Demands
    """Bundles of each need: enough of each alone is necessary, not sufficient."""
    amounts: dict[str, int]
    """What is taken in all, by resource."""
    pack: Pack | None = None
    children: tuple[Part, ...] = ()
    slots: tuple[SlotAsk, ...] = ()
    """Of a batch or a slot."""
    terms: tuple[TermPart, ...] = ()
    """Of a slot that is not one bundle."""
    held: tuple[int, ...] = ()
    """Hosts that this part already stands on."""

    @property
    def hardness(self) -> tuple[int, int]:
        """Small is hard: how many of its bundles fit on the best empty host, and how often what it needs is there now."""
        if len(self.demands) == 1:
            ((fit, count),) = self.demands
            return fit.best, fit.total // max(1, count)
        return min(((fit.best, fit.total // max(1, count)) for fit, count in self.demands), default=(0, 0))


def compile_ask(fits: Fits, ask: Ask, slots: Sequence[SlotAsk], granted: Iterable[tuple[str, str]] = ()) -> Part:
    """The tree of some slots of an ask. `granted` are (member, host) of slots that this session placed already."""
    index = fits.view.topology.index
    held: dict[str, list[int]] = {}
    for member, host in (*ask.held, *granted):
        if host in index:
            held.setdefault(member, []).append(index[host])
    packs = dict(ask.pack_members)
    members: list[Part] = []
    start = 0
    while start < len(slots):
        end, name = start + 1, slots[start].member
        while end < len(slots) and slots[end].member == name:
            end += 1
        runs = _runs(fits, slots[start:end], ask.excluded)
        if len(runs) == 1 and name not in packs:
            members.append(runs[0])
        else:
            members.append(_together(name, packs.get(name), runs, tuple(held.get(name, ()))))
        start = end
    everything = tuple(row for rows in held.values() for row in rows) if held else ()
    return _together("", ask.pack, members, everything)


def _together(name: str, pack: Pack | None, children: Sequence[Part], held: tuple[int, ...]) -> Part:
    """A part of several: bundles add up, but tiles, of which several slots may share a host, do not."""
    demands: dict[Fit, int] = {}
    amounts: dict[str, int] = {}
    for child in children:
        for fit, count in child.demands:
            known = demands.get(fit, 0)
            demands[fit] = max(known, count) if fit.need.mode is Mode.TILE else known + count
        for resource, amount in child.amounts.items():
            amounts[resource] = amounts.get(resource, 0) + amount
    return Part(name, tuple(demands.items()), amounts, pack=pack, children=tuple(children), held=held)


def _runs(fits: Fits, slots: Sequence[SlotAsk], excluded: tuple[str, ...]) -> list[Part]:
    """The slots of a member: neighbours of one shape that need one host each make a batch, any other slot stands alone."""
    runs: list[Part] = []
    start = 0
    while start < len(slots):
        slot, end = slots[start], start + 1
        terms, ports, pack = slot.terms, slot.ports, slot.pack_slot
        for other in slots[end:]:
            # Slots of one member mostly share these very objects.
            same = other.terms is terms and other.ports is ports and other.pack_slot is pack
            if not same and (other.terms, other.ports, other.pack_slot) != (terms, ports, pack):
                break
            end += 1
        term = slot.terms[0]
        if len(slot.terms) == 1 and (term.one_host or term.count == 1):
            fit = fits.get(term, Mode.WHOLE, term.count, len(slot.ports), True, excluded)
            count = end - start
            amounts = {name: amount * count for name, amount in fit.need.amounts}
            runs.append(Part(slot.member, ((fit, count),), amounts, slots=tuple(slots[start:end])))
        else:
            first = _slot(fits, slot, excluded)
            runs.append(first)
            runs.extend(
                Part(first.name, first.demands, first.amounts, first.pack, slots=(each,), terms=first.terms)
                for each in slots[start + 1 : end]
            )
        start = end
    return runs


def _slot(fits: Fits, slot: SlotAsk, excluded: tuple[str, ...]) -> Part:
    terms = [_term(fits, position, term, len(slot.ports), excluded) for position, term in enumerate(slot.terms)]
    demands: dict[Fit, int] = {}
    amounts: dict[str, int] = {}
    for part in terms:
        for fit, count in ((part.lead, 1), (part.fit, part.count), (part.remainder, 1)):
            if fit is not None and count:
                demands[fit] = demands.get(fit, 0) + count
        for name, amount in least_amounts(part.term, len(slot.ports)).items():
            amounts[name] = amounts.get(name, 0) + amount
    terms.sort(
        key=lambda part: min((fit.best, part.position) for fit in (part.lead, part.fit, part.remainder) if fit is not None)
    )
    return Part(slot.member, tuple(demands.items()), amounts, pack=slot.pack_slot, slots=(slot,), terms=tuple(terms))


def _term(fits: Fits, position: int, term: TaskTerm, ports: int, excluded: tuple[str, ...]) -> TermPart:
    per_job = any(use.per is Per.JOB and use.amount for use in term.uses)
    if term.one_host or term.count == 1:
        return TermPart(position, term, fits.get(term, Mode.WHOLE, term.count, ports, True, excluded), 1)
    tile = min(term.ptile or 1, term.count)
    mode = Mode.TILE if term.ptile else Mode.EACH
    lead = fits.get(term, Mode.WHOLE, tile, ports, True, excluded) if per_job else None
    left = term.count - (tile if per_job else 0)
    rest = left % tile
    return TermPart(
        position,
        term,
        fits.get(term, mode, tile, ports, False, excluded),
        left // tile,
        lead,
        fits.get(term, Mode.WHOLE, rest, ports, False, excluded) if rest else None,
    )


def least_amounts(term: TaskTerm, ports: int) -> dict[str, int]:
    """The least that a slot's term takes in all: what is used per host is counted for as few hosts as there must be."""
    hosts = -(-term.count // term.ptile) if term.ptile and not term.one_host else 1
    times = {Per.TASK: term.count, Per.HOST: hosts, Per.JOB: 1}
    amounts: dict[str, int] = {}
    for use in term.uses:
        if use.amount:
            amounts[use.name] = amounts.get(use.name, 0) + use.amount * times[use.per]
    if ports:
        amounts[PORTS] = ports * term.count
    return amounts


def least_of(slots: Iterable[SlotAsk]) -> dict[str, int]:
    """The least that some slots take in all, by resource."""
    amounts: dict[str, int] = {}
    for slot in slots:
        for term in slot.terms:
            for name, amount in least_amounts(term, len(slot.ports)).items():
                amounts[name] = amounts.get(name, 0) + amount
    return amounts


def prefers(part: Part) -> bool:
    """Whether some packing of it is preferred only."""
    return (part.pack is not None and not part.pack.required) or any(prefers(child) for child in part.children)


def outermost_required(part: Part) -> Part | None:
    """The first part, from the outside in, that must stand in one domain."""
    if part.pack is not None and part.pack.required:
        return part
    found = (outermost_required(child) for child in part.children)
    return next((child for child in found if child is not None), None)


def shape_of(part: Part) -> tuple[object, ...]:
    """Equal for parts that are placed, or refused, alike; the vectors in it are equal only to themselves."""
    return (part.name, part.pack, part.demands, part.held, len(part.slots), tuple(shape_of(child) for child in part.children))
