"""`ports.Hosts` over actors: how the controller in a Ray cluster reaches the agent of each node, and sees nodes come and go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gangflow.errors import JournalRegressed
from gangflow.ray.agents import NAMESPACE, HostAgentActor
from gangflow.ray.nodes import Node, describe, live_nodes
from gangflow.specs.cluster import ClusterSpec
from gangflow.xce import codec
from gangflow.xce.core.effects import TaskEffect
from gangflow.xce.core.state import HostFacts, TaskKey
from gangflow.xce.hosts.link import LinkCalls
from gangflow.xce.ports import LogChunk

PING_S = 1.0
"""Between two confirmations of a node."""
NODES_S = 2.0
"""Between two looks at which nodes there are."""
ANSWER_S = 10.0
START_S = 60.0

_log = logging.getLogger(__name__)
_GONE = (ray.exceptions.RayActorError, ray.exceptions.ActorUnschedulableError, ray.exceptions.GetTimeoutError)


class RayHosts:
    """One actor per node; a node that joins later is taken in."""

    def __init__(self, calls: LinkCalls, spec: ClusterSpec | None, home: Path, controller: str) -> None:
        self._calls = calls
        self._spec = spec
        self._home = home
        self._controller = controller
        self._actors: dict[str, Any] = {}
        """Node name → handle."""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start (or find) every node's actor and wait until its agent is connected. Raises JournalRegressed."""
        await self._take_in()
        outcomes = await asyncio.gather(*(self._confirm(node, START_S) for node in list(self._actors)))
        refused = [reason for reason in outcomes if reason]
        if refused:
            raise JournalRegressed(refused[0])
        self._tasks = [asyncio.create_task(self._ping()), asyncio.create_task(self._look())]

    async def stop(self) -> None:
        """Let go of the agents; they, their actors and their tasks stay."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def shutdown(self) -> None:
        """Stop all tasks, end the agents and their actors."""
        await asyncio.gather(
            *(self._call(actor.shutdown.remote(), 150) for actor in self._actors.values()), return_exceptions=True
        )
        for actor in self._actors.values():
            ray.kill(actor)
        await self.stop()

    async def deliver(self, node: str, effects: Sequence[TaskEffect]) -> None:
        await self._call(self._actor(node).deliver.remote([codec.encode(effect) for effect in effects]), ANSWER_S)

    async def read_log(self, node: str, task: TaskKey, stream: str, offset: int, limit: int) -> LogChunk:
        chunk = await self._call(self._actor(node).read_log.remote(asdict(task), stream, offset, limit), ANSWER_S)
        return LogChunk(**chunk)

    async def signal(self, node: str, task: TaskKey, number: int) -> None:
        await self._call(self._actor(node).signal.remote(asdict(task), number), ANSWER_S)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _actor(self, node: str) -> Any:
        try:
            return self._actors[node]
        except KeyError:
            raise ConnectionError(f"no agent serves node {node!r}") from None

    async def _call(self, reference: Any, limit_s: float) -> Any:
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.wrap_future(reference.future())
        except (*_GONE, TimeoutError) as error:
            raise ConnectionError(f"the node's agent actor does not answer: {type(error).__name__}") from error

    async def _take_in(self) -> None:
        own = ray.get_runtime_context().get_node_id()
        nodes = await asyncio.to_thread(lambda: live_nodes(ray.nodes(), own))
        hosts = describe(self._spec, nodes)
        for node in nodes:
            if node.name not in self._actors and node.ray_id in hosts:
                self._actors[node.name] = await asyncio.to_thread(self._actor_on, node, hosts[node.ray_id])

    def _actor_on(self, node: Node, hosts: tuple[HostFacts, ...]) -> Any:
        actor = ray.remote(HostAgentActor).options(
            name=f"agent-{self._controller}-{node.ray_id[:12]}",
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            max_concurrency=16,
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.ray_id, soft=False),
        )
        folder = self._home / "nodes" / node.name
        return actor.remote(str(folder), node.name, msgspec.json.encode(hosts), self._controller)

    async def _confirm(self, node: str, limit_s: float) -> str:
        """Confirm one node; why its agent refuses us, if it does."""
        position = asdict(self._calls.position())
        try:
            answer = await self._call(self._actors[node].confirm.remote(position), limit_s)
        except OSError:
            return ""
        if answer["boot"]:
            self._calls.on_alive(node, answer["boot"])
        return str(answer["refused"])

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_S)
            for node, refused in zip(
                list(self._actors),
                await asyncio.gather(*(self._confirm(node, 4 * PING_S) for node in self._actors)),
                strict=True,
            ):
                if refused:
                    self._calls.on_regressed(node, JournalRegressed(f"node {node}: {refused}"))

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(NODES_S)
            try:
                known = set(self._actors)
                await self._take_in()
                for node in sorted(set(self._actors) - known):
                    _log.info("node %s joined", node)
            except Exception:
                _log.warning("Ray's nodes could not be listed", exc_info=True)
