"""What an engine admits, what runs in it, and which policy it has: the state behind the verbs, on one event loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gangflow.channel import WeightsId

P = TypeVar("P")


class Aborted(Exception):
    """The request was ended by `abort` before it had an answer."""


@dataclass(frozen=True, slots=True)
class Loaded(Generic[P]):
    """A policy and what it is: one object, so that a swap is one assignment and never half done."""

    policy: P
    weights: WeightsId


@dataclass(slots=True)
class Gate(Generic[P]):
    """Admission and running work are two facts: a paused engine may still be finishing what it began."""

    loaded: Loaded[P] | None = None
    admitting: bool = False
    """False at the start: nothing is generated before weights were loaded and admission resumed."""
    running: set[asyncio.Future[None]] = field(default_factory=set)
    """One per request that runs; it is resolved to abort that request."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.idle.set()

    def enter(self) -> asyncio.Future[None]:
        """A request begins."""
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.running.add(ticket)
        self.idle.clear()
        return ticket

    def leave(self, ticket: asyncio.Future[None]) -> None:
        self.running.discard(ticket)
        if not self.running:
            self.idle.set()

    def abort(self) -> int:
        """End what runs; returns how many requests."""
        tickets = [ticket for ticket in self.running if not ticket.done()]
        for ticket in tickets:
            ticket.set_result(None)
        return len(tickets)

    async def pause(self, abort: bool) -> None:
        """Admit nothing more, and wait till nothing runs."""
        self.admitting = False
        if abort:
            self.abort()
        await self.idle.wait()
