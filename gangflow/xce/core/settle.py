"""Let every touched group go as far as it can: one step of each life cycle that nothing stands in the way of."""

from __future__ import annotations

from gangflow.xce.core import claims, scale_steps, standalone, suspend
from gangflow.xce.core.asking import session, unanswered, unasked
from gangflow.xce.core.asks import Schedule
from gangflow.xce.core.counts import ACTIVE
from gangflow.xce.core.ending import finish, follow
from gangflow.xce.core.events import GroupChanged, OfferLeft
from gangflow.xce.core.index import Index, in_order
from gangflow.xce.core.judge import judge
from gangflow.xce.core.limits import SESSIONS_MAX
from gangflow.xce.core.recovery import abandoned, advance, back_to_placement, overdue, restart
from gangflow.xce.core.start import prepare
from gangflow.xce.core.state import Group, GroupState
from gangflow.xce.core.turn import Turn

G = GroupState


def settle(turn: Turn, index: Index, schedule: Schedule) -> None:
    """Judge the batch's failures, move what can move, hold sessions while they place something."""
    for group_id in in_order(turn.touched):
        group = turn.group(group_id)
        if group is not None:
            claims.tend(turn, group)
            overdue(turn, turn.draft.at(group_id))
    _move(turn)
    owed = turn.draft.offer_ms
    turn.freed = turn.freed or bool(owed)
    left = _sessions(turn, index, schedule)
    if left != bool(owed):
        turn.emit(OfferLeft(turn.now_ms if left else 0))


def _sessions(turn: Turn, index: Index, schedule: Schedule) -> bool:
    """Sessions while they place something, but only so many: True if somebody may still be placeable."""
    let_go: dict[str, None] = {}
    standalone.wake(turn, let_go)
    for _ in range(SESSIONS_MAX):
        if not _session(turn, index, schedule):
            return False
        _move(turn)
        standalone.wake(turn, let_go)
        if not turn.freed and not any(unasked(turn.group(group_id)) for group_id in turn.touched):
            return False
    return True


def _move(turn: Turn) -> None:
    """Until nothing moves: each round takes every group at least one edge further, and no life cycle turns without waiting."""
    moved = True
    while moved or turn.failures:
        seen = len(turn.events)
        judge(turn)
        moved = len(turn.events) > seen
        for group_id in in_order(turn.touched):
            group = turn.group(group_id)
            if group is not None and _step(turn, group):
                moved = True


def _step(turn: Turn, group: Group) -> bool:
    """One round of one group; True if another may take it further."""
    seen = len(turn.events)
    if group.changes:
        scale_steps.follow(turn, group.id)
        group = turn.draft.at(group.id)
    if group.state is G.PENDING and group.until_ms and group.until_ms <= turn.now_ms:
        turn.emit(GroupChanged(group.id, G.PENDING, G.PENDING))
    elif group.state is G.PREPARING:
        prepare(turn, group.id)
    elif group.state in ACTIVE:
        advance(turn, group.id)
        before = len(turn.events)
        follow(turn, group.id)
        group = turn.draft.at(group.id)
        if group.state is G.DEGRADED and abandoned(group):
            back_to_placement(turn, group)
        elif before == seen and group.state in ACTIVE and all(type(event) is GroupChanged for event in turn.events[before:]):
            # It was counted anew, and runs on: nothing of it depends on how that is called.
            return False
    elif group.state is G.RESTARTING:
        restart(turn, group.id)
    elif group.state is G.SUSPENDING:
        suspend.follow(turn, group.id)
    elif group.state is G.STOPPING:
        finish(turn, group.id)
    return len(turn.events) > seen


def _session(turn: Turn, index: Index, schedule: Schedule) -> bool:
    """Hold a session if something may have become placeable; True if it placed anything."""
    if turn.freed:
        waiting = {**turn.touched, **index.waiting}
    else:
        # What was free before was of no use to those who were refused: only what comes back can be.
        waiting = {group_id: None for group_id in turn.touched if unanswered(turn.group(group_id))}
    turn.freed = False
    return bool(waiting) and session(turn, schedule, list(waiting))
