"""Pend reasons as `bjobs -p0` to `-p3` has them: host counts, the key reason, candidate hosts, all hosts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gangflow.xce.core.counts import to_place
from gangflow.xce.core.plan import MemberPlan, TaskTerm
from gangflow.xce.core.state import Group, GroupState, Host, HostState, Reason, SlotState, State
from gangflow.xce.placement.select import Selection
from gangflow.xce.placement.snapshot import ClusterView
from gangflow.xce.rest.alone import too_large
from gangflow.xce.rest.host_views import GPUS, PORTS, host_views
from gangflow.xce.rest.schema import HostReason, HostView, WhyView
from gangflow.xce.rest.sight import EVERYTHING, Sight
from gangflow.xce.rest.views import queue_items, reason_view, slot_view, slots_of
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
    large = too_large(state, group)
    group = _as_seen(group, sight)
    if large and group.reason is not None:
        # It waits for hosts: whoever runs now is in nobody's way.
        group = replace(group, reason=replace(group.reason, blocker=""))
    position = next((item.position for item in queue_items(state.groups.values()) if item.id == group.id), 0)
    slots = tuple(
        slot_view(state, group, slot, sight)
        for slot in group.slots.values()
        if slot.state in _WAITING and slot.reason is not None and group.state is not GroupState.PENDING
    )
    # Level 1 is what everybody asks for, all the time; it says nothing of single hosts.
    every = () if level == 1 else tuple(_host_reasons(state, group))
    hosts = tuple(reason for reason in every if level == 3 or (level == 2 and reason.candidate))
    lines = tuple(_lines(state, group, position, level, every, large))
    return WhyView(
        seq=seq,
        id=group.id,
        name=group.plan.name,
        state=group.state,
        level=level,
        position=position,
        reason=reason_view(group.reason),
        too_large=large,
        slots=slots,
        hosts=hosts,
        lines=lines,
    )


def _as_seen(group: Group, sight: Sight) -> Group:
    """The group without what the caller may not look at."""
    his = sight.members(group)
    slots = {key: replace(slot, reason=sight.reason(slot.reason)) for key, slot in group.slots.items() if slot.member in his}
    return replace(group, reason=sight.reason(group.reason), slots=slots)


def _lines(state: State, group: Group, position: int, level: int, every: tuple[HostReason, ...], large: str) -> Iterator[str]:
    if group.reason is not None:
        yield from _reason_lines(group.reason, "")
        if large:
            yield f"  larger than the cluster is now, with nothing else running: {large};"
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
        yield f"  ruled out, {constraint}: {hosts} host{'s' if hosts != 1 else ''};"


def _counted(reasons: list[HostReason] | tuple[HostReason, ...]) -> list[tuple[str, list[str]]]:
    """Texts with their hosts, most common first."""
    hosts: dict[str, dict[str, None]] = {}
    for reason in reasons:
        hosts.setdefault(reason.text, {})[reason.host] = None
    return sorted(((text, list(names)) for text, names in hosts.items()), key=lambda pair: (-len(pair[1]), pair[0]))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the waiting slots of a member need of one term: so many tasks of one shape."""

    member: MemberPlan
    index: int
    """The first of the slots."""
    term: TaskTerm
    tasks: int
    """Of all the slots that must be placed together."""


def _wanted(group: Group) -> Iterator[_Wanted]:
    """Of a group that waits as a whole, all that must start together; of one that runs, one slot: each waits by itself."""
    for member in group.plan.members:
        waiting = [slot for slot in slots_of(group, member.name) if slot.state is SlotState.PENDING and not slot.tasks]
        together = to_place(group, member) if group.state is GroupState.PENDING and waiting else waiting[:1]
        if waiting:
            slots = max(1, len(together))
            yield from (_Wanted(member, waiting[0].index, term, term.count * slots) for term in member.terms)


def _host_reasons(state: State, group: Group) -> Iterator[HostReason]:
    wanted = list(_wanted(group))
    if not wanted:
        return
    ruled_out, devices = _ruled_out(state, [want.term.select for want in wanted]), _devices(state)
    for view in host_views(state):
        host = state.hosts[view.name]
        for want in wanted:
            text, candidate = _one_reason(group, host, view, devices[view.name], want)
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


def _devices(state: State) -> dict[str, list[int]]:
    """What is free of each GPU of each host, in thousandths."""
    free = {name: [1_000] * host.facts.gpus for name, host in state.hosts.items()}
    for group in state.groups.values():
        for slot in group.slots.values():
            for task in slot.tasks:
                devices = free.get(task.host, [])
                for device, milli in task.gpus:
                    if device < len(devices):
                        devices[device] -= milli
    return free


def _one_reason(group: Group, host: Host, view: HostView, devices: list[int], want: _Wanted) -> tuple[str, bool]:
    """What keeps the tasks of a member off one host, and whether the host is a candidate."""
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
    room = want.tasks
    for name, amount in needs.items():
        free = view.counters[name].total - view.counters[name].used
        if free < amount:
            return f"Not enough {name}: a task needs {amount_text(name, amount)}, {amount_text(name, free)} free", True
        room = min(room, free // amount if amount else room)
    if needs[GPUS]:
        room = min(room, _tasks_by_gpu(devices, needs[GPUS]))
    if not room:
        return "Not enough gpus: no device has a large enough share free", True
    if room < want.tasks:
        return f"Room for {room} of the {want.tasks} tasks of {want.member.name} that must start together", True
    if group.state is not GroupState.PENDING:
        return f"Room for {want.member.name}[{want.index}]; its turn has not come, or a packing keeps it off", True
    every = "the task" if want.tasks == 1 else f"all {want.tasks} tasks"
    return f"Room for {every} of {want.member.name}; not for all that must start together", True


def _tasks_by_gpu(devices: list[int], milli: int) -> int:
    """How many tasks find their GPUs on devices of which this much is free: a fraction stays on one device."""
    if milli < 1_000:
        return sum(free // milli for free in devices)
    return sum(free == 1_000 for free in devices) * 1_000 // milli
