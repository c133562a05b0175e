"""What agents report about tasks: prepared, refused, started, ready, exited. Stale and doubled reports change nothing."""

from __future__ import annotations

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.counts import ACTIVE, BEFORE_START, RUNS, gone
from gangflow.xce.core.events import SlotExited, SupersededGone, TaskMoved, TaskSuperseded
from gangflow.xce.core.evolve_group import number
from gangflow.xce.core.plan import Cause, MemberKind, MemberPlan
from gangflow.xce.core.state import Exit, Group, GroupState, Slot, SlotState, Task, TaskKey, TaskPhase
from gangflow.xce.core.teardown import change, confirm, drained, move_away, now_slot
from gangflow.xce.core.turn import Turn, task_key

S, P = SlotState, TaskPhase
Found = tuple[Group, Slot, Task]


def find(turn: Turn, key: TaskKey, host: str) -> Found | None:
    """The task of a slot's present incarnation that the key names, if it was placed on that host."""
    group = turn.group(key.group)
    slot = group.slots.get((key.member, key.index)) if group is not None else None
    if group is None or slot is None or slot.incarnation != key.incarnation or slot.epoch != key.epoch:
        return None
    if not 0 <= key.task < len(slot.tasks) or slot.tasks[key.task].host != host:
        return None
    return group, slot, slot.tasks[key.task]


def heard_of(turn: Turn, key: TaskKey) -> bool:
    """Whether the journal ever placed such an incarnation; one that it did not is never stopped by itself."""
    group = turn.group(key.group)
    if group is None:
        return 0 < number(key.group) < turn.draft.next_group
    slot = group.slots.get((key.member, key.index))
    if slot is None or not 0 < key.incarnation <= slot.incarnation or not 0 <= key.task < group.plan.member(key.member).tasks:
        return False
    # Epochs grow with incarnations, and the newest has one only.
    return key.epoch == slot.epoch if key.incarnation == slot.incarnation else 0 < key.epoch <= slot.epoch


def supersede(turn: Turn, key: TaskKey, host_name: str) -> None:
    """It is held on that host and not wanted any more: stopping it there is an obligation from now on."""
    host = turn.host(host_name)
    if host is None or not heard_of(turn, key) or _owed_on_node(turn, host.facts.node, key):
        return
    turn.emit(TaskSuperseded(host_name, key))


def _owed_on_node(turn: Turn, node: str, key: TaskKey) -> bool:
    """Virtual hosts of one machine share an agent: one obligation is enough."""
    return any(key in host.superseded and host.facts.node == node for host in turn.draft.hosts.values())


def prepared(turn: Turn, report: inp.TaskPrepared) -> None:
    """An agent accepted a task; what it should not hold is superseded."""
    found = find(turn, report.task, report.host)
    if found is None or found[2].phase is P.GONE:
        # Its agent took an old order that was late, and holds room for it.
        supersede(turn, report.task, report.host)
        return
    group, slot, task = found
    host = turn.host(report.host)
    if slot.state is not S.PLACED or task.phase is not P.PLACED or host is None or host.boot != report.token:
        return
    turn.emit(TaskMoved(report.task, report.host, P.PREPARED, token=report.token))
    group, slot = now_slot(turn, group.id, slot.key)
    if all(task.phase is P.PREPARED for task in slot.tasks):
        change(turn, group, slot, S.PREPARED, until_ms=slot.until_ms)


def refused(turn: Turn, report: inp.TaskRefused) -> None:
    """An agent cannot prepare a task: the try is void, or the slot of a started group failed."""
    found = find(turn, report.task, report.host)
    if found is None:
        return
    group, slot, task = found
    if task.phase not in (P.PLACED, P.PREPARED):
        return
    turn.emit(TaskMoved(report.task, report.host, P.GONE))
    if slot.state in BEFORE_START or slot.state is S.STARTING:
        _not_started(turn, group, slot, report.host, report.message, permanent=report.permanent)
    else:
        confirm(turn, group.id, slot.key)


