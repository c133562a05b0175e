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
    GroupMoved,
    HealthView,
    HostMoved,
    LogView,
    ScaleView,
    Submitted,
    TermView,
    TokenView,
    ValueList,
    ValueView,
    VersionView,
)
from gangflow.xce.rest.schema import (
    API,
    DELEGATION_HEADER,
    ChangeList,
    ChangeView,
    ClaimList,
    ClaimView,
    GroupList,
    GroupView,
    HostList,
    OwnerList,
    QueueView,
    View,
    WhyView,
)

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
    headers: tuple[tuple[str, str], ...] = ()
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


def _plain(spec: Mapping[str, Any] | Document) -> dict[str, Any]:
    return dict(spec) if isinstance(spec, Mapping) else spec.model_dump(mode="json", exclude_defaults=True)


def _named(delegation: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return ((DELEGATION_HEADER, ", ".join(delegation)),) if delegation else ()


def _reader(view: type[View]) -> Callable[[Any], Any]:
    return view.model_validate


# --- groups ---------------------------------------------------------------------------------------------------------


def submit(spec: Mapping[str, Any] | Document, key: str = "", delegation: Sequence[str] = ()) -> Call[Submitted]:
    """Submit a group."""
    return Call("POST", f"{API}/groups", _reader(Submitted), _plain(spec), key=_key(key), headers=_named(delegation))


def submit_job(spec: Mapping[str, Any] | Document, key: str = "", delegation: Sequence[str] = ()) -> Call[Submitted]:
    """Submit a plain job or replica set."""
    return Call("POST", f"{API}/jobs", _reader(Submitted), _plain(spec), key=_key(key), headers=_named(delegation))


def jobs(states: Sequence[str] = (), name: str = "", limit: int | None = None, cursor: str = "") -> Call[GroupList]:
    """A page of plain jobs."""
    query = _query(state=",".join(states), name=name, limit=limit, cursor=cursor)
    return Call("GET", f"{API}/jobs", _reader(GroupList), query=query)


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


def suspend(group: str, message: str = "", key: str = "") -> Call[GroupMoved]:
    """Give everything back, until a resume."""
    return Call("POST", f"{group_path(group)}:suspend", _reader(GroupMoved), {"message": message}, key=_key(key))


def resume(group: str, key: str = "") -> Call[GroupMoved]:
    """Wait for a place again."""
    return Call("POST", f"{group_path(group)}:resume", _reader(GroupMoved), key=_key(key))


def restart_group(group: str, message: str = "", key: str = "") -> Call[GroupMoved]:
    """An operator's restart of the whole group."""
    return Call("POST", f"{group_path(group)}:restart", _reader(GroupMoved), {"message": message}, key=_key(key))


def lift_exclusion(group: str, host: str, key: str = "") -> Call[Done]:
    """The group may use the host again."""
    return Call("DELETE", f"{group_path(group)}/excluded/{quote(host, safe='')}", _reader(Done), key=_key(key))


def why(group: str, level: int = 1) -> Call[WhyView]:
    """The pend reason."""
    return Call("GET", f"{group_path(group)}/why", _reader(WhyView), query=_query(level=level))


def queue(limit: int | None = None, cursor: str = "") -> Call[QueueView]:
    """Groups that wait, in order."""
    return Call("GET", f"{API}/queue", _reader(QueueView), query=_query(limit=limit, cursor=cursor))


# --- members --------------------------------------------------------------------------------------------------------


def scale(group: str, targets: Mapping[str, int], timeout_s: float | None = None, key: str = "") -> Call[ScaleView]:
    """Other targets for some replica sets."""
    body = {"targets": dict(targets), **({} if timeout_s is None else {"timeout": timeout_s})}
    return Call("PATCH", f"{group_path(group)}/members", _reader(ScaleView), body, key=_key(key))


def change(group: str, change: str) -> Call[ChangeView]:
    """One change of targets."""
    return Call("GET", f"{group_path(group)}/changes/{quote(change, safe='')}", _reader(ChangeView))


def changes(group: str, limit: int | None = None, cursor: str = "") -> Call[ChangeList]:
    """The changes of a group's targets that are still kept."""
    return Call("GET", f"{group_path(group)}/changes", _reader(ChangeList), query=_query(limit=limit, cursor=cursor))


def stop_member(group: str, member: str, key: str = "") -> Call[Done]:
    """Stop a member for good."""
    return Call("DELETE", f"{group_path(group)}/members/{quote(member, safe='')}", _reader(Done), key=_key(key))


# --- slots ----------------------------------------------------------------------------------------------------------


def report(group: str, member: str, index: int, incarnation: int, cause: str, message: str = "", key: str = "") -> Call[Done]:
    """A coordinator's verdict about an incarnation."""
    body = {"cause": cause, "incarnation": incarnation, "message": message}
    return Call("POST", f"{slot_path(group, member, index)}:report", _reader(Done), body, key=_key(key))


def restart(group: str, member: str, index: int, incarnation: int, key: str = "") -> Call[Done]:
    """An operator's restart."""
    path = f"{slot_path(group, member, index)}:restart"
    return Call("POST", path, _reader(Done), {"incarnation": incarnation}, key=_key(key))


def drain_slot(group: str, member: str, index: int, incarnation: int, key: str = "") -> Call[Done]:
    """Drain and stop an incarnation."""
    path = f"{slot_path(group, member, index)}:drain"
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


def close_host(host: str, drain: bool = False, message: str = "", key: str = "") -> Call[HostMoved]:
    """No new work there; with `drain`, what runs there is told to leave."""
    action = "drain" if drain else "close"
    return Call("POST", f"{_host_path(host)}:{action}", _reader(HostMoved), {"message": message}, key=_key(key))


def open_host(host: str, key: str = "") -> Call[HostMoved]:
    """New work may go there again."""
    return Call("POST", f"{_host_path(host)}:open", _reader(HostMoved), key=_key(key))


def _host_path(host: str) -> str:
    return f"{API}/hosts/{quote(host, safe='')}"


def create_claim(spec: Mapping[str, Any] | Document, key: str = "", delegation: Sequence[str] = ()) -> Call[Submitted]:
    """A standalone claim."""
    return Call("POST", f"{API}/claims", _reader(Submitted), _plain(spec), key=_key(key), headers=_named(delegation))


def claim(name: str) -> Call[ClaimView]:
    """One claim."""
    return Call("GET", f"{API}/claims/{quote(name, safe='')}", _reader(ClaimView))


def delete_claim(name: str, key: str = "") -> Call[Done]:
    """Release a standalone claim."""
    return Call("DELETE", f"{API}/claims/{quote(name, safe='')}", _reader(Done), key=_key(key))


def owners(limit: int | None = None, cursor: str = "") -> Call[OwnerList]:
    """What each owner's members hold."""
    return Call("GET", f"{API}/owners", _reader(OwnerList), query=_query(limit=limit, cursor=cursor))


def make_token(owner: str = "", kind: str = "owner", ttl_s: float = 86_400.0) -> Call[TokenView]:
    """A token."""
    # Without a key: an answer that is remembered would be a secret in the journal.
    return Call("POST", f"{API}/tokens", _reader(TokenView), {"owner": owner, "kind": kind, "ttl": ttl_s})


def claims(group: str = "", limit: int | None = None, cursor: str = "") -> Call[ClaimList]:
    """Claims, of one group or of all."""
    return Call("GET", f"{API}/claims", _reader(ClaimList), query=_query(group=group, limit=limit, cursor=cursor))


def healthz() -> Call[HealthView]:
    """Does it answer?"""
    return Call("GET", f"{API}/healthz", _reader(HealthView))
