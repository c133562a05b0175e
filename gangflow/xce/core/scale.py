"""Other targets for replica sets: one durable change, accepted only if it is proved to fit (design 3.7).

A command decides and holds; nothing is stopped or started before the batch is settled (`scale_steps`). So several changes of
one group in one batch coalesce: each is decided against the group as it was before the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.asks import Refusal
from gangflow.xce.core.changes import ended, open_change
from gangflow.xce.core.commands import addressed
from gangflow.xce.core.counts import ACTIVE, slots_of
from gangflow.xce.core.events import ChangeMoved, SlotHeld, TargetsSet
from gangflow.xce.core.inputs import Reply
from gangflow.xce.core.scale_fit import Fit, Places, Proof
from gangflow.xce.core.scale_rules import Targets, refusal
from gangflow.xce.core.state import Change, ChangeState, Group, GroupState, Next, Reason, Slot, SlotState
from gangflow.xce.core.suspend import suspend
from gangflow.xce.core.teardown import change as move_slot
from gangflow.xce.core.turn import SlotId, Turn
from gangflow.xce.renew import replace

G, S, D = GroupState, SlotState, ChangeState
SETS_ONLY = frozenset({G.PENDING, G.SUSPENDED, G.PREPARING})
"""Nothing of it runs: only the targets change, and the next placement goes by them."""


def scale(turn: Turn, command: inp.ScaleGroup) -> Reply:
    """Set other targets. 422: not allowed by the plan; 409: not now, or it does not fit; 202 with the change's id."""
    group = addressed(turn, command)
    if isinstance(group, Reply):
        return group
    asked = dict(command.targets)
    targets = {**dict(group.targets), **{name: count for name, count in asked.items() if name in dict(group.targets)}}
    if _nothing_left(group, asked, targets):
        reply = suspend(turn, inp.SuspendGroup(group.id, "every target is 0", command.request))
        return replace(reply, status=202, fields=(*reply.fields, ("change", ""))) if reply.ok else reply
    refused = refusal(group, asked, targets)
    if refused is not None:
        return refused
    if group.state not in SETS_ONLY and group.state not in ACTIVE:
        text = f"{group.id} is {group.state.value}: its targets cannot be changed now"
        return Reply(409, "conflict", text, (("id", group.id), ("state", group.state.value)))
    for name in asked:
        if name in group.stopped:
            text = f"{name} of {group.id} was stopped: restart one of its slots first"
            return Reply(409, "conflict", text, (("id", group.id), ("member", name)))
    if targets == dict(group.targets):
        return Reply(202, fields=(("id", group.id), ("change", "")))
    return _decide(turn, group, targets, command.timeout_ms or group.plan.scale.timeout_ms)


def _nothing_left(group: Group, asked: Targets, targets: Targets) -> bool:
    """Zero of everything: a group without jobs is suspended, and keeps the targets that it had."""
    known = all(name in targets for name in asked)
    return bool(asked) and known and not any(targets.values())


@dataclass(frozen=True, slots=True)
class Choice:
    """Which slots come and which go, against a group as it is."""

    added: tuple[SlotId, ...]
    removed: tuple[SlotId, ...]


def choose(group: Group, targets: Targets) -> Choice:
    """Which slots come, and which go.

    Downs: what was given up first, then without a place, then not ready, then the highest index. Ups: the lowest index with no
    live incarnation.
    """
    added: list[SlotId] = []
    removed: list[SlotId] = []
    for member in group.plan.members:
        slots = slots_of(group, member)
        wanted = targets[member.name]
        going = sorted(slots, key=lambda slot: (_standing(slot), -slot.index))[: max(0, len(slots) - wanted)]
        removed.extend(sorted(slot.key for slot in going))
        index = 0
        for _ in range(wanted - len(slots)):
            while not _free(group.slots.get((member.name, index))):
                index += 1
            added.append((member.name, index))
            index += 1
    return Choice(tuple(added), tuple(removed))


def _standing(slot: Slot) -> int:
    """How much would be lost with it: what was given up, what waits for a place, what comes up, what serves."""
    if slot.state is S.RETIRED or slot.next is Next.RETIRE:
        return 0
    if slot.state is S.READY:
        return 3
    return 2 if slot.tasks and slot.state is not S.PENDING else 1


def _free(slot: Slot | None) -> bool:
    """Whether an index may be given to a new slot: nothing of an older one is left there."""
    return slot is None or (slot.out and slot.state is S.RETIRED and not slot.tasks)


def before_batch(turn: Turn, group: Group) -> Group:
    """The group without the changes that this very batch decided: nothing of them has been acted on."""
    newest = open_change(group)
    first = turn.scaled.get(group.id)
    if first is None or newest is None or newest.state is not D.ACCEPTED:
        return group
    slots: dict[SlotId, Slot] = {}
    for key, slot in group.slots.items():
        was = first.slots.get(key)
        if was is None:
            continue
        if was.out:
            slots[key] = slot if slot.out else was
        elif slot.state is S.PENDING and was.state is S.PENDING:
            slots[key] = was
        else:
            slots[key] = replace(slot, out=False)
    return replace(group, slots=slots, targets=first.targets, extents=first.extents, changes=first.changes)


