"""The end of a group: when its primary jobs ended, when its start took too long, when a floor stays broken (design 3.1)."""

from __future__ import annotations

from gangflow.durations import lasting
from gangflow.xce.core.claims import release_all
from gangflow.xce.core.counts import STARTED, holds, ready, satisfied, slots_of, started
from gangflow.xce.core.events import BudgetSpent, FloorCrossed, GroupChanged
from gangflow.xce.core.floors import below, floor_of, watched
from gangflow.xce.core.judge import end_group, restart_role
from gangflow.xce.core.plan import Action, Cause, MemberKind
from gangflow.xce.core.policy import escalate, find_rule
from gangflow.xce.core.start import not_ready_message
from gangflow.xce.core.state import Exit, Group, GroupState, Next, Slot, SlotState
from gangflow.xce.core.teardown import drained, stop, stop_all
from gangflow.xce.core.turn import Turn

G, S = GroupState, SlotState


def outcome(group: Group) -> GroupState | None:
    """SUCCEEDED or FAILED once every primary job is DONE, or EXIT and tolerated, or was stopped; None: it goes on."""
    done = primary = 0
    for member in group.plan.members:
        if member.kind is not MemberKind.JOB or not member.primary:
            continue
        primary += 1
        slot = group.slots[member.name, 0]
        if slot.state is S.DONE:
            done += 1
        elif member.name in group.stopped:
            continue
        elif slot.state is not S.RETIRED or slot.key not in group.tolerated:
            return None
    if not primary:
        return None
    return G.SUCCEEDED if done else G.FAILED


def follow(turn: Turn, group_id: str) -> None:
    """A group that has started: is it RUNNING, DEGRADED, over, or too late?"""
    group = turn.draft.at(group_id)
    if group.state is G.STARTING and started(group):
        turn.emit(GroupChanged(group_id, G.STARTING, G.RUNNING))
    elif group.state is G.RUNNING and not satisfied(group):
        turn.emit(GroupChanged(group_id, G.RUNNING, G.DEGRADED))
    elif group.state is G.DEGRADED and satisfied(group):
        turn.emit(GroupChanged(group_id, G.DEGRADED, G.RUNNING))
    group = turn.draft.at(group_id)
    result = outcome(group)
    if result is not None:
        cause = "" if result is G.SUCCEEDED else Cause.APP_EXIT.value
        text = "" if result is G.SUCCEEDED else "every primary job failed, each exit tolerated, or was stopped"
        end_group(turn, group_id, result, cause, text, delay_ms=group.plan.termination_delay_ms)
    elif group.state is G.STARTING and turn.passed(group.until_ms):
        _start_timeout(turn, group)
    elif group.state in (G.RUNNING, G.DEGRADED):
        _floors(turn, group)


def _start_timeout(turn: Turn, group: Group) -> None:
    """STARTING is bounded: a rule may restart the group for `not_ready`; anything weaker would not bound it."""
    late: list[Slot] = []
    for member in group.plan.members:
        if holds(group, member, STARTED):
            continue
        late.extend(slot for slot in slots_of(group, member) if slot.state not in STARTED)
    first = next((slot for slot in late if slot.tasks), late[0])
    detail = not_ready_message(turn, group, first) if first.tasks else f"it is {first.state.value}"
    text = f"{first.member}[{first.index}] not ready after {lasting(group.plan.barrier.start_timeout_ms)}: {detail}"
    exit = Exit(Cause.NOT_READY, first.incarnation, turn.now_ms, message=text)
    number = find_rule(group, first.member, first.index, exit)
    rule = group.plan.rules[number] if number >= 0 else None
    if rule is not None and rule.action is Action.RESTART_GROUP and first.state in (S.STARTING, S.RUNNING):
        turn.fail(group, first, exit)
    else:
        end_group(turn, group.id, G.FAILED, Cause.NOT_READY.value, text)


def _floors(turn: Turn, group: Group) -> None:
    """Members with a floor and a grace: since when they are below it, and what then."""
    if not any(rule.floor_grace_ms for rule in group.plan.rules):
        return
    for member in group.plan.members:
        found = watched(group, member)
        if found is None:
            continue
        number, rule = found
        since = dict(group.below_floor_ms).get(member.name, 0)
        if not below(group, member, rule):
            if since:
                turn.emit(FloorCrossed(group.id, member.name, 0))
            continue
        if not since:
            turn.emit(FloorCrossed(group.id, member.name, turn.now_ms))
            continue
        if not turn.passed(since + rule.floor_grace_ms):
            continue
        floor = floor_of(member, rule)
        text = f"{member.name}: {ready(group, member)} ready, below {floor} for {lasting(rule.floor_grace_ms)}"
        _broken(turn, group, member.name, number, text)
        return


def _broken(turn: Turn, group: Group, member: str, rule: int, text: str) -> None:
    """A floor was broken for longer than its grace: the rule's `then`, as often as its budget allows."""
    verdict = escalate(group, rule, turn.now_ms)
    if verdict.spend is not None:
        turn.emit(BudgetSpent(group.id, verdict.spend))
    until = turn.now_ms + verdict.backoff_ms
    if verdict.action is Action.RESTART_GROUP:
        turn.emit(GroupChanged(group.id, group.state, G.RESTARTING, "below_floor", text, until_ms=until))
        stop_all(turn, group.id, Next.RESTART)
    elif verdict.action is Action.RESTART_ROLE or verdict.action is Action.RESTART_MEMBER:
        # Once per crossing: the clock of the floor starts anew.
        turn.emit(FloorCrossed(group.id, member, turn.now_ms))
        if verdict.action is Action.RESTART_ROLE:
            restart_role(turn, group.id, member, until)
            return
        for key, slot in list(group.slots.items()):
            if key[0] == member and slot.state in (S.STARTING, S.RUNNING):
                stop(turn, group.id, key, Next.BACKOFF, until_ms=until)
    else:
        end_group(turn, group.id, G.FAILED, "below_floor", text)


def finish(turn: Turn, group_id: str) -> None:
    """A group that is STOPPING: drains end, and when every slot is confirmed gone it is over."""
    group = turn.draft.groups[group_id]
    for key, slot in list(group.slots.items()):
        if slot.state is S.DRAINING and slot.until_ms <= turn.now_ms:
            drained(turn, group_id, key)
    group = turn.draft.groups[group_id]
    if any(slot.tasks or slot.live for slot in group.slots.values()):
        return
    turn.emit(GroupChanged(group_id, G.STOPPING, group.goal or G.FAILED))
    release_all(turn, turn.draft.groups[group_id])
