"""A change of targets on its way: what goes is drained and stopped, what comes is placed, in one transaction (design 3.7)."""

from __future__ import annotations

from collections.abc import Sequence

from gangflow.durations import lasting
from gangflow.xce.core.budget import gpus_in, within_budget
from gangflow.xce.core.changes import ended, open_change
from gangflow.xce.core.counts import ACTIVE, slots_of, wanted
from gangflow.xce.core.events import ChangeMoved, ReasonNoted, TargetsSet
from gangflow.xce.core.reach import usable
from gangflow.xce.core.scale_fit import held, lacking
from gangflow.xce.core.scale_rules import GPUS, gpus_text
from gangflow.xce.core.start import few, place
from gangflow.xce.core.state import Change, ChangeState, Group, GroupState, Next, PendCode, Reason, Slot, SlotState, Task
from gangflow.xce.core.teardown import change as move_slot
from gangflow.xce.core.teardown import drain, now_slot, stop
from gangflow.xce.core.turn import SlotId, Turn
from gangflow.xce.renew import replace

G, S, D = GroupState, SlotState, ChangeState
Grants = tuple[tuple[str, int, tuple[Task, ...]], ...]


def follow(turn: Turn, group_id: str) -> None:
    """Take the group's change, if it has one that is not over, as far as it can go now."""
    group = turn.draft.groups[group_id]
    change = open_change(group)
    if change is None:
        return
    if group.state in ACTIVE:
        if change.state is D.ACCEPTED:
            _take_down(turn, group_id)
        if turn.passed(change.until_ms):
            _give_up(turn, group, change)
        else:
            _advance(turn, group_id, change)
    elif group.state is G.STOPPING or group.state.terminal:
        _close(turn, group, change, D.FAILED, f"the group is {group.state.value}")
    else:
        # The next placement of the whole group goes by the targets; there is nothing else to be done.
        _close(turn, group, change, D.DONE, f"the targets are set; the group is {group.state.value}")


def _move(turn: Turn, group_id: str, change: Change, new: Change) -> None:
    if new != change:
        turn.emit(ChangeMoved(group_id, new))


def _take_down(turn: Turn, group_id: str) -> None:
    """What is out of the targets goes: what serves is drained first. What is on its way down already goes on."""
    for key in [key for key, slot in turn.draft.groups[group_id].slots.items() if slot.out]:
        if now_slot(turn, group_id, key)[1].state is not S.RETIRED:
            drain(turn, group_id, key, Next.SCALE)


def _advance(turn: Turn, group_id: str, change: Change) -> None:
    group = turn.draft.groups[group_id]
    over = all(group.slots[key].state is S.RETIRED for key in change.downs)
    if over:
        # In one batch: what the downs had is given back, and the places that are made of it are taken.
        _give_back(turn, group_id, change.downs)
    left: list[tuple[str, int, tuple[Task, ...]]] = []
    for member, index, tasks in change.grants:
        group, slot = now_slot(turn, group_id, (member, index))
        if slot.state is not S.PENDING or slot.out:
            continue
        if not all(usable(turn, group, task.host) for task in tasks):
            _lose_place(turn, group, slot)
        elif over or (slot.tasks == held(tasks) and within_budget(group, gpus_in(tasks))):
            place(turn, group_id, slot.key, tasks)
        else:
            left.append((member, index, tasks))
    group = turn.draft.groups[group_id]
    ups = tuple(key for key in change.ups if group.slots[key].state is S.PENDING and not group.slots[key].out)
    state = D.DRAINING if change.downs and not over else D.PLACING if ups else D.DONE
    new = replace(
        change,
        state=state,
        ups=ups,
        downs=() if over else change.downs,
        grants=tuple(left),
        ended_ms=turn.now_ms if state is D.DONE else 0,
    )
    _move(turn, group_id, change, new)
    for member, index, tasks in left:
        _explain(turn, group_id, (member, index), new, tasks)


def _give_back(turn: Turn, group_id: str, downs: Sequence[SlotId]) -> None:
    """What slots that are gone still had for the change."""
    for key in downs:
        group, slot = now_slot(turn, group_id, key)
        if slot.state is S.RETIRED and slot.tasks:
            move_slot(turn, group, slot, S.RETIRED, freed=True)


