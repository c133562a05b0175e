"""Server-sent events, as data: what is watched, from where to go on after a break, and how a message is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from gangflow.errors import Gone
from gangflow.xce.rest.calls import group_path, slot_path
from gangflow.xce.rest.messages import BeatView, EventView, LogView
from gangflow.xce.rest.schema import API

T = TypeVar("T")

KEEPALIVE_S = 10.0
"""The server says something at least this often; a client that hears nothing for three of them connects again."""


@dataclass(slots=True)
class Watch(Generic[T]):
    """One stream and the position up to which it was read. Mutable: it outlives the connections that serve it."""

    path: str
    resume: str
    """The query parameter that takes the position; empty: the stream starts with the present, always."""
    view: Callable[[Any], T]
    query: dict[str, str | int] = field(default_factory=dict)
    position: int | None = None
    ended: bool = False
    """The server said that there is nothing more to come."""

    def params(self) -> dict[str, str | int]:
        """The query of the next connection."""
        if self.resume and self.position is not None:
            return {**self.query, self.resume: self.position}
        return self.query

    def take(self, event: str, ident: str, data: str) -> T | None:
        """Read one message; None if it only moved the position. Gone if the server can not go on from here."""
        if event == "gone":
            raise Gone("the journal does not reach back to this position any more", seq=int(json.loads(data)["seq"]))
        value = self.view(json.loads(data)) if data and event != "end" else None
        if ident:
            self.position = int(ident)
        self.ended = event == "end"
        return value


def events(after: int | None = None, group: str = "", until: int | None = None) -> Watch[EventView]:
    """Durable records after a position (None: from now on) up to another (None: without end), of one group or of all."""
    query: dict[str, str | int] = {"group": group} if group else {}
    if until is not None:
        query["until"] = until
    return Watch(f"{API}/events", "after", EventView.model_validate, query, after)


def log(
    group: str, member: str, index: int, incarnation: int = 0, task: int = 0, stream: str = "stdout", offset: int = 0
) -> Watch[LogView]:
    """An incarnation's log as it grows, until its end."""
    query: dict[str, str | int] = {"incarnation": incarnation, "task": task, "stream": stream, "follow": "true"}
    return Watch(f"{slot_path(group, member, index)}/log", "offset", LogView.model_validate, query, offset)


def beats(group: str) -> Watch[BeatView]:
    """Heartbeats of a group: first the latest of each slot, then each as it comes."""
    return Watch(f"{group_path(group)}/heartbeats", "", BeatView.model_validate, {"follow": "true"})
