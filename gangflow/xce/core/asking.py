"""What waits for a place, as asks to the scheduler; and what becomes of its answers."""

from __future__ import annotations

from collections.abc import Sequence

from gangflow.xce.core.asks import Ask, AskKind, Grant, Refusal, Schedule, SlotAsk
from gangflow.xce.core.budget import going, withheld
from gangflow.xce.core.changes import granted, open_change
from gangflow.xce.core.claim_ids import uses
from gangflow.xce.core.counts import ACTIVE, at_rest, required, to_place, wanted
from gangflow.xce.core.events import ReasonNoted
from gangflow.xce.core.evolve_group import number
from gangflow.xce.core.index import in_order
from gangflow.xce.core.layers import changeable, frozen
from gangflow.xce.core.limits import REASONS_MAX
from gangflow.xce.core.reach import on_usable_hosts
from gangflow.xce.core.recovery import all_gone, to_replace
from gangflow.xce.core.scale_rules import gpus_text
from gangflow.xce.core.start import grant_group, place, replace_group
from gangflow.xce.core.state import Group, GroupState, Next, PendCode, Reason, Slot, SlotState, State
from gangflow.xce.core.turn import SlotId, Turn
from gangflow.xce.renew import replace

G, S = GroupState, SlotState
NOT_LOOKED_AT = Reason(PendCode.WAITING_TURN, "not looked at yet")


OPEN = frozenset({PendCode.BACKOFF, PendCode.WAITING_TURN, PendCode.WAITING_CLAIMS})
"""Reasons that no session gave after it had tried hosts."""


def unanswered(group: Group | None) -> bool:
    """Whether the group may ask for something that no session has tried yet."""
    if group is None or group.state.terminal:
        return False
    if group.state is G.PENDING or group.state is G.RESTARTING:
        return group.reason is None or group.reason.code in OPEN
    if group.state in ACTIVE:
        for slot in group.slots.values():
            if slot.state is S.PENDING and (slot.reason is None or slot.reason.code in OPEN):
                return True
    return False


def unasked(group: Group | None) -> bool:
    """Whether a slot of a running group waits that no session has heard of: its group came to run by the last session."""
    return (
        group is not None
        and group.state in ACTIVE
        and any(slot.state is S.PENDING and slot.reason is None for slot in group.slots.values())
    )


def asks_of(turn: Turn, group: Group) -> list[Ask]:
    """What the group asks for now; empty if nothing of it waits for a place."""
    if group.state is G.PENDING:
        if group.until_ms or not at_rest(group):
            return []
        required = [slot for member in group.plan.members for slot in to_place(group, member)]
        return [ask_for(group, AskKind.MINIMUM, required)]
    if group.state is G.RESTARTING:
        return _restarting(turn, group)
    if group.state in ACTIVE:
        return _running(turn, group)
    return []


def _restarting(turn: Turn, group: Group) -> list[Ask]:
    if group.until_ms or not all_gone(group):
        return []
    lacking = to_replace(turn, group)
    if not lacking or not any(slot.next is Next.RESTART for slot in group.slots.values()):
        return []
    keeps = [
        slot for key, slot in group.slots.items() if key not in lacking and slot.tasks and on_usable_hosts(turn, group, slot)
    ]
    return [ask_for(group, AskKind.RECOVERY, [group.slots[key] for key in lacking], keeps, together=True)]


def keeping(group: Group) -> list[Slot]:
    """Slots that have their places and go on having them."""
    return [slot for slot in group.slots.values() if slot.state is not S.PENDING and slot.tasks and not slot.out]


def _running(turn: Turn, group: Group) -> list[Ask]:
    everybody = _waiting(group)
    later = withheld(group, everybody)
    waiting = [slot for slot in everybody if slot.key not in later] if later else everybody
    if not waiting:
        return []
    keeps = keeping(group)
    change = open_change(group)
    ups = change.ups if change is not None else ()
    lost = [slot for slot in waiting if _claims(slot) and not slot.tasks]
    claimed = [slot for slot in waiting if slot.tasks]
    unheld = [slot for slot in waiting if not _claims(slot)]
    # Its first claim is over: as far as the minimum lacks it, it queues at the group's own place, by itself.
    queued = _short_of_minimum(group, [slot for slot in unheld if slot.incarnation and slot.key not in ups], everybody)
    surplus = [slot for slot in unheld if slot not in queued]
    asks = [ask_for(group, AskKind.RECOVERY, lost, keeps)] if lost else []
    asks.extend(ask_for(group, AskKind.RECOVERY, [slot], keeps) for slot in claimed)
    asks.extend(ask_for(group, AskKind.MINIMUM, [slot], keeps) for slot in queued)
    if surplus:
        asks.append(ask_for(group, AskKind.SURPLUS, surplus, keeps))
    return asks


