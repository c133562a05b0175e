"""The journal's records as one watcher may see them. Pure but for what it remembers of the records that it was shown.

A record is about a group, a standalone claim, or the cluster. Of a group that a watcher sees in part he gets what is about the
group's state and what is about his own members; a kind of record that is not named here he does not get.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from gangflow.xce.core import events as ev
from gangflow.xce.core.events import Event
from gangflow.xce.core.state import Claim, Group, State
from gangflow.xce.rest.event_views import event_view, group_of
from gangflow.xce.rest.messages import EventView
from gangflow.xce.rest.sight import Sight
from gangflow.xce.rest.tokens import ADMIN, Principal, Role

T = TypeVar("T", bound=tuple[object, ...])

_CLUSTER = (ev.TermStarted, ev.HostRegistered, ev.HostChanged, ev.HostOperated)
"""What every owner may know of the cluster. Which tasks are strays, and whose, nobody but the admin."""
_GROUP = (ev.GroupSubmitted, ev.GroupPlaced, ev.BarrierReleased, ev.TryVoided, ev.GroupChanged, ev.GroupForgotten)
"""What is said of a group to whom it belongs in part."""
_MEMBER = (
    ev.FloorCrossed,
    ev.FailureJudged,
    ev.MemberStopped,
    ev.SlotPlaced,
    ev.SlotChanged,
    ev.SlotHeld,
    ev.SlotWarned,
    ev.SlotExited,
)


class Watching:
    """One watcher: `view` is called with every record, in order."""

    def __init__(self, caller: Principal, group: str, state: Callable[[], State]) -> None:
        """`group`: the only one that is asked for, by id; empty: all that the caller may see."""
        self._caller = caller
        self._group = group if caller.task is None else caller.task.group
        self._state = state
        # What is not in the state any more when its last record comes, or is not yet: as the records said.
        self._groups: dict[str, Group] = {}
        self._claims: dict[str, Claim] = {}

    def view(self, seq: int, at_ms: int, event: Event) -> EventView | None:
        """The record as the watcher may see it; None: not at all."""
        about = group_of(event)
        if self._group and about != self._group:
            return None
        if self._caller == ADMIN:
            return event_view(seq, at_ms, event)
        state = self._state()
        sight = Sight(self._caller, state, self._groups)
        group = state.groups.get(about) or self._groups.get(about)
        if group is None and isinstance(event, ev.GroupSubmitted):
            group = Group(about, event.plan)
        self._remember(event, group, sight)
        if group is not None:
            seen = self._of_group(event, group, sight)
        else:
            # A group of which nothing is known any more is nobody's but its own tasks'.
            seen = event if (self._owned(event) if not about else self._caller.task is not None) else None
        return event_view(seq, at_ms, _told(seen, sight)) if seen is not None else None

    def _remember(self, event: Event, group: Group | None, sight: Sight) -> None:
        if group is not None and sight.sees(group):
            self._groups[group.id] = group
        if isinstance(event, ev.ClaimChanged) and not event.claim.group and event.claim.owner == self._caller.owner:
            self._claims[event.claim.id] = event.claim

    def _owned(self, event: Event) -> bool:
        """Of records that are about no group."""
        if self._caller.role is not Role.OWNER:
            return False
        if isinstance(event, ev.ClaimChanged):
            return event.claim.owner == self._caller.owner
        if isinstance(event, ev.ClaimForgotten):
            # By what was shown of it: its name may be another owner's by now.
            return self._claims.pop(event.claim, None) is not None
        return isinstance(event, _CLUSTER)

    def _of_group(self, event: Event, group: Group, sight: Sight) -> Event | None:
        if not sight.sees(group):
            return None
        if sight.whole(group):
            return event
        his = sight.members(group)
        if isinstance(event, ev.GroupSubmitted):
            mine = tuple(member for member in event.plan.members if member.name in his)
            return replace(event, plan=replace(event.plan, members=mine))
        if isinstance(event, ev.TryVoided | ev.GroupChanged):
            return replace(event, message="")
        if isinstance(event, _GROUP):
            return event
        if isinstance(event, ev.ReasonNoted):
            return event if not event.member or event.member in his else None
        if isinstance(event, _MEMBER):
            return event if event.member in his else None
        if isinstance(event, ev.TaskMoved | ev.TaskSuperseded | ev.SupersededGone):
            return event if event.task.member in his else None
        if isinstance(event, ev.ClaimChanged):
            return event if event.claim.member in his else None
        return self._of_targets(event, his)

    @staticmethod
    def _of_targets(event: Event, his: frozenset[str]) -> Event | None:
        if isinstance(event, ev.TargetsSet):
            return replace(
                event,
                targets=_of(his, event.targets),
                added=_of(his, event.added),
                removed=_of(his, event.removed),
            )
        if isinstance(event, ev.ChangeMoved):
            change = event.change
            mine = replace(
                change,
                targets=_of(his, change.targets),
                before=_of(his, change.before),
                ups=_of(his, change.ups),
                downs=_of(his, change.downs),
                grants=_of(his, change.grants),
            )
            return replace(event, change=mine)
        return None


def _told(event: Event, sight: Sight) -> Event:
    """Without what names groups that the watcher does not see."""
    if isinstance(event, ev.ReasonNoted):
        return replace(event, reason=sight.reason(event.reason))
    if isinstance(event, ev.GroupChanged | ev.TryVoided | ev.FailureJudged):
        return replace(event, message=sight.text(event.message))
    return event


def _of(his: frozenset[str], entries: tuple[T, ...]) -> tuple[T, ...]:
    """The entries, each of which begins with a member's name, that are of his members."""
    return tuple(entry for entry in entries if entry[0] in his)
