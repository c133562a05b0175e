"""Every call of the contract as data, so that the synchronous and the asynchronous client are two thin senders of the same.

A mutating call gets its idempotency key here, once: however often a client sends it, it acts once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote

from gangflow.xce.rest.messages import (
    BeatList,
    Done,
    HealthView,
    LogView,
    Submitted,
    TermView,
    ValueList,
    ValueView,
    VersionView,
)
from gangflow.xce.rest.schema import API, ClaimList, GroupList, GroupView, HostList, QueueView, View, WhyView

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and how its answer is read."""

    method: str
    path: str
    view: Callable[[Any], T]
    """Of the decoded JSON answer."""
    body: Any = None
    query: tuple[tuple[str, str | int], ...] = ()
    key: str = ""
    """Idempotency key of a mutating call."""
    retry: bool = True
    """Send it again when nobody answered; False where the next call says the same anyway."""


class Document(Protocol):
    """A spec that knows its JSON form: `gangflow.CoStartGroup`."""

    def model_dump(self, *, mode: str, exclude_defaults: bool) -> dict[str, Any]: ...


def _key(given: str) -> str:
    return given or uuid.uuid4().hex


def group_path(group: str) -> str:
    """The path of a group; `group` is an id or a live group's name."""
    return f"{API}/groups/{quote(group, safe='')}"


def slot_path(group: str, member: str, index: int) -> str:
    """The path of a slot."""
    return f"{group_path(group)}/members/{quote(member, safe='')}/slots/{index}"


def _query(**given: str | int | None) -> tuple[tuple[str, str | int], ...]:
    return tuple((name, value) for name, value in given.items() if value is not None and value != "")


def _reader(view: type[View]) -> Callable[[Any], Any]:
    return view.model_validate


# --- groups ---------------------------------------------------------------------------------------------------------


def submit(spec: Mapping[str, Any] | Document, key: str = "") -> Call[Submitted]:
    """Submit a group."""
    body = dict(spec) if isinstance(spec, Mapping) else spec.model_dump(mode="json", exclude_defaults=True)
    return Call("POST", f"{API}/groups", _reader(Submitted), body, key=_key(key))


def groups(states: Sequence[str] = (), name: str = "", limit: int | None = None, cursor: str = "") -> Call[GroupList]:
    """A page of groups."""
    query = _query(state=",".join(states), name=name, limit=limit, cursor=cursor)
    return Call("GET", f"{API}/groups", _reader(GroupList), query=query)


def group(group: str) -> Call[GroupView]:
    """One group, in detail."""
    return Call("GET", group_path(group), _reader(GroupView))


def cancel(group: str, key: str = "") -> Call[Done]:
    """Tear a group down: CANCELLED."""
    return Call("DELETE", group_path(group), _reader(Done), key=_key(key))


def fail(group: str, cause: str, message: str = "", key: str = "") -> Call[Done]:
    """Tear a group down: FAILED, with a cause."""
    return Call("POST", f"{group_path(group)}:fail", _reader(Done), {"cause": cause, "message": message}, key=_key(key))


def why(group: str, level: int = 1) -> Call[WhyView]:
    """The pend reason."""
    return Call("GET", f"{group_path(group)}/why", _reader(WhyView), query=_query(level=level))


def queue(limit: int | None = None, cursor: str = "") -> Call[QueueView]:
    """Groups that wait, in order."""
    return Call("GET", f"{API}/queue", _reader(QueueView), query=_query(limit=limit, cursor=cursor))


# --- slots ----------------------------------------------------------------------------------------------------------


def report(group: str, member: str, index: int, incarnation: int, cause: str, message: str = "", key: str = "") -> Call[Done]:
    """A coordinator's verdict about an incarnation."""
    body = {"cause": cause, "incarnation": incarnation, "message": message}
    return Call("POST", f"{slot_path(group, member, index)}:report", _reader(Done), body, key=_key(key))


def restart(group: str, member: str, index: int, incarnation: int, key: str = "") -> Call[Done]:
    """An operator's restart."""
    path = f"{slot_path(group, member, index)}:restart"
    return Call("POST", path, _reader(Done), {"incarnation": incarnation}, key=_key(key))


def signal(group: str, member: str, index: int, incarnation: int, number: int = 9, task: int = 0) -> Call[Done]:
    """Fault injection."""
    # Not repeated when nobody answered: the second one could hit what replaced the first one's victim.
    body = {"incarnation": incarnation, "signal": number, "task": task}
    return Call("POST", f"{slot_path(group, member, index)}:signal", _reader(Done), body, retry=False)


def log(
    group: str,
    member: str,
    index: int,
    incarnation: int = 0,
    task: int = 0,
    stream: str = "stdout",
    offset: int = 0,
    limit: int = 65_536,
) -> Call[LogView]:
    """A piece of a log."""
    query = _query(incarnation=incarnation, task=task, stream=stream, offset=offset, limit=limit)
    return Call("GET", f"{slot_path(group, member, index)}/log", _reader(LogView), query=query)


# --- group services -------------------------------------------------------------------------------------------------


def take_coordination(group: str, key: str = "") -> Call[TermView]:
    """The group's next coordinator term."""
    return Call("POST", f"{group_path(group)}/coordinator", _reader(TermView), key=_key(key))


def kv_get(group: str, name: str) -> Call[ValueView]:
    """A key-value."""
    return Call("GET", f"{group_path(group)}/kv/{quote(name)}", _reader(ValueView))


def kv_list(group: str, prefix: str = "", limit: int | None = None, cursor: str = "") -> Call[ValueList]:
    """Key-values by prefix."""
    return Call("GET", f"{group_path(group)}/kv", _reader(ValueList), query=_query(prefix=prefix, limit=limit, cursor=cursor))


def kv_put(group: str, name: str, value: str, expect: int = -1, key: str = "") -> Call[VersionView]:
    """Compare-and-set of a key-value."""
    body = {"value": value, "expect": expect}
    return Call("PUT", f"{group_path(group)}/kv/{quote(name)}", _reader(VersionView), body, key=_key(key))


def beat(group: str, member: str, index: int, body: Mapping[str, Any]) -> Call[Done]:
    """A heartbeat."""
    return Call("PUT", f"{slot_path(group, member, index)}/heartbeat", _reader(Done), dict(body), retry=False)


def beats(group: str) -> Call[BeatList]:
    """The latest heartbeats."""
    return Call("GET", f"{group_path(group)}/heartbeats", _reader(BeatList))


def spans(group: str, measured: Sequence[Mapping[str, Any]]) -> Call[Done]:
    """Spans that a member measured."""
    body = {"spans": [dict(span) for span in measured]}
    return Call("POST", f"{group_path(group)}/spans", _reader(Done), body, retry=False)


# --- the rest of the cluster ----------------------------------------------------------------------------------------


def hosts(limit: int | None = None, cursor: str = "") -> Call[HostList]:
    """A page of hosts."""
    return Call("GET", f"{API}/hosts", _reader(HostList), query=_query(limit=limit, cursor=cursor))


def claims(group: str = "", limit: int | None = None, cursor: str = "") -> Call[ClaimList]:
    """Claims, of one group or of all."""
    return Call("GET", f"{API}/claims", _reader(ClaimList), query=_query(group=group, limit=limit, cursor=cursor))


def healthz() -> Call[HealthView]:
    """Does it answer?"""
    return Call("GET", f"{API}/healthz", _reader(HealthView))