def _waiting(group: Group) -> list[Slot]:
    """Slots of a group that runs which wait for a place and have none promised; within a budget, those with a claim first."""
    promised = granted(group)
    found = [slot for slot in group.slots.values() if slot.state is S.PENDING and slot.key not in promised]
    if group.plan.scale.max_gpus:
        found.sort(key=lambda slot: not _claims(slot))
    return found


def _claims(slot: Slot) -> bool:
    """Whether it holds units, or lost them and still has its first claim."""
    return bool(slot.tasks) or bool(slot.incarnation and slot.until_ms)


def _tell_withheld(turn: Turn, group: Group) -> None:
    """Who is not asked for, as what was scaled away still uses the group's GPUs, has that as its reason."""
    if group.state not in ACTIVE or not group.plan.scale.max_gpus:
        return
    for key in withheld(group, _waiting(group)):
        names = ", ".join(f"{slot.member}[{slot.index}]" for slot in going(group))
        text = f"the group's {gpus_text(group.plan.scale.max_gpus)} GPUs are in use until {names} is gone"
        note(turn, group, Reason(PendCode.WAITING_TURN, text), key)


def _short_of_minimum(group: Group, queued: list[Slot], waiting: list[Slot]) -> list[Slot]:
    """Of the slots that queue, lowest index first, as many as their member's minimum lacks; the others are surplus."""
    if not queued:
        return queued
    short: dict[str, int] = {}
    for member in group.plan.members:
        there = wanted(group, member) - sum(1 for slot in waiting if slot.member == member.name and not _claims(slot))
        short[member.name] = required(group, member) - there
    found: list[Slot] = []
    for slot in queued:
        short[slot.member] -= 1
        if short[slot.member] >= 0:
            found.append(slot)
    return found


def ask_for(group: Group, kind: AskKind, slots: Sequence[Slot], keeps: Sequence[Slot] = (), *, together: bool = False) -> Ask:
    """The ask for some slots of a group; `keeps` are its slots that stay where they are."""
    members = {member.name: member for member in group.plan.members}
    return Ask(
        group=group.id,
        kind=kind,
        priority=group.plan.priority,
        submitted_ms=group.submitted_ms,
        slots=tuple(
            SlotAsk(s.member, s.index, members[s.member].terms, members[s.member].ports, members[s.member].pack_slot)
            for s in slots
        ),
        pack=group.plan.pack,
        pack_members=tuple((m.name, m.pack) for m in group.plan.members if m.pack is not None),
        held=tuple((slot.member, task.host) for slot in keeps for task in slot.tasks),
        excluded=group.excluded,
        together=together,
        claims=uses(group.plan) if group.state is G.PENDING and group.plan.claims else (),
    )


def session(turn: Turn, schedule: Schedule, waiting: Sequence[str]) -> bool:
    """One session for these groups; True if anything was placed."""
    asks: list[Ask] = []
    for group_id in in_order(waiting):
        group = turn.group(group_id)
        if group is not None:
            asks.extend(_remembered(turn, group))
            _tell_withheld(turn, group)
    if not asks:
        return False
    claims = [ask for ask in asks if _held(turn, ask)]
    others = [ask for ask in asks if ask not in claims] if claims else asks
    placed = False
    for ask in sorted(claims, key=lambda ask: (-ask.priority, ask.submitted_ms, number(ask.group))):
        placed = _answers(turn, schedule(_given_up(turn, ask), [ask])) or placed
    if others:
        placed = _answers(turn, schedule(turn.draft.freeze(), others)) or placed
    for ask in asks:
        _explain(turn, ask)
    return placed


