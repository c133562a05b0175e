"""The controller's end of an agent's socket: starts the agent if need be, says hello, reconnects by itself."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from gangflow.errors import JournalRegressed, SetupError
from gangflow.xce import codec
from gangflow.xce.core.effects import TaskEffect
from gangflow.xce.core.inputs import HostUp, Report
from gangflow.xce.core.state import HostFacts, TaskKey
from gangflow.xce.hosts import older, wire
from gangflow.xce.hosts.outbox import TASK_REPORTS
from gangflow.xce.hosts.settings import BEAT_S, BUSY, PROTOCOL, AgentOptions
from gangflow.xce.hosts.standing import write_atomically
from gangflow.xce.ports import LogChunk, ModelState, ModelWanted

_log = logging.getLogger(__name__)
START_LIMIT_S = 30.0
"""For an agent to listen after its start; it may first have to take down what a former one left."""
ANSWER_LIMIT_S = 10.0
"""For any answer of the agent."""
REGISTER_LIMIT_S = 5.0
"""For the owner to take the first reports."""
RETRY_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Pauses between tries to connect; the last one repeats."""


class AgentFailed(SetupError):
    """The agent could not be started."""

    code = "agent"
    remedy = "see agent.log in the agent's folder"


@dataclass(frozen=True, slots=True)
class Position:
    """Where the controller's journal stands."""

    cluster_id: str
    term: int
    seq: int


@dataclass(slots=True)
class LinkCalls:
    """What a link tells its owner. All run in the link's loop."""

    on_reports: Callable[[Sequence[Report]], Awaitable[None]]
    """Reports in order, first and after each reconnection those that nobody had confirmed, then a HostUp for each host. They
    are acknowledged to the agent when this returns, so return when they are durable. If it raises, they come again."""
    position: Callable[[], Position]
    on_alive: Callable[[str, str], object] = lambda node, boot: None
    """(node, boot): the agent answered a renewal just now. If this returns False, the link says hello again, and HostUp
    follows: for a controller that had given the node up."""
    on_regressed: Callable[[str, JournalRegressed], None] = lambda node, error: None
    """The agent refuses this journal; the link gives up."""


@dataclass(slots=True)
class _Session:
    """One connection that was welcomed."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    welcome: wire.Welcome
    protocol: int = PROTOCOL
    """The agent's; an earlier one than ours if it holds tasks of before an upgrade."""
    answers: dict[int, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)
    registered: asyncio.Event = field(default_factory=asyncio.Event)
    """The controller has taken what was pending, and the HostUps."""


