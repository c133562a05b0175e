"""How events change a slot and its tasks."""

from __future__ import annotations

from gangflow.xce.core import events as ev
from gangflow.xce.core.draft import Draft
from gangflow.xce.core.lifecycle import SLOT, TASK, InvalidTransition, check_edge
from gangflow.xce.core.state import Next, PendCode, Reason, SlotState, TaskPhase
from gangflow.xce.renew import replace


def name(group: str, member: str, index: int) -> str:
    """How people read a slot: `g1/rollout[2]`."""
    return f"{group}/{member}[{index}]"


def placed(draft: Draft, event: ev.SlotPlaced) -> None:
    """A new incarnation on new or the same places."""
    group, slots = draft.open(event.group)
    old = slots[event.member, event.index]
    check_edge("slot", name(event.group, event.member, event.index), old.state, SlotState.PLACED)
    restarted = old.exit is not None and old.exit.incarnation == old.incarnation
    slots[event.member, event.index] = replace(
        old,
        state=SlotState.PLACED,
        incarnation=event.incarnation,
        epoch=event.epoch,
        tasks=event.tasks,
        since_ms=draft.now_ms,
        until_ms=event.until_ms,
        next=None,
        restarts=old.restarts + 1 if restarted else old.restarts,
        reason=None,
        ready_ms=0,
        run_until_ms=0,
        warned=False,
        to_warn=(),
    )
    if (event.member, event.index) in group.tolerated:
        # It runs again: its earlier exit is not what the group's result is made of.
        kept = tuple(key for key in group.tolerated if key != (event.member, event.index))
        draft.put_group(replace(group, tolerated=kept))


def changed(draft: Draft, event: ev.SlotChanged) -> None:
    """Any edge without an exit."""
    _, slots = draft.open(event.group)
    key = (event.member, event.index)
    old = slots[key]
    if old.state is not event.before or event.state not in SLOT[old.state]:
        raise InvalidTransition("slot", name(event.group, *key), old.state, event.state)
    reason = None
    if event.state is SlotState.BACKOFF:
        reason = Reason(PendCode.BACKOFF, event.message or "restarts after its backoff")
    elif event.state is SlotState.PENDING and event.before is SlotState.PENDING:
        reason = old.reason
    slots[key] = replace(
        old,
        state=event.state,
        tasks=() if event.freed else old.tasks,
        since_ms=old.since_ms if event.state is event.before else draft.now_ms,
        until_ms=event.until_ms,
        next=event.next,
        exit=event.exit or old.exit,
        reason=reason,
        run_until_ms=event.run_until_ms or old.run_until_ms,
        ready_ms=old.ready_ms or (draft.now_ms if event.state is SlotState.READY else 0),
    )


def held(draft: Draft, event: ev.SlotHeld) -> None:
    """A PENDING slot of a change holds units."""
    _, slots = draft.open(event.group)
    key = (event.member, event.index)
    old = slots[key]
    check_edge("slot", name(event.group, event.member, event.index), old.state, SlotState.PENDING)
    slots[key] = replace(old, tasks=event.tasks, next=Next.SCALE, until_ms=0)


def warned(draft: Draft, event: ev.SlotWarned) -> None:
    """The warning is due, or was delivered."""
    _, slots = draft.open(event.group)
    key = (event.member, event.index)
    slots[key] = replace(slots[key], warned=not event.left, to_warn=event.left)


def exited(draft: Draft, event: ev.SlotExited) -> None:
    """The incarnation is over, with how it ended."""
    group, slots = draft.open(event.group)
    key = (event.member, event.index)
    if event.state is SlotState.DONE and key in group.tolerated:
        # It finished while it drained, and was given up: what finished was not lost.
        draft.put_group(replace(group, tolerated=tuple(other for other in group.tolerated if other != key)))
    old = slots[key]
    check_edge("slot", name(event.group, event.member, event.index), old.state, event.state)
    slots[key] = replace(
        old,
        state=event.state,
        tasks=() if event.freed else old.tasks,
        since_ms=draft.now_ms,
        until_ms=event.until_ms,
        next=event.next,
        exit=event.exit,
        reason=None,
    )


def task_moved(draft: Draft, event: ev.TaskMoved) -> None:
    """One task is further, or gone."""
    key = event.task
    _, slots = draft.open(key.group)
    slot = slots[key.member, key.index]
    old = slot.tasks[key.task]
    if event.phase not in TASK[old.phase]:
        raise InvalidTransition("task", str(key), old.phase, event.phase)
    started = old.started_ms
    if event.phase is TaskPhase.RUNNING and old.phase is TaskPhase.PREPARED:
        started = draft.now_ms
    token = {TaskPhase.PREPARED: event.token, TaskPhase.PLACED: ""}.get(event.phase, old.token)
    message = event.message if event.phase is TaskPhase.RUNNING else ""
    task = replace(
        old,
        phase=event.phase,
        token=token,
        pid=event.pid or old.pid,
        started_ms=started,
        message=message or "",
        edge=event.edge or old.edge,
    )
    slots[key.member, key.index] = replace(slot, tasks=(*slot.tasks[: key.task], task, *slot.tasks[key.task + 1 :]))
