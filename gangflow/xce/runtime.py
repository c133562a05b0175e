"""An embedded XCE in one process: journal, controller, host agents, claim providers, REST service, traces, put together.

`python -m gangflow.xce.serve` runs one without Ray; Ray's controller actor runs the same with hosts of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import uvicorn

from gangflow.errors import GangflowError, JournalRegressed, SetupError
from gangflow.xce.cluster_home import Card, ClusterHome
from gangflow.xce.controller import Controller, Options
from gangflow.xce.controller.liveness import STANDING
from gangflow.xce.core.inputs import EndGroup, HostGone, HostUp, Report
from gangflow.xce.core.state import ClaimState, GroupState, HostFacts
from gangflow.xce.hosts.link import LinkCalls, Position
from gangflow.xce.hosts.local import LocalHosts
from gangflow.xce.inventory import host_facts, this_machine
from gangflow.xce.journal.sqlite import SqliteJournal
from gangflow.xce.ports import Hosts, ModelCaches, Provider
from gangflow.xce.providers.model import Models
from gangflow.xce.providers.registry import standard_providers
from gangflow.xce.rest.server import check_bind, create_app, end_streams
from gangflow.xce.rest.tokens import Tokens

if TYPE_CHECKING:
    from gangflow.specs.cluster import ClusterSpec
    from gangflow.telemetry.recorder import Recorder

_log = logging.getLogger(__name__)
TICK_S = 1.0
SHUTDOWN_S = 2
"""Requests under way have this long to end when the service stops."""
TAKE_DOWN_S = 60.0
"""Beyond the members' own grace: how long taking everything down may wait for agents and claim providers."""


class ManagedHosts(Hosts, ModelCaches, Protocol):
    """Hosts with a life: how a runtime starts and ends its agents."""

    async def start(self) -> None:
        """Connect to every agent. Raises JournalRegressed if one refuses this journal."""

    async def stop(self) -> None:
        """Let go of the agents; they and their tasks run on."""

    async def shutdown(self) -> None:
        """Stop all tasks and end the agents."""