def _not_started(turn: Turn, group: Group, slot: Slot, host: str, message: str, *, permanent: bool = False) -> None:
    """A task that was to be started is not held by its agent: the try is void, or the slot of a started group failed."""
    if group.state is GroupState.PREPARING:
        text = f"{slot.member}[{slot.index}] on {host}: {message}"
        turn.set_back(group, Cause.START_FAILED, text, permanent=permanent)
    else:
        turn.fail(group, slot, Exit(Cause.START_FAILED, slot.incarnation, turn.now_ms, message=message), host)


def unprepared(turn: Turn, report: inp.TaskUnprepared) -> None:
    """A preparation was undone."""
    drop_superseded(turn, report.task, report.host)
    found = find(turn, report.task, report.host)
    if found is None or found[1].state is not S.RELEASING or found[2].phase is P.GONE:
        return
    turn.emit(TaskMoved(report.task, report.host, P.GONE))
    confirm(turn, found[0].id, found[1].key)


def started(turn: Turn, report: inp.TaskStarted) -> None:
    """A task's process runs."""
    found = find(turn, report.task, report.host)
    if found is None:
        supersede(turn, report.task, report.host)
        return
    group, slot, task = found
    if slot.state not in RUNS:
        return
    if task.phase in (P.RUNNING, P.READY) and task.pid == 0 and report.pid:
        turn.emit(TaskMoved(report.task, report.host, task.phase, pid=report.pid, message=task.message))
    elif task.phase is P.PREPARED and slot.state is S.STARTING:
        turn.emit(TaskMoved(report.task, report.host, P.RUNNING, pid=report.pid))
        _advance(turn, group.id, slot)


def ready(turn: Turn, report: inp.TaskReady) -> None:
    """A ready probe succeeded."""
    found = find(turn, report.task, report.host)
    if found is None or found[1].state not in RUNS or _stale(found[2], report):
        return
    group, slot, task = found
    if task.phase is P.PREPARED:
        # The report of its start is late or lost; what answers its probe runs.
        turn.emit(TaskMoved(report.task, report.host, P.RUNNING))
    elif task.phase is not P.RUNNING:
        return
    turn.emit(TaskMoved(report.task, report.host, P.READY, edge=report.edge))
    _advance(turn, group.id, slot)


def unready(turn: Turn, report: inp.TaskUnready) -> None:
    """A ready probe fails."""
    found = find(turn, report.task, report.host)
    if found is None or found[1].state not in RUNS or _stale(found[2], report):
        return
    group, slot, task = found
    if task.phase is P.GONE or (task.phase is P.RUNNING and task.message == report.message):
        return
    turn.emit(TaskMoved(report.task, report.host, P.RUNNING, message=report.message, edge=report.edge))
    group, slot = now_slot(turn, group.id, slot.key)
    if slot.state is S.READY and probed(group, slot):
        # It may come back by itself; for how long it is waited for is bounded as at its start.
        change(turn, group, slot, S.RUNNING, until_ms=turn.now_ms + group.plan.member(slot.member).ready_timeout_ms)
    else:
        _advance(turn, group.id, slot)


def _stale(task: Task, report: inp.TaskReady | inp.TaskUnready) -> bool:
    """An edge that came late or twice: what it says was overtaken by what is known."""
    return 0 < report.edge <= task.edge


def _advance(turn: Turn, group_id: str, slot: Slot) -> None:
    """STARTING → RUNNING → READY as far as its tasks are; one that already ended with 0 does not hold the others back."""
    group, slot = now_slot(turn, group_id, slot.key)
    if slot.state is S.STARTING and all(task.phase is not P.PREPARED for task in slot.tasks):
        change(turn, group, slot, S.RUNNING, until_ms=slot.until_ms)
        group, slot = now_slot(turn, group_id, slot.key)
    if slot.state is S.RUNNING and (not probed(group, slot) or all(task.phase in (P.READY, P.GONE) for task in slot.tasks)):
        change(turn, group, slot, S.READY)


def probed(group: Group, slot: Slot) -> bool:
    """Whether the slot's member has a ready probe."""
    return group.plan.member(slot.member).ready is not None