class AgentLink:
    """One agent, as its controller sees it. `start` connects (and spawns); afterwards the link keeps the connection by
    itself."""

    def __init__(
        self,
        directory: Path,
        node: str,
        hosts: Sequence[HostFacts],
        calls: LinkCalls,
        options: AgentOptions | None = None,
        *,
        may_spawn: bool = True,
        renew: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`environment`: what a spawned agent, and with it every task, starts from; None: this process's own."""
        self.directory = directory.resolve()
        self.node = node
        self._hosts = tuple(hosts)
        self._calls = calls
        self._options = options or AgentOptions()
        self._may_spawn = may_spawn
        self._renew = renew
        self._environment = environment
        self._numbers = itertools.count(1)
        self._session: _Session | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._reports: asyncio.Queue[tuple[int, Report]] = asyncio.Queue()

    @property
    def connected(self) -> bool:
        return self._session is not None

    @property
    def welcome(self) -> wire.Welcome | None:
        """What the agent said at the last hello; None while not connected."""
        return self._session.welcome if self._session else None

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect, spawning the agent if nobody listens, and wait till its hosts are registered (not longer than
        REGISTER_LIMIT_S: an owner that cannot take reports now gets them later).

        Raises AgentFailed, or JournalRegressed when the agent refuses us.
        """
        deadline = asyncio.get_running_loop().time() + START_LIMIT_S
        for attempt in itertools.count():
            try:
                session = await self._open()
                break
            except AgentFailed:
                raise
            except OSError as error:  # a former agent may be just ending
                if asyncio.get_running_loop().time() > deadline:
                    raise AgentFailed(f"the agent of node {self.node} does not answer: {error}") from error
                await asyncio.sleep(_pause(attempt))
        self._keeper = asyncio.ensure_future(self._keep(session))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REGISTER_LIMIT_S):
                await session.registered.wait()

    async def stop(self) -> None:
        """Let go of the agent; it and its tasks run on."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None

    async def shutdown(self, grace_ms: int | None = None, limit_s: float = 60.0) -> None:
        """Stop all tasks (with their own grace, or at most this one) and end the agent; returns when it is gone. Raises OSError
        if it cannot be reached, TimeoutError if that takes longer."""
        if self._session is None:
            raise ConnectionError(f"the agent of node {self.node} cannot be reached")
        agent = os.pidfd_open(self._session.welcome.pid)
        try:
            with contextlib.suppress(ConnectionError):  # its answer may be lost in its end
                await self._ask("shutdown", limit_s, grace_ms=grace_ms)
            await self.stop()  # before it is gone, lest another one is started
            await _readable(agent, limit_s)
        finally:
            os.close(agent)

    # --- requests ---------------------------------------------------------------------------------------------------

    async def deliver(self, effects: Sequence[TaskEffect]) -> None:
        """Hand effects over. Raises OSError when the agent cannot be reached now."""
        if self._session is not None and self._session.protocol < PROTOCOL:
            effects, refused = older.understood(effects)
            for refusal in refused:
                self._reports.put_nowait((0, refusal))
        if effects:
            encoded = [msgspec.Raw(codec.encode(effect)) for effect in effects]
            await self._ask("deliver", seq=self._calls.position().seq, effects=encoded)

    async def renew(self) -> str:
        """Renew the agent's lease; its present boot."""
        return str((await self._ask("renew", seq=self._calls.position().seq))["boot"])

    async def read_log(self, task: TaskKey, stream: str, offset: int, limit: int) -> LogChunk:
        """FileNotFoundError when there is none, OSError when the agent cannot be reached."""
        answer = await self._ask("read_log", task=task, stream=stream, offset=offset, limit=limit)
        return msgspec.convert(answer["chunk"], LogChunk)

    async def signal(self, task: TaskKey, number: int) -> None:
        """Signal a task's main process. FileNotFoundError when it does not run there."""
        await self._ask("signal", task=task, number=number)

    async def want_model(self, wanted: ModelWanted) -> ModelState:
        """See `ports.ModelCaches`. OSError when the agent cannot be reached, or its cache's disk fails."""
        return msgspec.convert((await self._ask("want_model", wanted=wanted))["said"], ModelState)

    async def drop_model(self, root: str, pin: str) -> None:
        await self._ask("drop_model", root=root, pin=pin)

    async def check_model(self, root: str, pin: str) -> str:
        return str((await self._ask("check_model", root=root, pin=pin))["said"])

    async def status(self) -> wire.Status:
        return msgspec.convert((await self._ask("status"))["status"], wire.Status)

    async def _ask(self, operation: str, /, limit_s: float = ANSWER_LIMIT_S, **data: Any) -> dict[str, Any]:
        session = self._session
        if session is None:
            raise ConnectionError(f"the agent of node {self.node} cannot be reached")
        number = next(self._numbers)
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        session.answers[number] = answered
        try:
            session.writer.write(wire.line(operation, number, **data))
            await session.writer.drain()
            async with asyncio.timeout(limit_s):
                answer = await answered
        finally:
            session.answers.pop(number, None)
        if answer["op"] == "error":
            kind = FileNotFoundError if answer["code"] == "not_found" else ConnectionError
            raise kind(answer["message"])
        return answer

    # --- connection -------------------------------------------------------------------------------------------------

    async def _keep(self, session: _Session) -> None:
        """Serve this session, then the next, for ever."""
        while True:
            await self._serve(session)
            for attempt in itertools.count():
                await asyncio.sleep(_pause(attempt))
                try:
                    session = await self._open()
                    break
                except JournalRegressed as error:
                    self._calls.on_regressed(self.node, error)
                    return
                except (OSError, SetupError):
                    continue

    async def _open(self) -> _Session:
        """A welcomed connection."""
        reader, writer = await self._connect()
        try:
            for protocol in (PROTOCOL, *older.PROTOCOLS):
                position = self._calls.position()
                hello = wire.Hello(position.cluster_id, position.term, position.seq, protocol)
                writer.write(wire.line("hello", 0, hello=hello))
                await writer.drain()
                async with asyncio.timeout(ANSWER_LIMIT_S):
                    answer = msgspec.json.decode(
                        await reader.readline() or b'{"op":"error","code":"gone","message":"the agent hung up"}'
                    )
                if answer.get("code") != "protocol":
                    break
        except BaseException:
            writer.transport.abort()
            raise
        if answer["op"] != "welcome":
            writer.transport.abort()
            if answer.get("code") == "journal_regressed":
                raise JournalRegressed(f"node {self.node}: {answer['message']}")
            if answer.get("code") == "protocol":
                raise AgentFailed(
                    f"the agent of node {self.node} is of another version of gangflow: {answer['message']}, "
                    f"and this one {PROTOCOL}",
                    remedy="end the groups (`gangflow down`) with the version that they were started with",
                )
            raise ConnectionError(f"node {self.node}: {answer.get('message')}")
        session = _Session(reader, writer, msgspec.convert(answer["welcome"], wire.Welcome), protocol)
        if protocol < PROTOCOL and not session.welcome.inventory and self._may_spawn:
            await self._retire(session, "it was of an earlier version")
        if tuple(replace(host, port_first=0) for host in session.welcome.hosts) != self._unplaced():
            if session.welcome.inventory or not self._may_spawn:
                writer.transport.abort()
                raise AgentFailed(
                    f"the agent of node {self.node} serves other hosts than the cluster's description, and has tasks there",
                    remedy="end the groups first, or start with the former description",
                )
            await self._retire(session, "the cluster's description has changed")
        return session

    def _unplaced(self) -> tuple[HostFacts, ...]:
        """Our hosts without port pools: those are the agent's to fill in."""
        return tuple(replace(host, port_first=0) for host in self._hosts)

    async def _retire(self, session: _Session, why: str) -> NoReturn:
        """End an agent that holds nothing, so that another can take its place."""
        try:
            session.writer.write(wire.line("shutdown", 0))
            async with asyncio.timeout(ANSWER_LIMIT_S):
                await session.reader.read()
        finally:
            session.writer.transport.abort()
        raise ConnectionError(f"the agent of node {self.node} was ended: {why}")

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        path = self.directory / "agent.sock"
        try:
            return await wire.connect(path)
        except OSError:
            if not self._may_spawn:
                raise
        await self._spawn()
        return await wire.connect(path)

    async def _serve(self, session: _Session) -> None:
        """Until the connection ends."""
        self._session = session
        self._reports = asyncio.Queue()
        jobs = [asyncio.ensure_future(self._pass_on(session)), asyncio.ensure_future(self._beat(session))]
        try:
            async for message in wire.messages(session.reader):
                if message["op"] == "report":
                    report = codec.decode(msgspec.json.encode(message["report"]), TASK_REPORTS)
                    self._reports.put_nowait((int(message["id"]), report))
                elif (answered := session.answers.get(int(message["id"]))) is not None and not answered.done():
                    answered.set_result(message)
        finally:
            self._session = None
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
            for answered in session.answers.values():
                if not answered.done():
                    answered.set_exception(ConnectionError(f"the agent of node {self.node} hung up"))
            session.writer.transport.abort()

    async def _pass_on(self, session: _Session) -> None:
        """Reports in batches: what was never confirmed, then the hosts and what runs there, then whatever comes."""
        try:
            waiting = [await self._reports.get() for _ in range(session.welcome.pending)]
            await self._calls.on_reports([*(report for _, report in waiting), *self._hosts_up(session.welcome)])
            session.registered.set()
            while True:
                if waiting:
                    session.writer.write(wire.line("ack", 0, upto=max(number for number, _ in waiting)))
                waiting = [await self._reports.get()]
                while not self._reports.empty():
                    waiting.append(self._reports.get_nowait())
                await self._calls.on_reports([report for _, report in waiting])
        except Exception:
            _log.exception("node %s: reports could not be taken; they come again", self.node)
            session.writer.transport.abort()

    def _hosts_up(self, welcome: wire.Welcome) -> list[HostUp]:
        return [
            HostUp(facts, welcome.boot, tuple(task for host, task in welcome.inventory if host == facts.name))
            for facts in welcome.hosts
        ]

    async def _beat(self, session: _Session) -> None:
        """Once a second: renew, and note that the agent answers. One that does not is hung up on."""
        await session.registered.wait()
        while self._renew:
            try:
                known = self._calls.on_alive(self.node, await self.renew())
                if session.protocol < PROTOCOL and self._may_spawn and not (await self.status()).tasks:
                    known = False  # its tasks have ended: the next hello replaces it
            except OSError as error:
                _log.warning("node %s: the agent does not answer (%s)", self.node, error)
                session.writer.transport.abort()
                return
            if known is False:
                session.writer.transport.abort()  # the controller wants to hear who it is
                return
            await asyncio.sleep(BEAT_S)

    # --- the process ------------------------------------------------------------------------------------------------

    async def _spawn(self) -> None:
        """Start an agent and wait until it listens."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self.directory / "hosts.json", msgspec.json.encode(self._unplaced()).decode())
        options = self._options
        told, tells = os.pipe()
        argv = [sys.executable, "-m", "gangflow.xce.hosts.agent", "--dir", str(self.directory), "--node", self.node]
        argv += ["--hosts", str(self.directory / "hosts.json"), "--ready-fd", str(tells)]
        argv += ["--lease-ms", str(options.lease_ms), "--fence-ms", str(options.fence_ms)]
        argv += ["--log-bytes", str(options.log_bytes), "--idle-exit-ms", str(options.idle_exit_ms), "--detach"]
        argv += [] if options.control_groups else ["--no-control-groups"]
        try:
            with (self.directory / "agent.log").open("ab") as output:
                first = subprocess.Popen(  # noqa: ASYNC220 — the agent itself is its child, and outlives it
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    pass_fds=(tells,),
                    env=self._environment,
                )
            os.close(tells)
            tells = -1
            await asyncio.to_thread(first.wait)
            said = b""
            with contextlib.suppress(TimeoutError):
                await _readable(told, START_LIMIT_S)
                said = os.read(told, 64)
        finally:
            os.close(told)
            if tells >= 0:
                os.close(tells)
        if said != b"ready\n":
            if said == BUSY:
                raise ConnectionError(f"another agent of node {self.node} is just starting or ending")
            log = (self.directory / "agent.log").read_text(errors="replace").splitlines()
            raise AgentFailed(f"the agent of node {self.node} did not start: {log[-1] if log else 'it said nothing'}")


async def _readable(fd: int, limit_s: float) -> None:
    """Wait until a descriptor can be read (or has ended). TimeoutError if it takes longer."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: None if readable.done() else readable.set_result(None))
    try:
        async with asyncio.timeout(limit_s):
            await readable
    finally:
        loop.remove_reader(fd)


def _pause(attempt: int) -> float:
    return RETRY_S[min(attempt, len(RETRY_S) - 1)]