def _decide(turn: Turn, group: Group, targets: Targets, timeout_ms: int) -> Reply:
    base = before_batch(turn, group)
    choice = choose(base, targets)
    older = open_change(base)
    promised: Places = {}
    waiting: list[SlotId] = []
    again: list[SlotId] = []
    if older is not None:
        waiting = [key for key in older.ups if key not in choice.removed and base.slots[key].state is S.PENDING]
        for member, index, tasks in older.grants:
            key = (member, index)
            if key in waiting and group.slots[key].tasks == base.slots[key].tasks:
                promised[key] = tasks
            elif key in waiting:
                # A change of this batch gave up what it held, and somebody else may hold it now.
                again.append(key)
    downs = [key for key, slot in base.slots.items() if slot.tasks and _goes(slot, key in choice.removed)]
    fit = Fit({}, {})
    if group.state in ACTIVE:
        found = Proof(turn, _changed(base, choice, again), downs, promised).fit((*again, *choice.added))
        if isinstance(found, Refusal):
            return _no_fit(group, choice, found.reason, bool(downs))
        fit = found
    identity = f"c{group.next_change}"
    new = Change(
        id=identity,
        state=D.ACCEPTED,
        targets=tuple(targets.items()),
        before=group.targets,
        ups=(*waiting, *choice.added),
        downs=tuple(downs) if group.state in ACTIVE else (),
        grants=tuple((member, index, tasks) for (member, index), tasks in {**promised, **fit.grants}.items()),
        accepted_ms=turn.now_ms,
        until_ms=turn.now_ms + timeout_ms,
    )
    if base is group:
        turn.scaled[group.id] = replace(group, slots=dict(group.slots))
    holds = {key: base.slots[key].tasks for key in promised} | fit.holds
    _record(turn, group, base, choice, new, holds)
    return Reply(202, fields=(("id", group.id), ("change", identity)))


def _goes(slot: Slot, removed: bool) -> bool:
    """Whether the slot gives back what it has: it is taken out now, or was before and is still on its way down."""
    return (removed and slot.next is not Next.SCALE) or (slot.out and slot.state is not S.PENDING)


def _changed(base: Group, choice: Choice, again: Sequence[SlotId]) -> Group:
    """The group with the slots that go marked, and what was held by an older change for those that lose it given back."""
    slots = dict(base.slots)
    for key in (*choice.removed, *again):
        held = slots[key].next is Next.SCALE and slots[key].state is S.PENDING
        slots[key] = replace(slots[key], out=key in choice.removed, tasks=() if held else slots[key].tasks)
    return replace(base, slots=slots)


def _no_fit(group: Group, choice: Choice, reason: Reason, gives_back: bool) -> Reply:
    gives = "; what its own downs give back is counted" if gives_back else ""
    names = ", ".join(f"{member}[{index}]" for member, index in choice.added)
    text = f"no place for {names} of {group.id}: {reason.text}{gives}"
    return Reply(409, "no_fit", text, (("id", group.id), *_shortfall(reason)))


def _shortfall(reason: Reason) -> tuple[tuple[str, str | int], ...]:
    missing = tuple((f"shortfall.{name}", amount) for name, amount in reason.shortfall)
    told = (("reason", reason.code.value), ("domain", reason.domain), ("blocker", reason.blocker))
    return (*(one for one in told if one[1]), *missing)


def _record(turn: Turn, group: Group, base: Group, choice: Choice, new: Change, holds: Places) -> None:
    """From the group as it is now, changes of this batch included, to what this one makes of it; what is given back first."""
    older = open_change(group)
    if older is not None:
        turn.emit(ChangeMoved(group.id, ended(older, D.FAILED, turn.now_ms, f"superseded by {new.id}")))
    stays = dict.fromkeys(key for key, slot in base.slots.items() if not slot.out and key not in choice.removed)
    stays |= dict.fromkeys(choice.added)
    added = tuple(key for key in stays if key not in group.slots or group.slots[key].out)
    removed = tuple(key for key, slot in group.slots.items() if not slot.out and key not in stays)
    turn.emit(ChangeMoved(group.id, new))
    turn.emit(TargetsSet(group.id, new.targets, added, removed))
    for key in list(turn.draft.groups[group.id].slots):
        now = turn.draft.groups[group.id]
        slot = now.slots[key]
        if slot.state is S.RETIRED and key in added:
            move_slot(turn, now, slot, S.PENDING)
        elif slot.state is S.PENDING and slot.next is Next.SCALE and slot.tasks != holds.get(key, ()):
            move_slot(turn, now, slot, S.PENDING, freed=True)
    for key, tasks in holds.items():
        if tasks and turn.draft.groups[group.id].slots[key].tasks != tasks:
            turn.emit(SlotHeld(group.id, *key, tasks))
