"""What can be derived from a state but would be slow to derive at each step: deadlines, who waits, who is on a host.

It holds nothing of its own: `Index(state)` and an index that followed every step are equal (a property checks it).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from gangflow.xce.core.asks import Ask
from gangflow.xce.core.counts import ACTIVE
from gangflow.xce.core.deadlines import answers_deadline, claim_deadline, group_deadline
from gangflow.xce.core.evolve_group import number
from gangflow.xce.core.state import Group, GroupState, HostState, SlotState, State

HEAP_SPARE = 256
"""Deadlines in the heap that are not true any more, at least, before it is made anew."""


def may_wait(group: Group) -> bool:
    """Whether the group, or a slot of it, may be waiting for a place."""
    if group.state is GroupState.PENDING or group.state is GroupState.RESTARTING:
        return True
    if group.state in ACTIVE:
        for slot in group.slots.values():
            if slot.state is SlotState.PENDING:
                return True
    return False


def in_order(groups: Iterable[str]) -> list[str]:
    """In order of submission, whatever the order in which they were noted."""
    found = list(groups)
    return sorted(found, key=number) if len(found) > 1 else found


class Index:
    """Follows a state; `refresh` after each adopted step with the groups that it touched."""

    __slots__ = (
        "_ends",
        "_grace",
        "_heap",
        "_names",
        "asks",
        "claims",
        "deadlines",
        "ended",
        "hosts",
        "lost",
        "named",
        "on_host",
        "waiting",
    )

    def __init__(self, state: State) -> None:
        self.deadlines: dict[str, int] = {}
        """Group → its next deadline; only groups that have one."""
        self.waiting: dict[str, None] = {}
        """Groups that may be waiting for a place; see `in_order`."""
        self.on_host: dict[str, dict[str, None]] = {}
        """Host → groups with a task there."""
        self.hosts: dict[str, tuple[str, ...]] = {}
        """Group → hosts of its tasks."""
        self.asks: dict[str, tuple[Group, tuple[Ask, ...]]] = {}
        """What a PENDING group asks for, with the group that it was made from; see `asking`."""
        self.lost: dict[str, None] = {}
        """Hosts that are LOST and will be FENCED."""
        self.claims: dict[str, int] = {}
        """Standalone claim → its next deadline; only those that have one."""
        self.named: dict[str, str] = {}
        """Name → the group of that name that lives."""
        self.ended: list[tuple[int, int, str]] = []
        """(when, number, id) of groups that ended, in this order."""
        self._names: dict[str, str] = {}
        self._ends: dict[str, tuple[int, int, str]] = {}
        self._heap: list[tuple[int, str]] = []
        self._grace = state.grace_until_ms
        self.refresh(state, state.groups, state.hosts, state.claims)

    def refresh(self, state: State, groups: Iterable[str], hosts: Iterable[str], claims: Iterable[str] = ()) -> None:
        """Take in what these groups, hosts and claims are now; nothing else may differ from the state before."""
        for name in claims:
            claim = state.claims.get(name)
            until = claim_deadline(claim) if claim is not None else 0
            if until:
                self.claims[name] = until
            else:
                self.claims.pop(name, None)
        for name in hosts:
            if name in state.hosts and state.hosts[name].state is HostState.LOST:
                self.lost[name] = None
            else:
                self.lost.pop(name, None)
        if state.grace_until_ms != self._grace:
            self._grace = state.grace_until_ms
            groups = {**dict.fromkeys(state.groups), **dict.fromkeys(groups)}
        for group_id in list(groups):
            group = state.groups.get(group_id)
            self._place(group_id, group)
            self._life(group_id, group)
            deadline = group_deadline(state, group) if group is not None else 0
            if deadline != self.deadlines.get(group_id, 0):
                if deadline:
                    self.deadlines[group_id] = deadline
                    heappush(self._heap, (deadline, group_id))
                else:
                    self.deadlines.pop(group_id, None)
            if group is not None and may_wait(group):
                self.waiting[group_id] = None
            else:
                self.waiting.pop(group_id, None)
                self.asks.pop(group_id, None)
        self._trim()

    def earliest(self) -> int:
        """The next deadline of any group; 0 means none."""
        return self._heap[0][0] if self._heap else 0

    def due(self, now_ms: int) -> list[str]:
        """Groups with a deadline that has come, in order of submission."""
        if not self._heap or self._heap[0][0] > now_ms:
            return []
        # Down the heap as far as it is due; what is not true any more, or there twice, is no matter.
        found: dict[str, None] = {}
        at = [0]
        while at:
            place = at.pop()
            if place < len(self._heap) and self._heap[place][0] <= now_ms:
                deadline, group_id = self._heap[place]
                if self.deadlines.get(group_id) == deadline:
                    found[group_id] = None
                at += (2 * place + 1, 2 * place + 2)
        return in_order(found)

    def due_claims(self, now_ms: int) -> list[str]:
        """Standalone claims with a deadline that has come, by name."""
        return sorted(name for name, until in self.claims.items() if until <= now_ms) if self.claims else []

    def next_deadline(self, state: State) -> int | None:
        """As `deadlines.next_deadline`, for the state that this follows."""
        times = [state.hosts[name].until_ms for name in self.lost]
        times += [self.earliest(), answers_deadline(state), state.offer_ms, *self.claims.values()]
        return min((time for time in times if time), default=None)

    def groups_on(self, host: str) -> list[str]:
        """Groups that have a task on the host."""
        return in_order(self.on_host.get(host, ()))

    def _place(self, group_id: str, group: Group | None) -> None:
        hosts: dict[str, None] = {}
        if group is not None:
            for slot in group.slots.values():
                for task in slot.tasks:
                    hosts[task.host] = None
        new, old = tuple(hosts), self.hosts.get(group_id, ())
        if new == old:
            return
        for host in old:
            self.on_host[host].pop(group_id, None)
            if not self.on_host[host]:
                del self.on_host[host]
        for host in new:
            self.on_host.setdefault(host, {})[group_id] = None
        if new:
            self.hosts[group_id] = new
        else:
            self.hosts.pop(group_id, None)

    def _life(self, group_id: str, group: Group | None) -> None:
        """Who lives by which name, and who ended when."""
        lives = group is not None and not group.state.terminal
        name = group.plan.name if group is not None and lives else ""
        known = self._names.get(group_id, "")
        if name != known:
            if known and self.named.get(known) == group_id:
                del self.named[known]
            if name:
                self.named[name], self._names[group_id] = group_id, name
            else:
                del self._names[group_id]
        end = (group.ended_ms, number(group_id), group_id) if group is not None and not lives else None
        was = self._ends.get(group_id)
        if end != was:
            if was is not None:
                del self._ends[group_id]
                del self.ended[bisect_left(self.ended, was)]
            if end is not None:
                self._ends[group_id] = end
                insort(self.ended, end)

    def _trim(self) -> None:
        """Drop heads of the heap that are not true any more; and all that is not, when that is most of it."""
        if len(self._heap) > HEAP_SPARE + 2 * len(self.deadlines):
            self._heap = [(deadline, group_id) for group_id, deadline in self.deadlines.items()]
            heapify(self._heap)
        while self._heap and self.deadlines.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
