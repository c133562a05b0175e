"""`ports.Hosts` over actors: how the controller in a Ray cluster reaches the agent of each node, and sees nodes come and go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gangflow.errors import JournalRegressed, SetupError
from gangflow.ray.agents import NAMESPACE, OPEN_S, HostAgentActor
from gangflow.ray.lease import Lease
from gangflow.ray.nodes import Node, NodeNames, describe
from gangflow.specs.cluster import ClusterSpec
from gangflow.xce import codec
from gangflow.xce.core.effects import TaskEffect
from gangflow.xce.core.state import HostFacts, TaskKey
from gangflow.xce.hosts.link import LinkCalls
from gangflow.xce.ports import LogChunk, ModelState, ModelWanted

NODES_S = 5.0
"""Between two looks at which nodes there are."""
ANSWER_S = 10.0
CONFIRM_S = 5.0
"""For an agent's actor to answer that it heard us."""
SHUTDOWN_S = 150.0

_log = logging.getLogger(__name__)
_GONE = (
    ray.exceptions.RayActorError,
    ray.exceptions.ActorUnschedulableError,
    ray.exceptions.ActorUnavailableError,
    ray.exceptions.GetTimeoutError,
)


@dataclass(slots=True)
class _Served:
    """A node with the actor on it."""

    name: str
    ray_id: str
    actor: Any
    asked_at: float
    """When it last registered, or was asked to, on the loop's clock."""
    again: bool = False
    """Ask it to register again."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Its agent was connected once, or refused us, or could not be started."""
    refused: str = ""
    failed: str = ""
    keeper: asyncio.Task[None] | None = None


