"""What every typed event has, and the two that stand for what this version cannot say better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A durable record of the journal: something that has happened, and will not be taken back."""

    seq: int
    """Its place in the journal: watch on from here with `events(after=event.seq)`."""
    at_ms: int
    """The controller's clock when it was decided, in milliseconds since the Unix epoch."""
    group: str = ""
    """The id of the group; empty for the cluster's own."""

    @property
    def at(self) -> datetime:
        """`at_ms` as a time in UTC."""
        return datetime.fromtimestamp(self.at_ms / 1000, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotEvent(Event):
    """Something of one slot."""

    member: str
    slot: int
    """Its index within the member."""
    incarnation: int = 0
    """0 where it concerns none."""

    @property
    def name(self) -> str:
        """`rollout[2]`."""
        return f"{self.member}[{self.slot}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown(Event):
    """A record that this version does not know, or that is not as this version knows it: a newer server wrote it."""

    type: str
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """As the server sent it."""
