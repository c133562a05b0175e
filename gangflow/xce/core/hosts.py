"""Hosts and their agents: they register, die, come back; inventories are held against what the journal knows."""

from __future__ import annotations

from collections.abc import Iterable

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.claim_losses import host_lost
from gangflow.xce.core.counts import BEFORE_START, RUNS
from gangflow.xce.core.events import HostChanged, HostRegistered, StraysSeen, SupersededGone, TaskMoved
from gangflow.xce.core.plan import Cause
from gangflow.xce.core.reach import reachable
from gangflow.xce.core.state import Group, Host, HostState, Slot, SlotState, Task, TaskKey, TaskPhase
from gangflow.xce.core.tasks import find, heard_of, lose, supersede
from gangflow.xce.core.teardown import change, confirm, now_slot, task_gone
from gangflow.xce.core.turn import Turn, task_key

S, P = SlotState, TaskPhase
ANSWERS = frozenset({HostState.UP, HostState.CLOSED})
"""Its agent is registered; whether it takes new work is another matter."""


def up(turn: Turn, report: inp.HostUp) -> None:
    """An agent registered: its tasks that it does not hold any more are gone, what it holds and nobody wants is stopped."""
    name = report.facts.name
    old = turn.host(name)
    if old is None or old.state not in ANSWERS or old.boot != report.boot or old.facts != report.facts:
        turn.emit(HostRegistered(report.facts, report.boot))
        for group_id in turn.groups_on(name):
            turn.touch(group_id)
    held = dict.fromkeys(report.inventory)
    if old is not None:
        restarted = old.boot != report.boot
        for group_id, slot_key, index in turn.tasks_on(name):
            group, slot = now_slot(turn, group_id, slot_key)
            _reconcile(turn, group, slot, slot.tasks[index], held, report.boot, restarted=restarted)
        for key in old.superseded:
            if key not in held:
                turn.emit(SupersededGone(name, key))
    _unwanted(turn, report.facts.node, name, held)


def _reconcile(
    turn: Turn, group: Group, slot: Slot, task: Task, held: dict[TaskKey, None], boot: str, *, restarted: bool
) -> None:
    """One task that the journal believes to be on the host, against what its agent says."""
    key = task_key(group, slot, task.index)
    missing = key not in held
    if slot.state in BEFORE_START:
        if task.phase is P.PREPARED and task.token != boot:
            turn.emit(TaskMoved(key, task.host, P.PLACED))
            group, slot = now_slot(turn, group.id, slot.key)
            if slot.state is S.PREPARED:
                change(turn, group, slot, S.PLACED, until_ms=slot.until_ms)
    elif slot.state in RUNS:
        # Without a restart an agent that does not hold a task still owes the report of its exit, which says more.
        if restarted and (missing or task.phase is P.PREPARED):
            message = f"the agent of {task.host} restarted without it"
            lose(turn, group, slot, task, Cause.AGENT_LOST, message, is_gone=missing)
    elif slot.state is S.LOST:
        if missing:
            task_gone(turn, group.id, slot.key, task.index, task.host)
            confirm(turn, group.id, slot.key)
            group, slot = now_slot(turn, group.id, slot.key)
        left = [other for other in slot.tasks if other.phase is not P.GONE]
        if slot.state is S.LOST and left and all(reachable(turn, other.host) for other in left):
            change(turn, group, slot, S.STOPPING, next=slot.next, until_ms=slot.until_ms)
    elif restarted and missing:
        task_gone(turn, group.id, slot.key, task.index, task.host)
        confirm(turn, group.id, slot.key)


def _unwanted(turn: Turn, node: str, name: str, held: dict[TaskKey, None]) -> None:
    """What the agent holds beyond what is wanted there: superseded incarnations are stopped, unknown ones are shown."""
    strays = []
    for key in held:
        group = turn.group(key.group)
        slot = group.slots.get((key.member, key.index)) if group is not None else None
        if not heard_of(turn, key):
            strays.append(str(key))
        elif slot is None or not 0 <= key.task < len(slot.tasks):
            supersede(turn, key, name)
        else:
            task = slot.tasks[key.task]
            place = turn.host(task.host)
            # Virtual hosts of one machine share an agent, and its inventory may speak of all of them.
            here = task.host == name or (place is not None and place.facts.node == node)
            if not here or task.phase is P.GONE or find(turn, key, task.host) is None:
                supersede(turn, key, name)
    seen = tuple(sorted(strays))
    host = turn.host(name)
    if host is not None and host.strays != seen:
        turn.emit(StraysSeen(name, seen))


def gone(turn: Turn, report: inp.HostGone) -> None:
    """The verdict that a host, or its agent, is dead. Its slots are LOST; its capacity is free when it is FENCED."""
    host = turn.host(report.host)
    if host is None:
        return
    if host.state not in ANSWERS:
        if not report.agent_only:
            # Only its agent was lost so far, and what is bound to the host was still there.
            host_lost(turn, report.host)
        return
    cause = Cause.AGENT_LOST if report.agent_only else Cause.HOST_LOST
    message = f"{'the agent of ' if report.agent_only else ''}{report.host} is lost"
    turn.emit(HostChanged(report.host, HostState.LOST, turn.now_ms + report.fence_ms, message))
    for group_id, slot_key, index in turn.tasks_on(report.host):
        group, slot = now_slot(turn, group_id, slot_key)
        turn.touch(group_id)
        lose(turn, group, slot, slot.tasks[index], cause, message, is_gone=False)
    if not report.agent_only:
        host_lost(turn, report.host)


def fence(turn: Turn, lost: Iterable[str]) -> None:
    """Lost hosts whose bound has passed: nothing there can run any more, so what was there is confirmed gone.

    `lost`: the hosts that were LOST before this step; it adds those that were lost in it.
    """
    for name in sorted({**dict.fromkeys(lost), **turn.old_hosts}) if lost or turn.old_hosts else ():
        host = turn.host(name)
        if host is not None and host.state is HostState.LOST and host.until_ms <= turn.now_ms:
            _fence(turn, host)


def _fence(turn: Turn, host: Host) -> None:
    name = host.facts.name
    turn.emit(HostChanged(name, HostState.FENCED))
    turn.freed = True
    for group_id, slot_key, index in turn.tasks_on(name):
        task_gone(turn, group_id, slot_key, index, name)
        confirm(turn, group_id, slot_key)
