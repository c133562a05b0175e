"""Pend reasons as `bjobs -p0` to `-p3` has them: host counts, the key reason, candidate hosts, all hosts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gangflow.xce.core.plan import MemberPlan, TaskTerm
from gangflow.xce.core.state import Group, GroupState, Host, HostState, Reason, SlotState, State
from gangflow.xce.placement.select import Selection
from gangflow.xce.placement.snapshot import ClusterView
from gangflow.xce.rest.host_views import GPUS, PORTS, host_views
from gangflow.xce.rest.schema import HostReason, HostView, WhyView
from gangflow.xce.rest.sight import EVERYTHING, Sight
from gangflow.xce.rest.views import queue_items, reason_view, slot_view
from gangflow.xce.rest.words import amount_text

_STATES: Mapping[HostState, str] = {
    HostState.UNKNOWN: "Host does not answer",
    HostState.LOST: "Host is lost",
    HostState.FENCED: "Host is lost",
    HostState.CLOSED: "Closed by administrator",
}
_WAITING = frozenset({SlotState.PENDING, SlotState.BACKOFF})


def why_view(state: State, group: Group, seq: int, level: int, sight: Sight = EVERYTHING) -> WhyView:
    """Why a group, or some slots of one that runs, wait. Levels 2 and 3 look at every host."""
    group = _as_seen(group, sight)
    position = next((item.position for item in queue_items(state.groups.values()) if item.id == group.id), 0)
    slots = tuple(
        slot_view(state, group, slot, sight)
        for slot in group.slots.values()
        if slot.state in _WAITING and slot.reason is not None and group.state is not GroupState.PENDING
    )
    # Level 1 is what everybody asks for, all the time; it looks at no host.
    every = () if level == 1 else tuple(_host_reasons(state, group))
    hosts = tuple(reason for reason in every if level == 3 or (level == 2 and reason.candidate))
    lines = tuple(_lines(state, group, position, level, every))
    return WhyView(
        seq=seq,
        id=group.id,
        name=group.plan.name,
        state=group.state,
        level=level,
        position=position,
        reason=reason_view(group.reason),
        slots=slots,
        hosts=hosts,
        lines=lines,
    )


def _as_seen(group: Group, sight: Sight) -> Group:
    """The group without what the caller may not look at."""
    his = sight.members(group)
    slots = {key: replace(slot, reason=sight.reason(slot.reason)) for key, slot in group.slots.items() if slot.member in his}
    return replace(group, reason=sight.reason(group.reason), slots=slots)


def _lines(state: State, group: Group, position: int, level: int, every: tuple[HostReason, ...]) -> Iterator[str]:
    if group.reason is not None:
        yield from _reason_lines(group.reason, "")
        if position:
            yield f" Place in the queue: {position};"
    waiting = [slot for slot in group.slots.values() if slot.state in _WAITING and slot.reason is not None]
    for slot in waiting:
        if slot.reason is not None and slot.reason != group.reason:
            yield from _reason_lines(slot.reason, f"{slot.member}[{slot.index}]: ")
    if group.reason is None and not waiting:
        yield f" Group {group.id} does not wait; it is {group.state};"
        return
    if level == 0:
        for text, hosts in _counted(every):
            yield f" {text}: {len(hosts)} host{'s' if len(hosts) > 1 else ''};"
    if level >= 2:
        candidates = [reason for reason in every if reason.candidate]
        names = dict.fromkeys(reason.host for reason in candidates)
        yield f" Candidate host pending reasons ({len(names)} of {len(state.hosts)} hosts):"
        for text, hosts in _counted(candidates):
            yield f"  {text}: {', '.join(hosts)};"
    if level == 3:
        others = [reason for reason in every if not reason.candidate]
        names = dict.fromkeys(reason.host for reason in others)
        yield f" Non-candidate host pending reasons ({len(names)} of {len(state.hosts)} hosts):"
        for text, hosts in _counted(others):
            yield f"  {text}: {', '.join(hosts)};"


def _reason_lines(reason: Reason, what: str) -> Iterator[str]:
    yield f" {what}{reason.code}: {reason.text or 'no more is known'};"
    if reason.shortfall:
        missing = ", ".join(f"{name} {amount_text(name, amount)}" for name, amount in reason.shortfall)
        yield f"  missing{f' in {reason.domain}' if reason.domain else ''}: {missing};"
    if reason.blocker:
        yield f"  blocked by: {reason.blocker};"
    for constraint, hosts in reason.excluded:
        yield f"  {constraint} rules out {hosts} host{'s' if hosts != 1 else ''};"


def _counted(reasons: list[HostReason] | tuple[HostReason, ...]) -> list[tuple[str, list[str]]]:
    """Texts with their hosts, most common first."""
    hosts: dict[str, dict[str, None]] = {}
    for reason in reasons:
        hosts.setdefault(reason.text, {})[reason.host] = None
    return sorted(((text, list(names)) for text, names in hosts.items()), key=lambda pair: (-len(pair[1]), pair[0]))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a slot that waits needs on one host, at the least: one task."""

    member: MemberPlan
    index: int
    term: TaskTerm


