"""Taking slots down, and what they become once they are confirmed gone. Capacity returns here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping

from gangflow.xce.core.changes import keeps
from gangflow.xce.core.claims import release_of_slot
from gangflow.xce.core.counts import ACTIVE, gone
from gangflow.xce.core.events import SlotChanged, SlotExited, TaskMoved
from gangflow.xce.core.reach import reachable
from gangflow.xce.core.state import Exit, Group, GroupState, Next, Slot, SlotState, TaskPhase
from gangflow.xce.core.turn import SlotId, Turn, task_key
from gangflow.xce.renew import replace

S = SlotState
FREEING = frozenset({Next.PLACE, Next.RETIRE, Next.END})
COMES_BACK = frozenset({Next.BACKOFF, Next.RESTART, Next.PLACE})


def now_slot(turn: Turn, group_id: str, key: SlotId) -> tuple[Group, Slot]:
    """The group and the slot as they are at this moment of the step."""
    group = turn.draft.at(group_id)
    return group, group.slots[key]


def change(
    turn: Turn,
    group: Group,
    slot: Slot,
    state: SlotState,
    *,
    next: Next | None = None,
    until_ms: int = 0,
    message: str = "",
    freed: bool = False,
    exit: Exit | None = None,
    run_until_ms: int = 0,
) -> None:
    """Emit one edge of a slot."""
    turn.emit(
        SlotChanged(
            group.id,
            slot.member,
            slot.index,
            slot.incarnation,
            slot.state,
            state,
            next,
            until_ms,
            message,
            freed and bool(slot.tasks),
            exit,
            run_until_ms,
        )
    )


def unwanted(group: Group, slot: Slot) -> bool:
    """Scaled away, or of a member that a user stopped: whatever happens to it, it does not come back by itself."""
    return slot.out or slot.member in group.stopped


def destined(group: Group, slot: Slot, next: Next) -> Next:
    """What becomes of the slot: `next`, unless it is not wanted any more, or keeps what it has for a change of targets."""
    if next is not Next.END and keeps(group, slot.key):
        return Next.SCALE
    return Next.RETIRE if next in COMES_BACK and unwanted(group, slot) else next


def stop(turn: Turn, group_id: str, key: SlotId, next: Next, *, until_ms: int = 0, exit: Exit | None = None) -> None:
    """Take one slot towards `next`, from whatever state it is in; `until_ms` is the end of a backoff."""
    group, slot = now_slot(turn, group_id, key)
    state = slot.state
    if destined(group, slot, next) is not next:
        next, until_ms = destined(group, slot, next), 0
    if exit is None and key in turn.failures.get(group_id, {}):
        # It failed in this very batch, and something stronger came before the rules: how it ended is kept.
        exit = turn.failures[group_id][key].exit
    if state in (S.STARTING, S.RUNNING, S.READY, S.DRAINING):
        if gone(slot):
            leave(turn, group_id, key, next, until_ms, exit)
            return
        lost = any(t.phase is not TaskPhase.GONE and not reachable(turn, t.host) for t in slot.tasks)
        change(turn, group, slot, S.LOST if lost else S.STOPPING, next=next, until_ms=until_ms, exit=exit)
    elif state in (S.PLACED, S.PREPARED):
        change(turn, group, slot, S.RELEASING, next=next, until_ms=until_ms, exit=exit)
        confirm(turn, group_id, key)
    elif state in (S.STOPPING, S.RELEASING, S.LOST):
        if slot.next is not next or slot.until_ms != until_ms:
            change(turn, group, slot, state, next=next, until_ms=until_ms)
    else:
        _settle(turn, group, slot, next, until_ms)


def move_away(turn: Turn, group_id: str, key: SlotId) -> None:
    """A slot of a started group that did not start yet is placed anew, without a rule; one that failed in this very batch is
    left to the rules, which say what becomes of it."""
    if key not in turn.failures.get(group_id, {}):
        stop(turn, group_id, key, Next.PLACE)


def drain(turn: Turn, group_id: str, key: SlotId, next: Next, *, until_ms: int = 0, exit: Exit | None = None) -> None:
    """Take one slot towards `next` after its member's time to drain, which only what runs can use; else as `stop`."""
    group, slot = now_slot(turn, group_id, key)
    wait = group.plan.member(slot.member).drain_ms
    if wait and slot.state in (S.RUNNING, S.READY) and not gone(slot):
        change(turn, group, slot, S.DRAINING, next=next, until_ms=turn.now_ms + wait, exit=exit)
    elif slot.state is not S.DRAINING:
        stop(turn, group_id, key, next, until_ms=until_ms, exit=exit)


def drained(turn: Turn, group_id: str, key: SlotId) -> None:
    """Its time to drain is over. The pause of a rule ran meanwhile: what restarts it does so as soon as it is gone."""
    slot = now_slot(turn, group_id, key)[1]
    following = slot.next or Next.END
    stop(turn, group_id, key, following, until_ms=turn.now_ms if following is Next.BACKOFF else 0)


