"""The controller as a detached actor: the same runtime as without Ray, with hosts that are actors."""

from __future__ import annotations

import asyncio
import logging
import os
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import ray

from gangflow.errors import GangflowError, JournalRegressed
from gangflow.ray.agents import LoopThread, log_to
from gangflow.ray.hosts import RayHosts
from gangflow.ray.lease import Lease
from gangflow.ray.metrics import GroupMetrics
from gangflow.ray.nodes import LOOPBACK, NodeNames
from gangflow.specs.cluster import ClusterSpec, HostSpec
from gangflow.xce import codec
from gangflow.xce.cluster_home import ClusterHome
from gangflow.xce.runtime import Runtime

START_S = 120.0
TAKE_DOWN_S = 300.0
"""Members' grace included."""
_log = logging.getLogger(__name__)


class ControllerActor:
    """Pinned to its journal's node. Ray starts it again after a crash: it recovers, takes a new term, and adopts what runs."""

    def __init__(self, home: str, name: str, lease: dict[str, int], *, has_cluster: bool, loopback: bool) -> None:
        """`has_cluster`: the home has a description. `loopback`: a Ray of our own, whose only node is this machine."""
        log_to(Path(home) / "controller.log")
        self._home = ClusterHome(Path(home))
        self._name = name
        self._lease = Lease(**lease)
        self._has_cluster = has_cluster
        self._loopback = loopback
        self._ready: Future[dict[str, Any]] = Future()
        self._runtime: Runtime | None = None
        self._taken_down = False
        self._thread = LoopThread("controller")
        self._thread.start(self._run())

    async def ready(self) -> dict[str, Any]:
        """Waits until it serves: {url, token}; or {error, code, exit_code, advice} when it cannot."""
        async with asyncio.timeout(START_S):
            return await asyncio.shield(asyncio.wrap_future(self._ready))

    async def reports(self, raw: list[bytes]) -> None:
        """What an agent reports; returns when it is durable."""
        # They come already while the agents are being connected, before it is ready.
        await self._thread.run(self._report([codec.decode(report, codec.INPUTS) for report in raw]), 60)

    async def _report(self, reports: list[Any]) -> None:
        if self._runtime is None or not self._runtime.controller.taking:
            raise ConnectionError("the controller is just starting")
        await self._runtime.report(reports)

    async def take_down(self) -> None:
        """Cancel every group, end the agents, and stop serving."""
        if self._runtime is not None and not self._taken_down:
            self._taken_down = True
            await self._thread.run(self._runtime.take_down(), TAKE_DOWN_S)

    async def _run(self) -> None:
        try:
            runtime = await self._start()
        except GangflowError as error:
            # Not a crash: a new start would end the same. It stays, to say so to whoever asks.
            _log.error("%s (%s)", error.message, error.advice)
            self._ready.set_result(
                {"error": error.message, "code": error.code, "exit_code": error.exit_code, "advice": error.advice}
            )
            return
        self._ready.set_result({"url": runtime.url, "token": runtime.token, "home": str(self._home.path), "pid": os.getpid()})
        metrics = asyncio.create_task(GroupMetrics(runtime.controller).follow())
        failure = await runtime.failed()
        metrics.cancel()
        if not self._taken_down and not isinstance(failure, JournalRegressed):
            raise failure

    async def _start(self) -> Runtime:
        from gangflow.specs.document import load_cluster

        own = ray.get_runtime_context().get_node_id()
        nodes = NodeNames(self._home.path / "nodes.json").live(ray.nodes(), own)
        spec = load_cluster(self._home.cluster_file) if self._has_cluster else None
        bind = LOOPBACK if self._loopback else next(node.address for node in nodes if node.is_head)
        # What the REST service says of the cluster; the hosts themselves come from the agents.
        shown = spec or ClusterSpec(hosts=[HostSpec(node.name, node=node.name) for node in nodes])
        self._runtime = Runtime(
            self._home,
            shown,
            bind=bind,
            options=self._lease.for_controller,
            make_hosts=lambda calls: RayHosts(calls, spec, self._home.path, self._name, self._lease, loopback=self._loopback),
        )
        await self._runtime.start()
        return self._runtime
