"""What every typed event has, and the two that stand for what this version cannot say better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

_IN_FRONT = frozenset({"seq", "at_ms", "group", "member", "slot", "stderr_tail"})


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

    def __str__(self) -> str:
        """As one line: when, what, of whom, and whatever else it says."""
        said = {
            field.name: value
            for field in fields(self)
            if field.name not in _IN_FRONT and (value := getattr(self, field.name)) not in ("", field.default)
        }
        member, slot = getattr(self, "member", ""), getattr(self, "slot", -1)
        where = f"{member}[{slot}]" if member and slot >= 0 else member
        words = [f"{self.at:%H:%M:%S}", type(self).__name__, where, *(f"{name}={value}" for name, value in said.items())]
        return " ".join(word for word in words if word)


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
