"""The change of a group's targets that is not over, as the rest of the core asks about it (design 3.7)."""

from __future__ import annotations

from gangflow.xce.core.state import Change, ChangeState, Group
from gangflow.xce.renew import replace

SlotId = tuple[str, int]


def open_change(group: Group) -> Change | None:
    """The group's change that is not over. A newer change ends the older, so it can only be the newest."""
    if not group.changes:
        return None
    newest = group.changes[-1]
    return None if newest.state.over else newest


def ended(change: Change, state: ChangeState, now_ms: int, message: str) -> Change:
    """The change as it ends: nothing comes, goes or is promised any more."""
    return replace(change, state=state, ups=(), downs=(), grants=(), ended_ms=now_ms, message=message)


def keeps(group: Group, key: SlotId) -> bool:
    """Whether a slot that was scaled away keeps its allocation once it is gone: the change gives it to those that come."""
    change = open_change(group)
    return change is not None and key in change.downs


def granted(group: Group) -> tuple[SlotId, ...]:
    """Slots that the open change has a place for, and that wait for it: they ask the scheduler for nothing."""
    change = open_change(group)
    return tuple((member, index) for member, index, _ in change.grants) if change is not None else ()
