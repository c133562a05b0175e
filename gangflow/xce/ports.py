"""What the controller's shell needs from outside: host agents, claim providers, a clock. Adapters live in their own rooms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gangflow.xce.core.effects import Provision, Release, TaskEffect
from gangflow.xce.core.state import TaskKey


class Clock(Protocol):
    """Wall time, for the one place that is allowed to look at it."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; never runs backwards within one process."""
        ...


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of a task's log file."""

    text: str
    offset: int
    """Of the first byte of `text` in the file."""
    next_offset: int
    ended: bool
    """The incarnation is over and this is the end of its log."""


class Hosts(Protocol):
    """The way to the host agents, by node. Deliveries may be lost or doubled: the controller re-sends what is still due."""

    async def deliver(self, node: str, effects: Sequence[TaskEffect]) -> None:
        """Hand effects to the node's agent. Raises OSError when the node cannot be reached now."""
        ...

    async def read_log(self, node: str, task: TaskKey, stream: str, offset: int, limit: int) -> LogChunk:
        """Bytes of `stdout` or `stderr`; a negative offset counts from the end. FileNotFoundError when there is none."""
        ...

    async def signal(self, node: str, task: TaskKey, number: int) -> None:
        """Fault injection: send a signal to the task's main process; XCE learns of it only by the exit."""
        ...


@dataclass(frozen=True, slots=True)
class Provisioned:
    """What a provider made: the path that tasks see, and where it exists, if that is not everywhere."""

    path: str
    host: str = ""
    """The only host that it exists on."""
    hosts: tuple[str, ...] = ()
    """The only hosts, where they are several."""


@dataclass(frozen=True, slots=True)
class Held:
    """A claim that is READY, as its provider made it."""

    claim: str
    group: str
    """Empty for a standalone claim."""
    name: str
    provider: str
    path: str
    parameters: tuple[tuple[str, str], ...] = ()
    slot: tuple[str, int] | None = None
    hosts: tuple[str, ...] = ()
    """That it is bound to."""


class Provider(Protocol):
    """Provisions claims of one kind. Idempotent by claim; a release of what is gone succeeds.

    A provider that was cancelled has a few seconds to put things in order. It may have an attribute `rules`
    (`providers.rules.ProviderRules`), and a method `check` (`CheckingProvider`).
    """

    async def provision(self, request: Provision) -> Provisioned:
        """Make it, or find it made. What is raised is told as the claim's message; it is asked again after a pause."""
        ...

    async def release(self, request: Release) -> None:
        """Take it away (or let go of it, if the request says `retain`). What is raised is tried again, without end."""
        ...


@runtime_checkable
class CheckingProvider(Protocol):
    """A provider that can tell whether what it made is still there. It is asked now and then."""

    async def check(self, held: Held) -> str:
        """Empty: it is whole. A text: why it is lost. What is raised says nothing either way."""
        ...


@dataclass(frozen=True, slots=True)
class ModelWanted:
    """A model or data folder that a claim wants in a node's cache."""

    pin: str
    """Whose it is: the cluster's id and the claim's. It stays as long as it is pinned."""
    root: str
    """The cache's folder on the node."""
    limit_mib: int
    """Of all that the cache holds."""
    source: str
    sha256: str
    most_mib: int = 0
    """A larger source is refused; 0: any."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """How far a node's cache is with a model."""

    path: str = ""
    """Where it is, whole and verified; empty: not yet."""
    done_bytes: int = 0
    total_bytes: int = 0
    error: str = ""
    """Why it could not be made."""


class ModelCaches(Protocol):
    """The way to the model caches, by node. Raises OSError when the node cannot be reached now."""

    async def want_model(self, node: str, wanted: ModelWanted) -> ModelState:
        """Pin it, and make it if it is not there; answers within seconds, done or not.

        It is made as long as somebody asks for it again and again.
        """
        ...

    async def drop_model(self, node: str, root: str, pin: str) -> None:
        """The pin goes; what nobody pins may be evicted."""
        ...

    async def check_model(self, node: str, root: str, pin: str) -> str:
        """Empty: what is pinned is there, as it was made (and the pin is renewed). A text: what is wrong."""
        ...