def _answers(turn: Turn, answers: Sequence[Grant | Refusal]) -> bool:
    """Do what a session answered; True if it placed anything."""
    placed = False
    exact = 0
    for answer in answers:
        if isinstance(answer, Grant):
            placed = _grant(turn, answer) or placed
        else:
            exact += _refuse(turn, answer, exact=exact < REASONS_MAX or answer.group in turn.touched)
    return placed


def _held(turn: Turn, ask: Ask) -> bool:
    """Whether slots of the ask hold units under first claim."""
    slots = turn.draft.groups[ask.group].slots
    return ask.kind is AskKind.RECOVERY and any(slots[one.member, one.index].tasks for one in ask.slots)


def _given_up(turn: Turn, ask: Ask) -> State:
    """The state as if the slots of the ask held nothing: what is left of a place of several hosts is theirs to use again.

    It is what becomes true if they are placed; if not, they go on holding it, and nobody else was asked meanwhile.
    """
    state = turn.draft.freeze()
    group = state.groups[ask.group]
    slots = dict(group.slots)
    for one in ask.slots:
        slots[one.member, one.index] = replace(slots[one.member, one.index], tasks=())
    return with_group(state, replace(group, slots=slots))


def with_group(state: State, group: Group) -> State:
    """The state as it would be if the group were this one."""
    groups = changeable(state.groups)
    groups[group.id] = group
    return replace(state, groups=frozen(groups))


def _remembered(turn: Turn, group: Group) -> Sequence[Ask]:
    """As `asks_of`; what a group that waits unchanged asks for is not made anew in each session."""
    if group.state is not G.PENDING or turn.before.groups.get(group.id) is not group:
        return asks_of(turn, group)
    known = turn.index.asks.get(group.id)
    if known is None or known[0] is not group:
        known = turn.index.asks[group.id] = (group, tuple(asks_of(turn, group)))
    return known[1]


def _grant(turn: Turn, grant: Grant) -> bool:
    group = turn.draft.groups[grant.group]
    if group.state is G.PENDING:
        grant_group(turn, group.id, grant)
        return True
    placed = {(member, index): tasks for member, index, tasks in grant.slots}
    if group.state is G.RESTARTING:
        if any(key not in placed for key in to_replace(turn, group)):
            # A part of what it needs is of no use to it: two groups would wait for each other's part.
            return False
        replace_group(turn, group.id, placed)
        return True
    for key, tasks in placed.items():
        if group.slots[key].state is S.PENDING:
            place(turn, group.id, key, tasks)
    return bool(placed)


def _refuse(turn: Turn, refusal: Refusal, *, exact: bool) -> int:
    """Note the reasons; returns how many were new."""
    group = turn.draft.groups[refusal.group]
    if group.state not in ACTIVE:
        return note(turn, group, refusal.reason, exact=exact)
    keys = refusal.slots or [slot.key for slot in group.slots.values() if slot.state is S.PENDING]
    return sum(note(turn, turn.draft.groups[refusal.group], refusal.reason, key, exact=exact) for key in keys)


def note(turn: Turn, group: Group, reason: Reason, key: SlotId | None = None, *, exact: bool = True) -> int:
    """Note why the group, or one of its slots, waits: 1 if that is news. Not `exact`: only another code is."""
    if key is not None and group.slots[key].state is not S.PENDING:
        return 0
    known = group.reason if key is None else group.slots[key].reason
    if known == reason or (not exact and known is not None and known.code is reason.code):
        return 0
    turn.emit(ReasonNoted(group.id, reason, *(key or ())))
    return 1


def _explain(turn: Turn, ask: Ask) -> None:
    """Everybody who still waits has a reason, also where the session said nothing."""
    group = turn.draft.groups[ask.group]
    if group.state in (G.PENDING, G.RESTARTING):
        if group.reason is None or group.reason.code is PendCode.BACKOFF:
            note(turn, group, NOT_LOOKED_AT)
    elif group.state in ACTIVE:
        for asked in ask.slots:
            slot = group.slots[asked.member, asked.index]
            if slot.state is S.PENDING and slot.reason is None:
                note(turn, group, NOT_LOOKED_AT, slot.key)
