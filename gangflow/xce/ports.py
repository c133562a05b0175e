"""What the controller's shell needs from outside: host agents, claim providers, a clock. Adapters live in their own rooms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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
    """What a provider made: the path that tasks see, and the host if it exists on one only."""

    path: str
    host: str = ""


class Provider(Protocol):
    """Provisions claims of one kind. Idempotent by (claim, attempt); a release of what is gone succeeds."""

    async def provision(self, request: Provision) -> Provisioned: ...

    async def release(self, request: Release) -> None: ...
