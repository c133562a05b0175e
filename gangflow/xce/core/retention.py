"""Ended groups leave the state after a while; their records stay in the journal."""

from __future__ import annotations

from heapq import merge
from itertools import islice

from gangflow.xce.core.claim_ids import claims_of
from gangflow.xce.core.events import GroupForgotten
from gangflow.xce.core.evolve_group import number
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
    new: list[tuple[int, int, str]] = []
    forgotten = 0
    for group_id in turn.touched:
        group, before = turn.group(group_id), turn.before.groups.get(group_id)
        knew = before is not None and before.state.terminal
        forgotten += knew and group is None
        if group is not None and group.state.terminal and not knew:
            new.append((group.ended_ms, number(group_id), group_id))
    surplus = len(turn.index.ended) + len(new) - forgotten - ENDED_KEPT_MAX
    if surplus <= 0:
        return
    for _, _, group_id in list(islice(merge(turn.index.ended, sorted(new)), surplus + forgotten)):
        group = turn.group(group_id)
        if group is None:
            continue
        if not surplus:
            return
        surplus -= 1
        if settled(turn, group):
            turn.emit(GroupForgotten(group_id))
