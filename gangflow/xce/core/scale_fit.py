"""The proof that a change of targets fits: where its new slots go, and what has to be held until they can (design 3.7).

A slot that fits what is free now gets that. Any other gets a place that is partly made of what the change's own downs give
back; only what goes beyond that is held for it meanwhile, so that nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gangflow.xce.core.asking import ask_for, keeping, with_group
from gangflow.xce.core.asks import AskKind, Grant, Refusal
from gangflow.xce.core.state import Group, Slot, SlotState, State, Task, TaskPhase
from gangflow.xce.core.turn import SlotId, Turn
from gangflow.xce.renew import replace

K = TypeVar("K")
Places = dict[SlotId, tuple[Task, ...]]


@dataclass(frozen=True, slots=True)
class Fit:
    """Where slots go, and what each holds until it is placed: the same as its place if that is free already."""

    grants: Places
    holds: Places


class Pool:
    """What the downs of a change give back, by instance: taken from once for each unit."""

    def __init__(self, state: State, downs: Iterable[tuple[Task, ...]]) -> None:
        self._nodes = {name: host.facts.node for name, host in state.hosts.items()}
        self._counters: dict[tuple[str, str], int] = {}
        self._gpus: dict[tuple[str, int], int] = {}
        self._ports: dict[tuple[str, int], None] = {}
        for task in (task for tasks in downs for task in tasks):
            for name, amount in task.counters:
                self._counters[task.host, name] = self._counters.get((task.host, name), 0) + amount
            for device, share in task.gpus:
                self._gpus[task.host, device] = self._gpus.get((task.host, device), 0) + share
            for _, number in task.ports:
                self._ports[self._node(task.host), number] = None

    def _node(self, host: str) -> str:
        """Ports are the node's: virtual hosts of one machine share them."""
        return self._nodes.get(host, host)

    def beyond(self, tasks: Sequence[Task]) -> tuple[Task, ...]:
        """What these tasks need that the downs do not give back; nothing of it runs. What they give is used up."""
        held: list[Task] = []
        for task in tasks:
            counters = tuple(
                (name, left) for name, amount in task.counters if (left := _take(self._counters, (task.host, name), amount))
            )
            gpus = tuple(
                (device, left) for device, share in task.gpus if (left := _take(self._gpus, (task.host, device), share))
            )
            ports = tuple((name, number) for name, number in task.ports if not self._port(task.host, number))
            if counters or gpus or ports:
                held.append(Task(task.index, task.host, counters, gpus, ports, TaskPhase.GONE))
        return tuple(held)

    def _port(self, host: str, number: int) -> bool:
        return self._ports.pop((self._node(host), number), 0) is None


def _take(pool: dict[K, int], key: K, amount: int) -> int:
    """Take as much of the amount as the pool has; what is left of it."""
    given = min(amount, pool.get(key, 0))
    if given:
        pool[key] -= given
    return amount - given


def held(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """All of a place, to be held: nothing of it runs."""
    return tuple(replace(task, phase=TaskPhase.GONE) for task in tasks)


def lacking(place: Sequence[Task], hold: Sequence[Task]) -> tuple[Task, ...]:
    """What a place has beyond what is held of it: that is in the hands of the downs."""
    of_task = {task.index: task for task in hold}
    found: list[Task] = []
    for task in place:
        known = of_task.get(task.index)
        if known is None:
            found.append(task)
            continue
        has, shares, ports = dict(known.counters), dict(known.gpus), dict(known.ports)
        counters = tuple((name, amount - has.get(name, 0)) for name, amount in task.counters if amount > has.get(name, 0))
        gpus = tuple((device, share - shares.get(device, 0)) for device, share in task.gpus if share > shares.get(device, 0))
        missing = tuple((name, number) for name, number in task.ports if name not in ports)
        if counters or gpus or missing:
            found.append(replace(task, counters=counters, gpus=gpus, ports=missing))
    return tuple(found)


class Proof:
    """One question to the scheduler, on copies of the state; nothing of it is true yet."""

    def __init__(self, turn: Turn, group: Group, downs: Sequence[SlotId], promised: Places) -> None:
        """`group`: as it would be with the change, its downs and what is `promised` to earlier ups still as they are."""
        assert turn.decide is not None, "handle gives every turn its scheduler"
        self._decide = turn.decide
        self._state = turn.draft.freeze()
        self._group = group
        self._downs = {key: group.slots[key].tasks for key in downs}
        self._promised = promised

    def fit(self, ups: Sequence[SlotId]) -> Fit | Refusal:
        """Places for all of these slots, or why there are none."""
        if not ups:
            return Fit({}, {})
        whole = self._places(AskKind.MINIMUM, ups, {}, after=False)
        if isinstance(whole, dict):
            return Fit(whole, {key: held(tasks) for key, tasks in whole.items()})
        if not self._downs:
            return whole
        # What fits now does not wait for anybody; the rest waits for the downs.
        now = self._places(AskKind.SURPLUS, ups, {}, after=False)
        now = now if isinstance(now, dict) else {}
        rest = self._places(AskKind.MINIMUM, [key for key in ups if key not in now], now, after=True)
        if not isinstance(rest, dict) and now:
            # Those took what the others need: all of them together, then.
            now, rest = {}, self._places(AskKind.MINIMUM, ups, {}, after=True)
        if not isinstance(rest, dict):
            return rest
        pool = self._pool()
        holds = {key: held(tasks) for key, tasks in now.items()}
        holds |= {key: pool.beyond(tasks) for key, tasks in rest.items()}
        return Fit({key: (now | rest)[key] for key in ups}, holds)

    def _places(self, kind: AskKind, ups: Sequence[SlotId], taken: Places, *, after: bool) -> Places | Refusal:
        """One session. `after`: once the downs are gone; `taken` is what other ups have by then."""
        slots = dict(self._group.slots)
        if after:
            for key in self._downs:
                slots[key] = replace(slots[key], tasks=())
            taken = {**self._promised, **taken}
        for (member, index), tasks in taken.items():
            old = slots.get((member, index), Slot(member, index))
            slots[member, index] = replace(old, state=SlotState.PLACED, tasks=tasks)
        group = replace(self._group, slots=slots)
        ask = ask_for(group, kind, [slots.get(key, Slot(*key)) for key in ups], keeping(group))
        placed: Places = {}
        refused: Refusal | None = None
        for answer in self._decide(with_group(self._state, group), [ask]):
            if isinstance(answer, Grant):
                placed.update({(member, index): tasks for member, index, tasks in answer.slots})
            else:
                refused = refused or answer
        return placed if refused is None or kind is AskKind.SURPLUS else refused

    def _pool(self) -> Pool:
        """What the downs give back, without what was promised to earlier ups of it."""
        pool = Pool(self._state, self._downs.values())
        for key, tasks in self._promised.items():
            pool.beyond(lacking(tasks, self._group.slots[key].tasks))
        return pool
