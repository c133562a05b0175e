"""What the REST server needs of a controller: the in-process API, as a protocol, so that a test can put a small one there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from gangflow.errors import GangflowError
from gangflow.xce.core.events import Event
from gangflow.xce.core.inputs import Command, Reply
from gangflow.xce.core.state import State, TaskKey
from gangflow.xce.ports import LogChunk
from gangflow.xce.providers.rules import Catalog


class StampedEvent(Protocol):
    """A durable record with its position."""

    @property
    def seq(self) -> int: ...
    @property
    def at_ms(self) -> int: ...
    @property
    def event(self) -> Event: ...


class Beat(Protocol):
    """The latest heartbeat of a slot."""

    @property
    def member(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def at_ms(self) -> int: ...
    @property
    def body(self) -> Mapping[str, Any]: ...


class ControllerPort(Protocol):
    """A running controller."""

    @property
    def state(self) -> State: ...
    @property
    def seq(self) -> int:
        """The journal position that `state` shows."""
        ...

    @property
    def horizon(self) -> int:
        """The smallest position that `events` can start from."""
        ...

    @property
    def trouble(self) -> GangflowError | None:
        """Why it takes no commands now; None when it does."""
        ...

    @property
    def unknown_until_ms(self) -> int:
        """Before this nobody's silence means anything: the controller has just started."""
        ...

    @property
    def catalog(self) -> Catalog:
        """The claim providers that it has, as admission reads them."""
        ...

    def now_ms(self) -> int: ...
    async def command(self, command: Command) -> Reply:
        """Durable and applied when it answers."""
        ...

    def events(self, after: int) -> AsyncIterator[StampedEvent]:
        """Every durable record after a position, without end; Gone if the journal does not reach back."""
        ...

    async def beat(self, key: TaskKey, body: Mapping[str, Any]) -> None: ...
    def beats(self, group: str) -> Mapping[tuple[str, int], Beat]: ...
    def watch_beats(self, group: str) -> AsyncIterator[Beat]:
        """The newest beats as they are, then every change."""
        ...

    async def read_log(self, task: TaskKey, stream: str, offset: int, limit: int) -> LogChunk:
        """NotFound when nobody keeps it; OSError when the host's agent can not be reached."""
        ...

    async def signal(self, task: TaskKey, number: int) -> None:
        """NotFound when it does not run; OSError when the host's agent can not be reached."""
        ...