class RayHosts:
    """One actor per node. A node that joins later is taken in; one that left is let go, and its lease runs out."""

    def __init__(
        self, calls: LinkCalls, spec: ClusterSpec | None, home: Path, controller: str, lease: Lease, *, loopback: bool
    ) -> None:
        """`controller`: its actor's name. `loopback`: every node is this machine, and nobody else needs to reach them."""
        self._calls = calls
        self._spec = spec
        self._home = home
        self._controller = controller
        self._lease = lease
        self._loopback = loopback
        self._names = NodeNames(home / "nodes.json")
        self._served: dict[str, _Served] = {}
        self._looker: asyncio.Task[None] | None = None
        self._taken_in: frozenset[str] = frozenset()
        """Ray ids of the live nodes, when each that has hosts was served last."""

    async def start(self) -> None:
        """Start (or find) every node's actor and wait until its agent is connected; one that does not answer is waited for no
        longer than a minute.

        Raises:
            JournalRegressed: an agent refuses this journal.
            SetupError: no agent could be connected at all.
        """
        await self._take_in()
        served = list(self._served.values())
        try:
            async with asyncio.timeout(OPEN_S):
                await asyncio.gather(*(one.settled.wait() for one in served))
        except TimeoutError:
            slow = [one.name for one in served if not one.settled.is_set()]
            _log.warning("no answer within %g s from %s", OPEN_S, ", ".join(slow))
        self._looker = asyncio.create_task(self._look(), name="nodes")
        if refused := [one.refused for one in served if one.refused]:
            raise JournalRegressed(refused[0])
        if not any(one.settled.is_set() and not one.failed for one in served):
            raise SetupError(next((one.failed for one in served if one.failed), "no node's agent answered"))

    async def stop(self) -> None:
        """Let go of the agents; they, their actors and their tasks stay."""
        tasks = [task for task in (self._looker, *(one.keeper for one in self._served.values())) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def shutdown(self) -> None:
        """Stop all tasks, end the agents and their actors."""
        await self.stop()
        served = list(self._served.values())
        await asyncio.gather(*(self._call(one.actor.shutdown.remote(), SHUTDOWN_S) for one in served), return_exceptions=True)
        for one in served:
            ray.kill(one.actor)

    async def deliver(self, node: str, effects: Sequence[TaskEffect]) -> None:
        await self._call(self._actor(node).deliver.remote([codec.encode(effect) for effect in effects]), ANSWER_S)

    async def read_log(self, node: str, task: TaskKey, stream: str, offset: int, limit: int) -> LogChunk:
        chunk = await self._call(self._actor(node).read_log.remote(asdict(task), stream, offset, limit), ANSWER_S)
        return LogChunk(**chunk)

    async def signal(self, node: str, task: TaskKey, number: int) -> None:
        await self._call(self._actor(node).signal.remote(asdict(task), number), ANSWER_S)

    async def want_model(self, node: str, wanted: ModelWanted) -> ModelState:
        return ModelState(**await self._call(self._actor(node).want_model.remote(asdict(wanted)), ANSWER_S))

    async def drop_model(self, node: str, root: str, pin: str) -> None:
        await self._call(self._actor(node).drop_model.remote(root, pin), ANSWER_S)

    async def check_model(self, node: str, root: str, pin: str) -> str:
        return str(await self._call(self._actor(node).check_model.remote(root, pin), ANSWER_S))

    # --- inside -------------------------------------------------------------------------------------------------------

    def _actor(self, node: str) -> Any:
        try:
            return self._served[node].actor
        except KeyError:
            raise ConnectionError(f"no agent serves node {node!r}") from None

    async def _call(self, reference: Any, limit_s: float) -> Any:
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.wrap_future(reference.future())
        except (*_GONE, TimeoutError) as error:
            raise ConnectionError(f"the node's agent actor does not answer: {type(error).__name__}") from error

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(NODES_S)
            try:
                await self._take_in()
            except Exception:
                _log.warning("Ray's nodes could not be taken in", exc_info=True)

    async def _take_in(self) -> None:
        """Nodes as Ray has them now: an actor on each new one, no more word to those that left."""
        listed = await asyncio.to_thread(ray.nodes)
        alive = frozenset(str(entry["NodeID"]) for entry in listed if entry.get("Alive", False))
        if alive == self._taken_in:
            return
        known = self._names.known
        nodes = self._names.live(listed, ray.get_runtime_context().get_node_id())
        for one in [one for one in self._served.values() if one.ray_id not in alive]:
            _log.warning("node %s left Ray; its hosts are lost when its lease has run out", one.name)
            self._forget(one)
        hosts = describe(self._spec, nodes, known, loopback=self._loopback)
        for node in nodes:
            if node.name not in self._served and node.ray_id in hosts:
                actor = await asyncio.to_thread(self._actor_on, node, hosts[node.ray_id])
                one = self._served[node.name] = _Served(node.name, node.ray_id, actor, asyncio.get_running_loop().time())
                one.keeper = asyncio.create_task(self._keep(one), name=f"confirm {node.name}")
                _log.info("node %s serves %s", node.name, ", ".join(host.name for host in hosts[node.ray_id]))
        if all(node.name in self._served for node in nodes if node.ray_id in hosts):  # none was forgotten meanwhile
            self._taken_in = alive

    def _forget(self, one: _Served) -> None:
        self._taken_in = frozenset()
        if self._served.get(one.name) is one:
            del self._served[one.name]
        if one.keeper is not None and one.keeper is not asyncio.current_task():
            one.keeper.cancel()

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
        return actor.remote(str(folder), node.name, msgspec.json.encode(hosts), self._controller, asdict(self._lease))

    async def _keep(self, one: _Served) -> None:
        """Confirm the node, again and again. An actor that is silent for a whole lease is ended: the node's own Ray may still
        confirm it, and would keep tasks alive that the journal is about to give up."""
        loop = asyncio.get_running_loop()
        heard = loop.time()
        while True:
            if await self._confirm(one):
                heard = loop.time()
            elif loop.time() - heard > max(self._lease.lease_ms / 1000, CONFIRM_S):
                _log.warning("node %s: its agent's actor is silent; another one takes its place", one.name)
                await asyncio.to_thread(ray.kill, one.actor)
                self._forget(one)
                return
            await asyncio.sleep(self._lease.beat_s)

    async def _confirm(self, one: _Served) -> bool:
        """Whether the actor answered."""
        again, patient = one.again, one.again or not one.settled.is_set()
        position = asdict(self._calls.position())
        try:
            answer = await self._call(one.actor.confirm.remote(position, again), OPEN_S if patient else CONFIRM_S)
        except OSError:
            return False
        one.refused, one.failed = answer["refused"], answer["failed"]
        if one.refused:
            self._calls.on_regressed(one.name, JournalRegressed(f"node {one.name}: {one.refused}"))
        # An agent that was given up for lost, or was fenced: the journal must hear what runs there.
        unknown = bool(answer["boot"]) and self._calls.on_alive(one.name, answer["boot"]) is False
        now = asyncio.get_running_loop().time()
        one.again = unknown and not again and now - one.asked_at > self._lease.lease_ms / 1000
        if one.again:
            one.asked_at = now
        if answer["boot"] or one.refused or one.failed:
            one.settled.set()
        return True
