"""Ended groups leave the state after a while; their records stay in the journal."""

from __future__ import annotations

from gangflow.xce.core.claim_ids import claims_of
from gangflow.xce.core.events import GroupForgotten
from gangflow.xce.core.limits import ENDED_KEPT_MAX, ENDED_KEPT_MS
from gangflow.xce.core.state import ClaimState, Group
from gangflow.xce.core.turn import Turn


def settled(turn: Turn, group: Group) -> bool:
    """Ended, and no obligation of it is left."""
    return group.state.terminal and all(c.state is ClaimState.GONE for c in claims_of(turn.draft.claims, group))


def forget_old(turn: Turn, groups: list[str]) -> None:
    """Of these groups, those that ended long enough ago."""
    for group_id in groups:
        group = turn.group(group_id)
        if group is not None and group.ended_ms + ENDED_KEPT_MS <= turn.now_ms and settled(turn, group):
            turn.emit(GroupForgotten(group_id))


def forget_surplus(turn: Turn) -> None:
    """When more ended groups are kept than the limit: those that ended first."""
    ended = [group for group in turn.draft.groups.values() if group.state.terminal]
    if len(ended) <= ENDED_KEPT_MAX:
        return
    ended.sort(key=lambda group: group.ended_ms)
    for group in ended[: len(ended) - ENDED_KEPT_MAX]:
        if settled(turn, group):
            turn.emit(GroupForgotten(group.id))
