"""`ports.Hosts` over agent links: how a controller without Ray reaches the agents of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from gangflow.xce.core.effects import TaskEffect
from gangflow.xce.core.state import HostFacts, TaskKey
from gangflow.xce.hosts.link import AgentLink, LinkCalls
from gangflow.xce.hosts.settings import AgentOptions
from gangflow.xce.ports import LogChunk, ModelState, ModelWanted


class LocalHosts:
    """One link per node. `root` is the folder that holds one folder for each node (`nodes/` of a cluster's home)."""

    def __init__(self, root: Path, hosts: Sequence[HostFacts], calls: LinkCalls, options: AgentOptions | None = None) -> None:
        by_node: dict[str, list[HostFacts]] = {}
        for host in hosts:
            by_node.setdefault(host.node, []).append(host)
        self.links = {node: AgentLink(root / node, node, mine, calls, options) for node, mine in by_node.items()}

    async def start(self) -> None:
        """Connect to every agent, spawning those that do not run. Raises AgentFailed or JournalRegressed."""
        started = await asyncio.gather(*(link.start() for link in self.links.values()), return_exceptions=True)
        for outcome in started:
            if isinstance(outcome, BaseException):
                await self.stop()
                raise outcome

    async def stop(self) -> None:
        """Let go of the agents; they and their tasks run on."""
        await asyncio.gather(*(link.stop() for link in self.links.values()))

    async def shutdown(self, grace_ms: int | None = None) -> None:
        """Stop all tasks and end the agents."""
        await asyncio.gather(*(link.shutdown(grace_ms) for link in self.links.values() if link.connected))
        await self.stop()

    async def deliver(self, node: str, effects: Sequence[TaskEffect]) -> None:
        await self._link(node).deliver(effects)

    async def read_log(self, node: str, task: TaskKey, stream: str, offset: int, limit: int) -> LogChunk:
        return await self._link(node).read_log(task, stream, offset, limit)

    async def signal(self, node: str, task: TaskKey, number: int) -> None:
        await self._link(node).signal(task, number)

    async def want_model(self, node: str, wanted: ModelWanted) -> ModelState:
        return await self._link(node).want_model(wanted)

    async def drop_model(self, node: str, root: str, pin: str) -> None:
        await self._link(node).drop_model(root, pin)

    async def check_model(self, node: str, root: str, pin: str) -> str:
        return await self._link(node).check_model(root, pin)

    def _link(self, node: str) -> AgentLink:
        try:
            return self.links[node]
        except KeyError:
            raise ConnectionError(f"no agent serves node {node!r}") from None