def exited(turn: Turn, report: inp.TaskExited) -> None:
    """A task ended, and its whole tree is gone."""
    drop_superseded(turn, report.task, report.host)
    found = find(turn, report.task, report.host)
    if found is None or found[2].phase is P.GONE:
        return
    group, slot, _ = found
    turn.emit(TaskMoved(report.task, report.host, P.GONE))
    group, slot = now_slot(turn, group.id, slot.key)
    if slot.state in BEFORE_START:
        _not_started(turn, group, slot, report.host, report.message or "its agent gave up what was prepared")
        return
    member = group.plan.member(slot.member)
    cause = failed(member, report)
    if slot.state is S.DRAINING and not gone(slot):
        if cause is not None:
            drained(turn, group.id, slot.key)
        return
    if slot.state not in RUNS and (slot.state is not S.DRAINING or cause is not None):
        confirm(turn, group.id, slot.key, _exit(turn, slot, report, None))
        return
    if cause is not None:
        turn.fail(group, slot, _exit(turn, slot, report, cause), report.host)
    elif gone(slot) and slot.key not in turn.failures.get(group.id, {}):
        done = _exit(turn, slot, report, None)
        turn.emit(
            SlotExited(group.id, slot.member, slot.index, slot.incarnation, slot.state, S.DONE, done, freed=bool(slot.tasks))
        )
    elif slot.key not in turn.failures.get(group.id, {}):
        _advance(turn, group.id, slot)


def failed(member: MemberPlan, report: inp.TaskExited) -> Cause | None:
    """The cause of an exit that nobody asked for; None: a job's task is done. A service does not finish by itself."""
    if report.cause is not None:
        return report.cause
    if report.signal:
        return Cause.SIGNAL
    if report.code is None:
        # Nobody saw how it ended, so it did not finish: its agent does not hold what it was to run.
        return Cause.AGENT_LOST
    if report.code or member.kind is MemberKind.REPLICA_SET:
        return Cause.APP_EXIT
    return None


def _exit(turn: Turn, slot: Slot, report: inp.TaskExited, cause: Cause | None) -> Exit:
    return Exit(cause, slot.incarnation, turn.now_ms, report.code, report.signal, report.message, report.stderr_tail)


def drop_superseded(turn: Turn, key: TaskKey, host_name: str) -> None:
    """An obligation is met: nothing of that incarnation is left there."""
    host = turn.host(host_name)
    if host is None:
        return
    if key in host.superseded:
        turn.emit(SupersededGone(host_name, key))
        return
    # Virtual hosts of one machine share an agent, and it may answer for any of them.
    for other in turn.draft.hosts.values() if not _current(turn, key) else ():
        if other.facts.node == host.facts.node and key in other.superseded:
            turn.emit(SupersededGone(other.facts.name, key))
            return


def _current(turn: Turn, key: TaskKey) -> bool:
    group = turn.group(key.group)
    slot = group.slots.get((key.member, key.index)) if group is not None else None
    return slot is not None and slot.incarnation == key.incarnation and slot.epoch == key.epoch


def lose(turn: Turn, group: Group, slot: Slot, task: Task, cause: Cause, message: str, *, is_gone: bool) -> None:
    """A task's host or agent is lost. `is_gone`: it is known that nothing of it runs any more."""
    if is_gone:
        turn.emit(TaskMoved(task_key(group, slot, task.index), task.host, P.GONE))
        group, slot = now_slot(turn, group.id, slot.key)
    if slot.state in RUNS:
        turn.fail(group, slot, Exit(cause, slot.incarnation, turn.now_ms, message=message), task.host)
    elif slot.state in BEFORE_START:
        if group.state is GroupState.PREPARING:
            turn.set_back(group, cause, message)
        elif group.state in ACTIVE:
            # It never started, so no rule is asked and no budget is spent: it is placed again.
            move_away(turn, group.id, slot.key)
    elif slot.state is S.DRAINING and not is_gone:
        change(turn, group, slot, S.LOST, next=slot.next)
    elif is_gone:
        confirm(turn, group.id, slot.key)
