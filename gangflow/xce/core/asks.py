"""The seam between the life cycle and the scheduler: what waits for a place, and what a session answers.

`core` says what is asked for; `placement` answers with grants or with the reason why not; `core` turns grants into events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from gangflow.xce.core.plan import Access, Pack, TaskTerm
from gangflow.xce.core.state import Reason, State, Task


class AskKind(IntEnum):
    """The session's phases that place something, in their order (design 3.6)."""

    RECOVERY = 1
    """Slots that a running group lost; each is placed or refused on its own, in member and slot order."""
    MINIMUM = 3
    """The required slots of a group that has not started: all or nothing."""
    SURPLUS = 7
    """Replicas above the minimum, one by one."""


@dataclass(frozen=True, slots=True)
class SlotAsk:
    """One slot that wants a place: the shapes of its tasks."""

    member: str
    index: int
    terms: tuple[TaskTerm, ...]
    ports: tuple[str, ...] = ()
    """Port names; each task gets one number for each."""
    pack_slot: Pack | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """What one group asks of a session."""

    group: str
    kind: AskKind
    priority: int
    submitted_ms: int
    slots: tuple[SlotAsk, ...]
    pack: Pack | None = None
    """Over all slots of the ask, and over `held` ones that are already placed."""
    pack_members: tuple[tuple[str, Pack], ...] = ()
    held: tuple[tuple[str, str], ...] = ()
    """(member, host) of the group's slots that keep their places: a re-placement stays in their domain."""
    excluded: tuple[str, ...] = ()
    claims: tuple[tuple[str, Access], ...] = ()
    """MINIMUM of a whole group: the standalone claims that it takes with its places, in the same decision."""
    together: bool = False
    """RECOVERY only: all of these slots or none (the slots of a group restart that lost their places)."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The places that a session gives to slots of one group."""

    group: str
    slots: tuple[tuple[str, int, tuple[Task, ...]], ...]
    """(member, index, tasks in order, phase PLACED)."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why slots of one group have to wait."""

    group: str
    reason: Reason
    slots: tuple[tuple[str, int], ...] = ()
    """The slots that it speaks of (RECOVERY, SURPLUS); all of them for MINIMUM."""


Schedule = Callable[[State, Sequence[Ask]], Sequence[Grant | Refusal]]
"""One scheduler session over an immutable state: each ask is granted, or refused with its reason."""