def _wanted(group: Group) -> Iterator[_Wanted]:
    """One waiting slot of each member: its others want the same."""
    seen: dict[str, None] = {}
    for slot in group.slots.values():
        if slot.state is SlotState.PENDING and not slot.tasks and slot.member not in seen:
            seen[slot.member] = None
            member = group.plan.member(slot.member)
            yield from (_Wanted(member, slot.index, term) for term in member.terms)


def _host_reasons(state: State, group: Group) -> Iterator[HostReason]:
    wanted = list(_wanted(group))
    if not wanted:
        return
    ruled_out = _ruled_out(state, [want.term.select for want in wanted])
    for view in host_views(state):
        host = state.hosts[view.name]
        share = _largest_share(state, host)
        for want in wanted:
            text, candidate = _one_reason(group, host, view, share, want)
            if candidate and (want.term.select, view.name) in ruled_out:
                text, candidate = f"Requirement not met: select[{want.term.select}]", False
            yield HostReason(host=view.name, member=want.member.name, index=want.index, text=text, candidate=candidate)


def _ruled_out(state: State, selects: list[str]) -> frozenset[tuple[str, str]]:
    """(select expression, host) where the host does not satisfy it, whatever is free."""
    expressions = [text for text in dict.fromkeys(selects) if text]
    if not expressions:
        return frozenset()
    view = ClusterView(state.hosts, state.levels)
    return frozenset(
        (text, name)
        for text in expressions
        for name, chosen in zip(view.topology.names, Selection(view, text).fixed, strict=True)
        if not chosen
    )


def _largest_share(state: State, host: Host) -> int:
    """The most that is free of one GPU of the host, in thousandths: a fraction stays on one device."""
    used: Counter[int] = Counter()
    for group in state.groups.values():
        for slot in group.slots.values():
            for task in slot.tasks:
                if task.host == host.facts.name:
                    used.update(dict(task.gpus))
    return max((1_000 - used[device] for device in range(host.facts.gpus)), default=0)


def _one_reason(group: Group, host: Host, view: HostView, gpu_share: int, want: _Wanted) -> tuple[str, bool]:
    """What keeps one task off one host, and whether the host is a candidate."""
    if host.state is not HostState.UP:
        return _STATES[host.state], False
    if view.name in group.excluded:
        return "Excluded for this group after failures", False
    needs: Counter[str] = Counter()
    for use in want.term.uses:
        needs[use.name] += use.amount
    if want.member.ports:
        needs[PORTS] += len(want.member.ports)
    for name, amount in needs.items():
        if name not in view.counters or view.counters[name].total < amount:
            total = view.counters[name].total if name in view.counters else 0
            return f"Never enough {name}: a task needs {amount_text(name, amount)} of {amount_text(name, total)}", False
    for name, amount in needs.items():
        free = view.counters[name].total - view.counters[name].used
        if free < amount:
            return f"Not enough {name}: a task needs {amount_text(name, amount)}, {amount_text(name, free)} free", True
    if needs[GPUS] and gpu_share < min(needs[GPUS], 1_000):
        return "Not enough gpus: no device has a large enough share free", True
    return "Room for one task; not for all that must start together", True