def stop_all(turn: Turn, group_id: str, next: Next, exits: Mapping[SlotId, Exit] | None = None) -> None:
    """Take the whole group down towards `next`; those that failed with how. Of its finished and given-up slots, `next` says
    whether they come back: at a restart they do; PLACE of a group that is suspended leaves both as they are, and lets what is
    on its way to be given up go on so.
    """
    suspended = turn.draft.groups[group_id].state in (GroupState.SUSPENDING, GroupState.SUSPENDED)
    for key in list(turn.draft.groups[group_id].slots):
        slot = turn.draft.groups[group_id].slots[key]
        if suspended and slot.state in (S.DONE, S.RETIRED):
            if slot.tasks:
                stop(turn, group_id, key, Next.RETIRE)
        elif suspended and slot.next is Next.RETIRE:
            stop(turn, group_id, key, Next.RETIRE)
        else:
            stop(turn, group_id, key, next, exit=(exits or {}).get(key))


def leave(turn: Turn, group_id: str, key: SlotId, next: Next, until_ms: int, exit: Exit | None) -> None:
    """The incarnation is over and confirmed gone: record how, and go on to `next`."""
    group, slot = now_slot(turn, group_id, key)
    how = exit or slot.exit
    if how is None or how.incarnation != slot.incarnation:
        how = Exit(None, slot.incarnation, turn.now_ms, message="stopped")
    freed = next in FREEING
    turn.emit(
        SlotExited(
            group.id,
            slot.member,
            slot.index,
            slot.incarnation,
            slot.state,
            S.EXIT,
            how,
            next,
            until_ms,
            freed and bool(slot.tasks),
        )
    )
    if next is not Next.END:
        group, slot = now_slot(turn, group_id, key)
        _settle(turn, group, slot, next, until_ms)


def confirm(turn: Turn, group_id: str, key: SlotId, seen: Exit | None = None) -> None:
    """If the slot was being taken down and nothing of it is left, it becomes what it was to become.

    `seen`: how its last process ended, which completes the record of why it was stopped.
    """
    group, slot = now_slot(turn, group_id, key)
    if not gone(slot):
        return
    if slot.state in (S.STOPPING, S.LOST, S.DRAINING):
        how = seen
        if slot.exit is not None and slot.exit.incarnation == slot.incarnation:
            how = slot.exit
            if seen is not None and how.code is None and how.signal is None:
                how = replace(how, code=seen.code, signal=seen.signal, stderr_tail=how.stderr_tail or seen.stderr_tail)
        until = slot.until_ms if slot.state is not S.DRAINING else 0
        leave(turn, group_id, key, destined(group, slot, slot.next or Next.END), until, how)
    elif slot.state is S.RELEASING:
        _settle(turn, group, slot, destined(group, slot, slot.next or Next.PLACE), slot.until_ms)


def _settle(turn: Turn, group: Group, slot: Slot, next: Next, until_ms: int) -> None:
    """From a state in which nothing runs (EXIT, RELEASING, BACKOFF, PENDING, DONE, RETIRED) to what `next` says."""
    state = slot.state
    if next is Next.BACKOFF:
        # What its agent refused is placed anew: the refusal may be the place's.
        change(turn, group, slot, S.BACKOFF, until_ms=until_ms, freed=state is S.RELEASING, message=why(slot))
    elif next is Next.RESTART:
        if state is not S.PENDING or slot.next is not Next.RESTART:
            # What a change of targets holds is a part of a place only.
            change(turn, group, slot, S.PENDING, next=Next.RESTART, freed=slot.next is Next.SCALE)
    elif next is Next.PLACE:
        first_claim = turn.now_ms + group.plan.recovery_timeout_ms if group.state in ACTIVE else 0
        if state is not S.PENDING or slot.tasks or slot.next or slot.until_ms != first_claim:
            change(turn, group, slot, S.PENDING, until_ms=first_claim, freed=True)
    elif next is Next.SCALE and state is not S.RETIRED:
        # Its allocation stays until the change takes it; one that is over takes nothing.
        change(turn, group, slot, S.RETIRED, freed=not keeps(group, slot.key))
        release_of_slot(turn, group, slot)
    elif state is S.RETIRED and slot.tasks and not keeps(group, slot.key):
        change(turn, group, slot, S.RETIRED, freed=True)
    elif state is S.DONE or state is S.RETIRED or (next is Next.END and state is S.EXIT):
        return
    else:
        change(turn, group, slot, S.RETIRED, freed=True)
        release_of_slot(turn, group, slot)


def why(slot: Slot) -> str:
    """In a few words, how the last incarnation ended."""
    if slot.exit is None:
        return "restarts"
    return f"restarts after {describe(slot.exit)}"


def describe(exit: Exit) -> str:
    """`app_exit: exited with code 3`."""
    what = exit.cause.value if exit.cause is not None else "a stop"
    return f"{what}: {how}" if (how := how_ended(exit)) else what


def how_ended(exit: Exit) -> str:
    """`exited with code 3`, or what whoever ended it said; empty where nobody knows."""
    if exit.message:
        return exit.message
    if exit.code is not None:
        return f"exited with code {exit.code}"
    return f"killed by signal {exit.signal}" if exit.signal is not None else ""


def task_gone(turn: Turn, group_id: str, key: SlotId, task: int, host: str) -> None:
    """One task is confirmed gone (verified, unprepared, or its host is fenced)."""
    group, slot = now_slot(turn, group_id, key)
    if slot.tasks[task].phase is not TaskPhase.GONE:
        turn.emit(TaskMoved(task_key(group, slot, task), host, TaskPhase.GONE))