class Runtime:
    """One embedded XCE. `start` and `stop`; `take_down` ends its groups and agents too."""

    def __init__(
        self,
        home: ClusterHome,
        cluster: ClusterSpec,
        *,
        bind: str = "127.0.0.1",
        port: int = 0,
        options: Options | None = None,
        make_hosts: Callable[[LinkCalls], ManagedHosts] | None = None,
        providers: Mapping[str, Provider] | None = None,
    ) -> None:
        """`port` 0: the one that the last controller of this home had if it is free, since running members know it; else any.
        Raises a JournalError, or SetupError when the address cannot be listened on."""
        self.home = home
        self.token = home.token()
        check_bind(bind, self.token)
        self._cluster = cluster
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._recorder: Recorder | None = None
        calls = LinkCalls(
            on_reports=self.report,
            position=lambda: Position(*self.controller.position),
            on_alive=self._alive,
            on_regressed=self._regressed,
        )
        self.hosts: ManagedHosts = (
            make_hosts(calls) if make_hosts is not None else LocalHosts(home.nodes, _facts(cluster), calls)
        )
        from gangflow.telemetry.spans import traceparent

        journal = SqliteJournal(home.journal)
        try:
            self._socket = _listen(bind, port, home.card())
        except BaseException:
            journal.close()
            raise
        address, self.port = self._socket.getsockname()[:2]
        reached = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(address, f"[{address}]" if ":" in address else address)
        self.url = f"http://{reached}:{self.port}"
        self.controller = Controller(
            journal,
            self.hosts,
            providers if providers is not None else standard_providers(home.path, self._models()),
            replace(
                options or Options(),
                url=self.url,
                token=self.token,
                home=home.path,
                levels=cluster.levels,
                retention_ms=cluster.journal.keep,
                retention_bytes=cluster.journal.keep_size * 2**20,
                task_token=Tokens(self.token).task_token,
                traceparent=traceparent,
            ),
        )

    async def start(self) -> None:
        """Recover, connect to the agents, serve. An agent that refuses this journal leaves it serving reads only."""
        try:
            await self.controller.start()
            try:
                await self.hosts.start()
            except JournalRegressed as error:
                self.controller.refuse_mutations(error)
            await self._serve()
        except BaseException:
            await self.stop()
            raise
        card = Card(self.url, os.getpid(), self.controller.cluster_id, self.controller.now_ms())
        await asyncio.to_thread(self.home.write_card, card)
        self._record()

    async def stop(self) -> None:
        """Stop serving and let go of everything; members, agents and claims stay as they are."""
        if self._server is not None and self._serving is not None:
            end_streams(self._app)
            self._server.end()
            await asyncio.gather(self._serving, return_exceptions=True)
        if self._recorder is not None and self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
            await asyncio.to_thread(self._recorder.close)
        await self.hosts.stop()
        await self.controller.stop()
        self._socket.close()

    async def take_down(self) -> None:
        """Cancel every group, wait until nothing of them is left, end the agents, and stop."""
        controller = self.controller
        grace_ms = 0
        try:
            for group in list(controller.state.groups.values()):
                if not group.state.terminal:
                    grace_ms = max(grace_ms, *(member.grace_ms for member in group.plan.members))
                    await controller.command(EndGroup(group.id, GroupState.CANCELLED, "user", "the cluster is taken down"))
            async with asyncio.timeout(grace_ms / 1000 + TAKE_DOWN_S):
                await self._until_ended()
        except (GangflowError, TimeoutError) as error:
            _log.warning("not everything could be ended in order (%r); the agents are stopped all the same", error)
        try:
            await self.hosts.shutdown()
        except (OSError, TimeoutError) as error:
            _log.warning("an agent could not be shut down: %s", error)
        await self.stop()

    async def report(self, reports: Sequence[Report]) -> None:
        """What an agent says, durable when this returns. It registers all its hosts in one call: hosts of its node that it
        does not serve any more (another cluster description) are gone, and nothing of them runs."""
        served: dict[str, set[str]] = {}
        for each in reports:
            if isinstance(each, HostUp):
                served.setdefault(each.facts.node, set()).add(each.facts.name)
        gone = [
            HostGone(name)
            for name, host in self.controller.state.hosts.items()
            if host.facts.node in served and name not in served[host.facts.node] and host.state in STANDING
        ]
        await self.controller.report([*reports, *gone])

    async def failed(self) -> GangflowError:
        """Returns when it cannot go on, with the reason: the controller's, or that its service ended."""
        assert self._serving is not None, "it has not been started"
        controller = asyncio.create_task(self.controller.failed(), name="failed")
        either: set[asyncio.Task[Any]] = {controller, self._serving}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return controller.result() if controller.done() else SetupError("the REST service ended")
        finally:
            controller.cancel()

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        from gangflow.telemetry.recorder import Recorder

        self._recorder = Recorder(self.home.traces)
        self._app = create_app(self.controller, admin_token=self.token, cluster=self._cluster, recorder=self._recorder)
        config = uvicorn.Config(
            self._app, log_level="warning", access_log=False, timeout_graceful_shutdown=SHUTDOWN_S, lifespan="off"
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve([self._socket]), name="rest")
        while not self._server.started:
            if self._serving.done():
                raise SetupError(f"the REST service did not start: {self._serving.exception()}")
            await asyncio.sleep(0.005)

    def _record(self) -> None:
        assert self._recorder is not None, "the service has it"
        # From the beginning of what is kept: spans that a restart finds still open began there.
        follow = self._recorder.follow(lambda: self.controller.events(self.controller.horizon))
        self._following = asyncio.create_task(follow, name="traces")

    def _models(self) -> Models:
        """How claims of the `model` provider reach the caches of this cluster's nodes."""
        cache = self._cluster.cache
        return Models(
            caches=self.hosts,
            node_of=lambda host: self.controller.node_of(host),  # noqa: PLW0108 — the controller is made after this
            cluster_id=lambda: self.controller.cluster_id,
            root=cache.path or str(self.home.path / "cache"),
            limit_mib=cache.size,
        )

    # The links are made before the controller that they speak to; nothing comes through them before `start`.

    def _regressed(self, node: str, error: JournalRegressed) -> None:
        self.controller.refuse_mutations(error)

    def _alive(self, node: str, boot: str) -> bool:
        return self.controller.renew(node, boot)

    async def _until_ended(self) -> None:
        def over() -> bool:
            state = self.controller.state
            groups = all(group.state.terminal for group in state.groups.values())
            return groups and not any(claim.state is ClaimState.RELEASING for claim in state.claims.values())

        if over():
            return
        async for _ in self.controller.events(self.controller.seq):
            if over():
                return


class _Server(uvicorn.Server):
    """Uvicorn, without its own ideas about signals: the process has other things to put in order than HTTP. And without
    looking ten times a second whether it should end: an idle controller costs next to nothing."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Stop serving."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        # 0: each tick renews the `date` header.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._ending.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _facts(cluster: ClusterSpec) -> tuple[HostFacts, ...]:
    """The cluster's hosts, all on this machine; what a description leaves out is measured here."""
    nodes = {host.node for host in cluster.hosts}
    return host_facts(cluster, {nodes.pop(): this_machine()} if len(nodes) == 1 else None)


def _listen(bind: str, port: int, before: Card | None) -> socket.socket:
    """A listening socket. Members that run know the former port: it is tried first when any would do."""
    wanted = [port]
    if port == 0 and before is not None:
        former = before.url.rpartition(":")[2]
        wanted.insert(0, int(former) if former.isdigit() else 0)
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    for number in wanted:
        try:
            made = socket.create_server((bind, number), family=family, backlog=512)
        except OSError as error:
            failure = error
        else:
            # Inherited by every connection. asyncio sees to it only for sockets made with IPPROTO_TCP, which this is not;
            # without it an answer's body waits 40 ms for the acknowledgement of its head.
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made
    raise SetupError(f"cannot listen on {bind}:{port}: {failure.strerror}", remedy="choose another --port") from failure
