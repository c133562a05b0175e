"""A scheduler for tests: first fit, in order, without topology. Small enough to be checked by eye."""

from __future__ import annotations

from collections.abc import Sequence

from gangflow.xce.core.asks import Ask, AskKind, Grant, Refusal, SlotAsk
from gangflow.xce.core.plan import TaskTerm
from gangflow.xce.core.state import Host, HostState, PendCode, Reason, State, Task
from gangflow.xce.placement.claimed import Claimed

Free = dict[str, dict[str, int]]


class Greedy:
    """Knows the counters of hosts and one port pool each; a term's `one_host` is heeded, packing is not."""

    def decide(self, state: State, asks: Sequence[Ask]) -> tuple[Grant | Refusal, ...]:
        """One session, phase by phase, then priority, submission and id."""
        free, ports = _free(state), _ports(state)
        answers: list[Grant | Refusal] = []
        claimed = Claimed(state)
        for ask in sorted(asks, key=lambda a: (a.kind, -a.priority, a.submitted_ms, len(a.group), a.group)):
            whole = ask.kind is AskKind.MINIMUM or ask.together
            parts = [ask.slots] if whole else [(slot,) for slot in ask.slots]
            held = claimed.refused(ask)
            if held is not None:
                answers.append(Refusal(ask.group, held, tuple((slot.member, slot.index) for slot in ask.slots)))
                continue
            for part in parts:
                answers.append(_place(state, ask, part, free, ports))
            if isinstance(answers[-1], Grant):
                claimed.take(ask)
        return tuple(answers)


def _free(state: State) -> Free:
    free = {name: dict(host.facts.counters) for name, host in state.hosts.items()}
    for group in state.groups.values():
        for slot in group.slots.values():
            for task in slot.tasks:
                for name, amount in task.counters:
                    free[task.host][name] -= amount
    return free


def _ports(state: State) -> dict[str, list[int]]:
    taken = {
        (task.host, number)
        for group in state.groups.values()
        for slot in group.slots.values()
        for task in slot.tasks
        for _, number in task.ports
    }
    return {
        name: [
            number
            for number in range(host.facts.port_first, host.facts.port_first + host.facts.port_count)
            if (name, number) not in taken
        ]
        for name, host in state.hosts.items()
    }


def _place(state: State, ask: Ask, slots: Sequence[SlotAsk], free: Free, ports: dict[str, list[int]]) -> Grant | Refusal:
    room = {name: dict(left) for name, left in free.items()}
    pool = {name: list(left) for name, left in ports.items()}
    placed: list[tuple[str, int, tuple[Task, ...]]] = []
    short: dict[str, int] = {}
    for slot in slots:
        tasks: list[Task] = []
        for term in slot.terms:
            for _ in range(term.count):
                host = _fit(state, ask, term, room, pool, len(slot.ports), tasks if term.one_host else [])
                if host is None:
                    for use in term.uses:
                        short[use.name] = short.get(use.name, 0) + use.amount
                    continue
                for use in term.uses:
                    room[host][use.name] -= use.amount
                numbers = tuple((name, pool[host].pop(0)) for name in slot.ports)
                counters = tuple((use.name, use.amount) for use in term.uses)
                tasks.append(Task(len(tasks), host, counters, ports=numbers))
        placed.append((slot.member, slot.index, tuple(tasks)))
    if short or not any(host.state is HostState.UP for host in state.hosts.values()):
        code = PendCode.WAITING_CAPACITY
        reason = Reason(code, f"{dict(sorted(short.items()))} missing", tuple(sorted(short.items())) or (("cpu", 1),))
        return Refusal(ask.group, reason, tuple((slot.member, slot.index) for slot in slots))
    free.update(room)
    ports.update(pool)
    return Grant(ask.group, tuple(placed))


def _fit(
    state: State, ask: Ask, term: TaskTerm, room: Free, pool: dict[str, list[int]], ports: int, same: Sequence[Task]
) -> str | None:
    for name, host in state.hosts.items():
        if same and name != same[0].host:
            continue
        fits = len(pool[name]) >= ports and all(room[name].get(use.name, 0) >= use.amount for use in term.uses)
        if fits and _usable(host, ask):
            return name
    return None


def _usable(host: Host, ask: Ask) -> bool:
    return host.state is HostState.UP and host.facts.name not in ask.excluded
