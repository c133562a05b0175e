"""A real agent with real tasks in a temporary folder, and what a controller would have heard of it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from gangflow.xce.core.effects import Launch, Prepare, Start, Stop
from gangflow.xce.core.inputs import HostUp, Report, TaskExited, TaskPrepared, TaskStarted
from gangflow.xce.core.state import HostFacts, TaskKey
from gangflow.xce.hosts import marks, proctree
from gangflow.xce.hosts.link import AgentLink, LinkCalls, Position
from gangflow.xce.hosts.settings import AgentOptions

R = TypeVar("R")
DEADLINE_S = 30.0
HOSTS = (HostFacts("h0", "n", port_count=8), HostFacts("h1", "n", port_count=8))


async def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Wait for something to become true; its value."""
    async with asyncio.timeout(DEADLINE_S):
        while not (value := condition()):
            await asyncio.sleep(0.01)
    return value


def processes(prefix: str) -> list[proctree.Process]:
    """Processes whose mark begins so, zombies left out."""
    found = proctree.Scanner().scan().values()
    return [each for each in found if each.state not in "ZX" and any(mark.startswith(prefix) for mark in each.marks)]


def control_groups(agent: str) -> list[Path]:
    """Control groups of an agent that are still there."""
    return list(Path("/sys/fs/cgroup").rglob(f"gangflow-{agent}.*"))


def alive(pid: int) -> bool:
    stat = proctree.read_stat(pid)
    return stat is not None and stat[0] not in "ZX"


class World:
    """One node's agent."""

    def __init__(self, options: AgentOptions | None = None, hosts: Sequence[HostFacts] = HOSTS, renew: bool = True) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="gf-"))
        self.directory = self.home / "n"
        self.options = options or AgentOptions(fence_ms=2_000)
        self.hosts = hosts
        self.renew = renew
        self.reports: list[Report] = []
        self.heard = asyncio.Event()
        self.position = Position("c1", 1, 1)
        self.refuse_reports = False
        self.link = self.new_link()
        self.agents: set[int] = set()
        self._keys = 0

    def new_link(self) -> AgentLink:
        calls = LinkCalls(self._on_reports, lambda: self.position)
        return AgentLink(self.directory, "n", self.hosts, calls, self.options, renew=self.renew)

    async def _on_reports(self, reports: Sequence[Report]) -> None:
        if self.refuse_reports:
            raise RuntimeError("the journal's disk is full")
        self.reports += reports
        self.heard.set()

    async def __aenter__(self) -> World:
        await self.start()
        return self

    async def start(self) -> None:
        await self.link.start()
        await self.report(HostUp, lambda up: up.boot == self.boot)
        self.agents.add(self.agent_pid)

    async def reconnect(self) -> None:
        """A controller's restart, as the agent sees it."""
        await self.link.stop()
        self.position = replace(self.position, term=self.position.term + 1)
        self.reports.clear()
        self.link = self.new_link()
        await self.start()

    async def __aexit__(self, *_: object) -> None:
        self.refuse_reports = False
        try:
            if not self.link.connected:
                await self.link.stop()
                self.link = self.new_link()
                self.position = replace(self.position, term=self.position.term + 1)
                await self.link.start()
                await until(lambda: self.link.connected)
            await self.link.shutdown(grace_ms=0)
            await until(lambda: not processes(marks.life_prefix(self.agent_id)))
        finally:
            for pid in self.agents:
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(self.home, ignore_errors=True)

    # --- the agent --------------------------------------------------------------------------------------------------

    @property
    def boot(self) -> str:
        assert self.link.welcome is not None
        return self.link.welcome.boot

    @property
    def agent_pid(self) -> int:
        assert self.link.welcome is not None
        return self.link.welcome.pid

    @property
    def agent_id(self) -> str:
        return (self.directory / "agent.id").read_text()

    def marked(self, key: TaskKey | None = None) -> list[proctree.Process]:
        """Processes of a task, or of all tasks of this agent, found by their marks."""
        found = processes(marks.life_prefix(self.agent_id))
        return [each for each in found if key is None or any(mark.endswith(f":{key}") for mark in each.marks)]

    def log(self) -> str:
        return (self.directory / "agent.log").read_text()

    # --- tasks ------------------------------------------------------------------------------------------------------

    def key(self, member: str = "m", incarnation: int = 1) -> TaskKey:
        self._keys += 1
        return TaskKey("g1", 1, member, self._keys, incarnation, 0)

    async def report(self, kind: type[R], wanted: Callable[[R], bool] = lambda _: True) -> R:
        """The newest report of a kind that is wanted, as soon as there is one."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for each in reversed(self.reports):
                    if isinstance(each, kind) and wanted(each):
                        return each
                self.heard.clear()
                await self.heard.wait()

    async def of(self, kind: type[R], key: TaskKey) -> R:
        return await self.report(kind, lambda each: each.task == key)  # type: ignore[attr-defined]

    def count(self, kind: type, key: TaskKey) -> int:
        return sum(1 for each in self.reports if isinstance(each, kind) and each.task == key)  # type: ignore[union-attr]

    async def prepare(self, *argv: str, host: str = "h0", key: TaskKey | None = None, **launch: Any) -> TaskKey:
        key = key or self.key()
        await self.link.deliver([Prepare(key, host, Launch(argv, launch.pop("environment", ()), **launch))])
        await self.of(TaskPrepared, key)
        return key

    async def run(self, *argv: str, **launch: Any) -> TaskKey:
        """Prepare and start; returns when its start was reported."""
        key = await self.prepare(*argv, **launch)
        await self.link.deliver([Start(key, launch.get("host", "h0"), self.boot)])
        await self.of(TaskStarted, key)
        return key

    async def shell(self, script: str, **launch: Any) -> TaskKey:
        return await self.run("sh", "-c", script, **launch)

    async def stop(self, key: TaskKey, grace_ms: int = 0) -> TaskExited:
        await self.link.deliver([Stop(key, "h0", grace_ms)])
        return await self.of(TaskExited, key)

    async def output(self, key: TaskKey, wanted: str, stream: str = "stdout") -> str:
        """What a task wrote, once it contains `wanted`."""
        async with asyncio.timeout(DEADLINE_S):
            while wanted not in (text := (await self.link.read_log(key, stream, 0, 1 << 20)).text):
                await asyncio.sleep(0.01)
        return text