def _lose_place(turn: Turn, group: Group, slot: Slot) -> None:
    """A host of its place is lost, closed or excluded: it waits for any other, and holds nothing meanwhile."""
    move_slot(turn, group, slot, S.PENDING, freed=True)
    turn.emit(ReasonNoted(group.id, None, slot.member, slot.index))


def _explain(turn: Turn, group_id: str, key: SlotId, change: Change, place: tuple[Task, ...]) -> None:
    """A slot that comes has a reason of its own: what of its place is not free yet, and what has to go first."""
    group, slot = now_slot(turn, group_id, key)
    going = ", ".join(f"{member}[{index}]" for member, index in change.downs)
    missing = lacking(place, slot.tasks)
    hosts = ", ".join(dict.fromkeys(task.host for task in place))
    if missing:
        short: dict[str, int] = {}
        for task in missing:
            for name, amount in (*task.counters, (GPUS, gpus_in([task])), ("ports", len(task.ports))):
                if amount:
                    short[name] = short.get(name, 0) + amount
        text = f"change {change.id} gives it a place on {hosts} as soon as {going} is gone"
        reason = Reason(PendCode.WAITING_CAPACITY, text, tuple(sorted(short.items())), hosts, group_id)
    else:
        text = f"change {change.id} holds its place on {hosts}; the group's {gpus_text(group.plan.scale.max_gpus)} GPUs"
        reason = Reason(PendCode.WAITING_TURN, f"{text} are in use until {going} is gone")
    if slot.reason != reason:
        turn.emit(ReasonNoted(group_id, reason, *key))


def _give_up(turn: Turn, group: Group, change: Change) -> None:
    """Its time is over: what stands is the target. A minimum is never broken by it: so many go on waiting."""
    removed: list[SlotId] = []
    targets: list[tuple[str, int]] = []
    for member in group.plan.members:
        slots = slots_of(group, member)
        waiting = [slot.key for slot in slots if slot.key in change.ups and slot.state is S.PENDING]
        # What a rule gave up makes no minimum.
        spare = max(0, wanted(group, member) - member.min_replicas)
        out = waiting[max(0, len(waiting) - spare) :]
        removed.extend(out)
        targets.append((member.name, len(slots) - len(out)))
    text = f"not done after {lasting(change.until_ms - change.accepted_ms)}: {_what_is_left(group, change)}"
    turn.emit(ChangeMoved(group.id, ended(change, D.FAILED, turn.now_ms, text)))
    if removed:
        turn.emit(TargetsSet(group.id, tuple(targets), removed=tuple(removed)))
    _let_go(turn, group.id)
    for key in removed:
        stop(turn, group.id, key, Next.RETIRE)


def _what_is_left(group: Group, change: Change) -> str:
    told: list[str] = []
    for member, index in change.ups:
        slot = group.slots[member, index]
        if slot.state is S.PENDING:
            told.append(f"{member}[{index}] waits" + (f" ({slot.reason.text})" if slot.reason is not None else ""))
    for member, index in change.downs:
        slot = group.slots[member, index]
        if slot.state is not S.RETIRED:
            told.append(f"{member}[{index}] is {slot.state.value}")
    return few(told)


def _let_go(turn: Turn, group_id: str) -> None:
    """Nothing is held for a change any more: by slots that were to come, or by slots that are gone."""
    for key in list(turn.draft.groups[group_id].slots):
        group, slot = now_slot(turn, group_id, key)
        if slot.state is S.PENDING and slot.next is Next.SCALE:
            move_slot(turn, group, slot, S.PENDING, freed=True)
            if slot.reason is not None:
                turn.emit(ReasonNoted(group_id, None, *key))
        elif slot.state is S.RETIRED and slot.tasks:
            move_slot(turn, group, slot, S.RETIRED, freed=True)


def _close(turn: Turn, group: Group, change: Change, state: ChangeState, message: str) -> None:
    """The group waits, or ends, as a whole: the change is over, and its targets stand."""
    turn.emit(ChangeMoved(group.id, ended(change, state, turn.now_ms, message)))
    _let_go(turn, group.id)
    if state is D.DONE:
        for key, slot in list(turn.draft.groups[group.id].slots.items()):
            if slot.out and slot.state is not S.RETIRED:
                stop(turn, group.id, key, Next.RETIRE)
