"""Events of a group as a whole: its life, its failures, its targets, its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gangflow.events.base import Event, SlotEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSubmitted(Event):
    """The group exists; it is PENDING."""

    name: str
    owner: str = ""
    priority: int = 0
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlaced(Event):
    """All or nothing: every required slot has its place. The group is PREPARING."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStarted(Event):
    """The barrier was released: every process is being started. The group is STARTING."""

    epoch: int
    """Of this start of the whole group, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartVoided(Event):
    """A try to start failed; nothing of it runs on, and the next one begins at `again_ms` (0: there is none)."""

    attempt: int
    cause: str
    message: str = ""
    again_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChanged(Event):
    """Any other edge of the group's life cycle; those that matter most have a class of their own."""

    before: str
    state: str
    cause: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRunning(GroupChanged):
    """Every job is ready or done, and every replica set has its minimum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDegraded(GroupChanged):
    """A minimum is broken, and is being repaired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRestarting(GroupChanged):
    """The whole group is restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSuspended(GroupChanged):
    """It holds nothing any more, and waits to be resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStopping(GroupChanged):
    """It is being taken down; `goal` is the state that it will end in."""

    goal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEnded(GroupChanged):
    """It has ended, and nothing of it is left: `state` is SUCCEEDED, FAILED or CANCELLED. The last one of `Run.events()`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Event):
    """Why the group, or one slot of it, waits; `code` is empty when it does not wait any more."""

    code: str = ""
    """`WAITING_CAPACITY`, `NEVER_FITS`, … (`docs/states.md`)."""
    text: str = ""
    blocker: str = ""
    """The group that is ahead or holds the capacity."""
    member: str = ""
    """Empty: the whole group."""
    slot: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureJudged(SlotEvent):
    """What a rule decided about a failure."""

    cause: str
    rule: int
    """Its number among the group's rules."""
    action: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpent(Event):
    """A restart was paid from a rule's budget."""

    rule: int
    member: str = ""
    """Whose budget: a slot's, or (empty) the whole group's."""
    slot: int = -1
    spent: int = 0
    """Restarts that count now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorCrossed(Event):
    """A member fell below its floor, or is back above it."""

    member: str
    below: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HostExcluded(Event):
    """The group does not use this host any more."""

    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReadmitted(Event):
    """The group may use this host again."""

    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBlamed(Event):
    """Failures of the group on a host, as they count towards its exclusion now."""

    host: str
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetsSet(Event):
    """The group's targets are these from here on."""

    targets: Mapping[str, int] = field(hash=False)
    """Of every member."""
    added: tuple[tuple[str, int], ...] = ()
    """(member, slot) that are in."""
    removed: tuple[tuple[str, int], ...] = ()
    """(member, slot) that are out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeMoved(Event):
    """A change of targets, as it is now: ACCEPTED, DRAINING, PLACING; the ends have a class of their own."""

    change: str
    """Its id within the group: `c1`, `c2`, …"""
    state: str
    targets: Mapping[str, int] = field(default_factory=dict, hash=False)
    before: Mapping[str, int] = field(default_factory=dict, hash=False)
    ups: tuple[tuple[str, int], ...] = ()
    """(member, slot) that are not placed yet."""
    downs: tuple[tuple[str, int], ...] = ()
    """(member, slot) that still hold something."""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeDone(ChangeMoved):
    """It is done: everything is as it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFailed(ChangeMoved):
    """It failed, and what stood then became the target; `message` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStopped(Event):
    """A user stopped a member for good."""

    member: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReturned(Event):
    """A member that was stopped is wanted again."""

    member: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStarted(Event):
    """A coordinator took over; older terms are fenced."""

    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueWritten(Event):
    """A durable key-value of the group was set."""

    name: str
    value: str
    """A JSON text."""
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupForgotten(Event):
    """It ended long ago, and is not listed any more."""
