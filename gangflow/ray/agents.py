"""Host agents in a Ray cluster: an actor on each node, around a link to the agent process of that node."""

from __future__ import annotations

import asyncio
import gc
import itertools
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

from gangflow.errors import JournalRegressed, SetupError
from gangflow.ray.head import without_ray
from gangflow.ray.lease import Lease
from gangflow.xce import codec
from gangflow.xce.core.inputs import Report
from gangflow.xce.core.state import HostFacts, TaskKey
from gangflow.xce.hosts.link import AgentLink, LinkCalls, Position
from gangflow.xce.ports import ModelWanted

T = TypeVar("T")
ANSWER_S = 30.0
OPEN_S = 60.0
"""For an agent to be started and registered."""
NAMESPACE = "gangflow"
AWAY_PAUSE_S = 0.5
"""Between two tries to hand reports to a controller that is away."""
AWAY_BEATS = 3
"""After so many beats without the controller, the node's own Ray is asked."""

_log = logging.getLogger(__name__)


def log_to(file: Path) -> None:
    """An actor's log in the cluster's home: Ray's own log folder is gone with Ray."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    form = "%(asctime)s %(name)s %(levelname)s %(message)s"
    # `force`: Ray has put a handler there already, and then nothing would be done.
    logging.basicConfig(level=logging.INFO, format=form, handlers=[logging.FileHandler(file, delay=True)], force=True)


class LoopThread:
    """An event loop of its own beside the one that Ray runs an actor's methods in.

    An actor that has one coroutine method is an asyncio actor, and a plain method of it that blocks would block all the others:
    so every method that waits is a coroutine, and waits through `run`.
    """

    def __init__(self, name: str) -> None:
        # What Ray and we have imported lives as long as the process: an idle one need not search it for garbage for ever.
        gc.collect()
        gc.freeze()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name=name, daemon=True).start()

    async def run(self, work: Coroutine[Any, Any, T], limit_s: float = ANSWER_S) -> T:
        """Run in the loop, and wait for it here. TimeoutError when it takes longer; then it is given up."""
        async with asyncio.timeout(limit_s):
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

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

    def __init__(self, folder: str, node: str, hosts: bytes, controller: str, lease: dict[str, int]) -> None:
        self._folder = Path(folder)
        log_to(self._folder / "link.log")
        self._node = node
        self._facts = tuple(msgspec.json.decode(hosts, type=list[HostFacts]))
        self._controller = controller
        self._lease = Lease(**lease)
        self._position = Position("", 0, 0)
        self._said = ("", 0)
        """(cluster_id, term) of the last hello."""
        self._confirmed = time.monotonic()
        self._boot = ""
        self._refused = ""
        self._link: AgentLink | None = None
        self._opening = False
        self._thread = LoopThread("agent-link")
        self._thread.start(self._renew())

    async def confirm(self, position: dict[str, Any], again: bool = False) -> dict[str, str]:
        """The controller is there, and its journal stands here. To a new controller (or `again`) the agent says what runs.

        Returns {boot, refused, failed}: why the agent does not accept this journal, why it could not be started; all three are
        empty while somebody else is just connecting it.
        """
        self._position = Position(**position)
        self._confirmed = time.monotonic()
        failed = ""
        who = (self._position.cluster_id, self._position.term)
        if not self._opening and (again or who != self._said or (self._link is None and not self._refused)):
            self._opening, self._said = True, who
            try:
                await self._thread.run(self._open(), OPEN_S)
            except SetupError as error:
                _log.warning("%s", error.message)
                failed = error.message
            finally:
                self._opening = False
        return {"boot": self._boot, "refused": self._refused, "failed": failed}

    async def _open(self) -> None:
        """Say hello (once more)."""
        former, self._link, self._boot, self._refused = self._link, None, "", ""
        if former is not None:
            await former.stop()
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
            self._lease.for_agent,
            renew=False,
            environment=without_ray(os.environ),
        )
        try:
            await link.start()
        except JournalRegressed as error:
            self._regressed(error)
            return
        self._link = link
        await self._renew_once(link)

    def _regressed(self, error: JournalRegressed) -> None:
        _log.error("%s", error.message)
        self._refused = error.message

    async def _renew(self) -> None:
        """The agent's lease, as long as this node's Ray or the controller confirmed the node not long ago."""
        beat_s = self._lease.beat_s
        while True:
            await asyncio.sleep(beat_s)
            if time.monotonic() - self._confirmed > AWAY_BEATS * beat_s and await asyncio.to_thread(_ray_confirms):
                self._confirmed = time.monotonic()
            link = self._link
            if link is not None and time.monotonic() - self._confirmed < self._lease.lease_ms / 1000:
                await self._renew_once(link)

    async def _renew_once(self, link: AgentLink) -> None:
        try:
            boot = await link.renew()
        except (OSError, TimeoutError):
            boot = ""
        if link is self._link:
            self._boot = boot

    async def _forward(self, reports: Sequence[Report]) -> None:
        """Until the controller has them: it may be away."""
        raw = [codec.encode(report) for report in reports]
        for attempt in itertools.count():
            try:
                controller = await asyncio.to_thread(ray.get_actor, self._controller, NAMESPACE)
                await asyncio.wrap_future(controller.reports.remote(raw).future())
                return
            except (ray.exceptions.RayError, ValueError) as error:
                if attempt == 0:
                    _log.warning("the controller takes no reports now: %s", str(error).splitlines()[-1:])
                await asyncio.sleep(AWAY_PAUSE_S)

    async def deliver(self, effects: list[bytes]) -> None:
        """Hand effects to the agent. Raises OSError when it cannot be reached now."""
        await self._thread.run(self._connected().deliver([codec.decode(effect, codec.EFFECTS) for effect in effects]))

    async def read_log(self, task: dict[str, Any], stream: str, offset: int, limit: int) -> dict[str, Any]:
        """A piece of a log."""
        chunk = await self._thread.run(self._connected().read_log(TaskKey(**task), stream, offset, limit))
        return asdict(chunk)

    async def signal(self, task: dict[str, Any], number: int) -> None:
        """Fault injection."""
        await self._thread.run(self._connected().signal(TaskKey(**task), number))

    async def want_model(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """A model in this node's cache, or how far it is."""
        return asdict(await self._thread.run(self._connected().want_model(ModelWanted(**wanted))))

    async def drop_model(self, root: str, pin: str) -> None:
        """A claim's pin goes."""
        await self._thread.run(self._connected().drop_model(root, pin))

    async def check_model(self, root: str, pin: str) -> str:
        """What is wrong with what a claim pinned; empty: nothing."""
        return await self._thread.run(self._connected().check_model(root, pin))

    async def shutdown(self) -> None:
        """Stop every task and end the agent."""
        if self._link is not None:
            await self._thread.run(self._link.shutdown(), 120)

    def _connected(self) -> AgentLink:
        if self._link is None:
            raise ConnectionError(f"the agent of node {self._node} is not connected yet")
        return self._link


def _ray_confirms() -> bool:
    """Whether the GCS answers and still counts this node as alive."""
    try:
        own = ray.get_runtime_context().get_node_id()
        return any(node["NodeID"] == own and node["Alive"] for node in ray.nodes())
    except Exception:  # whatever it is, it confirms nothing
        return False
