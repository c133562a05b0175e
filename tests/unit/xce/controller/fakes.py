"""Neighbours of the controller for its tests: hosts that obey or do not, a provider, a clock that is moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from gangflow.errors import JournalRegressed
from gangflow.xce.core.effects import Prepare, Provision, Release, Start, Stop, TaskEffect, Unprepare
from gangflow.xce.core.inputs import Report, TaskExited, TaskPrepared, TaskStarted, TaskUnprepared
from gangflow.xce.core.state import TaskKey
from gangflow.xce.ports import LogChunk, Provisioned

DEADLINE_S = 20.0


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until the condition holds; fails after a deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.002)


class ManualClock:
    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.value = now_ms

    def now_ms(self) -> int:
        return self.value


@dataclass
class FakeHosts:
    """Agents that do what they are told at once, and report it; `lose` deliveries, or be `unreachable`."""

    boot: str = "boot-1"
    report: Callable[[Sequence[Report]], Awaitable[None]] | None = None
    delivered: list[TaskEffect] = field(default_factory=list)
    attempts: int = 0
    lose: int = 0
    """So many deliveries arrive nowhere, without an error."""
    unreachable: bool = False
    objection: str = ""
    """The agent knows a later journal."""
    running: set[TaskKey] = field(default_factory=set)
    places: dict[TaskKey, str] = field(default_factory=dict)
    """The host of every task that was ever started."""
    starts: list[TaskKey] = field(default_factory=list)
    logs: dict[tuple[str, TaskKey], str] = field(default_factory=dict)
    signals: list[tuple[str, TaskKey, int]] = field(default_factory=list)
    deaf: tuple[type, ...] = ()
    """Kinds of effects that are received and not acted on."""

    async def deliver(self, node: str, effects: Sequence[TaskEffect]) -> None:
        self.attempts += 1
        if self.objection:
            raise JournalRegressed(self.objection)
        if self.unreachable:
            raise ConnectionRefusedError(f"{node} does not answer")
        if self.lose > 0:
            self.lose -= 1
            return
        self.delivered.extend(effects)
        if self.report is not None:
            reports = [each for effect in effects if not isinstance(effect, self.deaf) for each in self._carry_out(effect)]
            await self.report(reports)

    def _carry_out(self, effect: TaskEffect) -> list[Report]:
        match effect:
            case Prepare(task, host):
                return [TaskPrepared(task, host, self.boot)]
            case Unprepare(task, host):
                return [TaskUnprepared(task, host)]
            case Start(task, host):
                if task not in self.running:
                    self.running.add(task)
                    self.starts.append(task)
                    self.places[task] = host
                return [TaskStarted(task, host, 4_000 + len(self.starts))]
            case Stop(task, host):
                self.running.discard(task)
                return [TaskExited(task, host)]

    async def read_log(self, node: str, task: TaskKey, stream: str, offset: int, limit: int) -> LogChunk:
        if self.unreachable:
            raise ConnectionRefusedError(node)
        text = self.logs.get((node, task))
        if text is None:
            raise FileNotFoundError(str(task))
        return LogChunk(text[offset : offset + limit], offset, min(offset + limit, len(text)), True)

    async def signal(self, node: str, task: TaskKey, number: int) -> None:
        self.signals.append((node, task, number))


@dataclass
class FakeProvider:
    """Provisions at once; or hangs, or fails so many times."""

    failures: int = 0
    hang: bool = False
    provisioned: list[Provision] = field(default_factory=list)
    released: list[Release] = field(default_factory=list)
    release_tries: int = 0
    hang_releases: int = 0
    stubborn: bool = False
    """What hangs takes no notice of being cancelled either."""
    cancelled: int = 0
    left_behind: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: whatever hangs is let go (at a test's end)."""

    async def provision(self, request: Provision) -> Provisioned:
        self.provisioned.append(request)
        if self.hang:
            try:
                await self._hang()
            finally:
                self.cancelled += 1
        if self.failures:
            self.failures -= 1
            raise OSError("no space left")
        return Provisioned(f"/claims/{request.name}")

    async def release(self, request: Release) -> None:
        self.release_tries += 1
        if self.hang_releases:
            self.hang_releases -= 1
            await self._hang()
        if self.failures:
            self.failures -= 1
            raise OSError("busy")
        self.released.append(request)

    async def _hang(self) -> None:
        while not self.left_behind.is_set():
            try:
                await self.left_behind.wait()
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise
