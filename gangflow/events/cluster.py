"""Events of the cluster itself. A group's stream has none of them."""

from __future__ import annotations

from dataclasses import dataclass

from gangflow.events.base import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerStarted(Event):
    """A controller took over the journal."""

    cluster_id: str
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRegistered(Event):
    """A host's agent registered, for the first time or again."""

    host: str
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostChanged(Event):
    """A host was lost, or is fenced: `state` is LOST, FENCED, …"""

    host: str
    state: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostClosed(Event):
    """An operator closed a host for new work; with `draining`, what runs there is moved, too."""

    host: str
    state: str
    message: str = ""
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOpened(Event):
    """An operator opened it again."""

    host: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StraysSeen(Event):
    """An agent holds tasks that the journal has never heard of: shown, not stopped."""

    host: str
    strays: tuple[str, ...] = ()
