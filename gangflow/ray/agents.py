"""Host agents in a Ray cluster: an actor on each node, around a link to the agent process of that node."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import ray

from gangflow.errors import GangflowError, JournalRegressed
from gangflow.ray.head import without_ray
from gangflow.xce import codec
from gangflow.xce.core.inputs import Report
from gangflow.xce.core.state import HostFacts, TaskKey
from gangflow.xce.hosts.link import AgentLink, LinkCalls, Position
from gangflow.xce.hosts.settings import AgentOptions

T = TypeVar("T")
LEASE_MS = 15_000
"""A node that neither its Ray nor the controller confirmed for this long counts as cut off."""
FENCE_MS = 10_000
CONFIRM_S = 1.0
ANSWER_S = 30.0
NAMESPACE = "gangflow"

_log = logging.getLogger(__name__)


def log_to(file: Path) -> None:
    """An actor's log in the cluster's home: Ray's own log folder is gone with Ray."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    form = "%(asctime)s %(name)s %(levelname)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, handlers=[logging.FileHandler(file, delay=True)])


class LoopThread:
    """An event loop of its own beside an actor's threads."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name=name, daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T], limit_s: float = ANSWER_S) -> T:
        """Run in the loop, and wait for it here."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(limit_s)

    def start(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run in the loop; a failure ends this process, so that Ray starts the actor again, rather than going unseen."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        future.add_done_callback(_fatal)
        return future


def _fatal(future: Future[Any]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        _log.critical("the actor cannot go on", exc_info=error)
        logging.shutdown()
        os._exit(70)


class HostAgentActor:
    """Runs on the node whose agent it speaks to. Killing it touches no task; the next one finds the agent."""

    def __init__(self, folder: str, node: str, hosts: bytes, controller: str) -> None:
        self._folder = Path(folder)
        log_to(self._folder / "link.log")
        self._node = node
        self._facts = tuple(msgspec.json.decode(hosts, type=list[HostFacts]))
        self._controller = controller
        self._position = Position("", 0, 0)
        self._confirmed = time.monotonic()
        self._boot = ""
        self._refused = ""
        self._link: AgentLink | None = None
        self._opening = threading.Lock()
        self._thread = LoopThread("agent-link")

    def confirm(self, position: dict[str, Any]) -> dict[str, str]:
        """The controller is there, and its journal stands here. Connects to the agent the first time.

        Returns {boot, refused}: `refused` says why the agent does not accept this journal.
        """
        self._position = Position(**position)
        self._confirmed = time.monotonic()
        with self._opening:
            if self._link is None and not self._refused:
                self._thread.run(self._open(), 60)
        return {"boot": self._boot, "refused": self._refused}

    async def _open(self) -> None:
        calls = LinkCalls(
            on_reports=self._forward,
            position=lambda: self._position,
            on_regressed=lambda _node, error: self._regressed(error),
        )
        link = AgentLink(
            self._folder,
            self._node,
            self._facts,
            calls,
            AgentOptions(LEASE_MS, FENCE_MS),
            renew=False,
            environment=without_ray(os.environ),
        )
        try:
            await link.start()
        except JournalRegressed as error:
            self._regressed(error)
            return
        self._link = link
        self._thread.start(self._renew(link))

    def _regressed(self, error: JournalRegressed) -> None:
        self._refused = error.message

    async def _renew(self, link: AgentLink) -> None:
        """The agent's lease, as long as this node's Ray or the controller confirmed the node not long ago."""
        while True:
            if time.monotonic() - self._confirmed > CONFIRM_S and await asyncio.to_thread(_ray_confirms):
                self._confirmed = time.monotonic()
            if time.monotonic() - self._confirmed < LEASE_MS / 1000:
                try:
                    self._boot = await link.renew()
                except OSError:
                    self._boot = ""
            await asyncio.sleep(CONFIRM_S)

    async def _forward(self, reports: Sequence[Report]) -> None:
        controller = await asyncio.to_thread(ray.get_actor, self._controller, NAMESPACE)
        await asyncio.wrap_future(controller.reports.remote([codec.encode(report) for report in reports]).future())

    def deliver(self, effects: list[bytes]) -> None:
        """Hand effects to the agent. Raises OSError when it cannot be reached now."""
        self._thread.run(self._connected().deliver([codec.decode(effect, codec.EFFECTS) for effect in effects]))

    def read_log(self, task: dict[str, Any], stream: str, offset: int, limit: int) -> dict[str, Any]:
        """A piece of a log."""
        chunk = self._thread.run(self._connected().read_log(TaskKey(**task), stream, offset, limit))
        return asdict(chunk)

    def signal(self, task: dict[str, Any], number: int) -> None:
        """Fault injection."""
        self._thread.run(self._connected().signal(TaskKey(**task), number))

    def shutdown(self) -> None:
        """Stop every task and end the agent."""
        if self._link is not None:
            self._thread.run(self._link.shutdown(), 120)

    def _connected(self) -> AgentLink:
        if self._link is None:
            raise ConnectionError(f"the agent of node {self._node} is not connected yet")
        return self._link


def _ray_confirms() -> bool:
    """Whether the GCS answers and still counts this node as alive."""
    own = ray.get_runtime_context().get_node_id()
    try:
        return any(node["NodeID"] == own and node["Alive"] for node in ray.nodes())
    except (ray.exceptions.RayError, OSError, GangflowError):
        return False
