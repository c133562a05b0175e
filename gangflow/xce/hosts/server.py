"""The agent's socket: who may give orders, in which order reports leave, how long it runs on without being renewed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import msgspec

from gangflow.xce import codec
from gangflow.xce.core.state import TaskKey
from gangflow.xce.hosts import kernel, wire
from gangflow.xce.hosts.guard import Guard
from gangflow.xce.hosts.keeper import TaskKeeper
from gangflow.xce.hosts.settings import LINE_LIMIT, PROTOCOL, REPORT_BATCH
from gangflow.xce.ports import ModelWanted

log = logging.getLogger("gangflow.agent")
ORDERS = frozenset({"deliver", "ack", "signal", "shutdown", "want_model", "check_model", "drop_model"})
"""Requests that only the cluster's controller may make."""


class Connection:
    """One peer. It may renew, look and read at once; orders need a hello that was accepted."""

    def __init__(self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self._agent = server.agent
        self._reader = reader
        self._writer = writer
        self._sent = 0
        self._sender: asyncio.Task[None] | None = None
        self._jobs: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        try:
            async for message in wire.messages(self._reader):
                await self._handle(message)
                await self._writer.drain()
        except (ValueError, msgspec.MsgspecError) as error:
            self._answer("error", 0, code="invalid", message=str(error))
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            for task in (*self._jobs, *([self._sender] if self._sender else [])):
                task.cancel()
            self._server.left(self)
            self._writer.close()

    def drop(self) -> None:
        """A newer controller took over, or the agent was fenced: the peer has to say hello again."""
        self._writer.transport.abort()

    # --- requests ---------------------------------------------------------------------------------------------------

    async def _handle(self, message: dict[str, Any]) -> None:
        number = int(message.get("id", 0))
        operation = message["op"]
        handler = getattr(self, f"_on_{operation}", None)
        if handler is None:
            self._answer("error", number, code="invalid", message=f"unknown request {operation!r}")
        elif operation in ORDERS and self._server.controller is not self:
            self._answer(
                "error", number, code="no_hello", message="say hello first: orders are taken from the cluster's controller only"
            )
        else:
            try:
                await handler(number, message)
            except (ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
                self._answer("error", number, code="invalid", message=f"{operation}: {error!r}")

    async def _on_hello(self, number: int, message: dict[str, Any]) -> None:
        hello = msgspec.convert(message["hello"], wire.Hello)
        if hello.protocol != PROTOCOL:
            self._answer("error", number, code="protocol", message=f"this agent speaks protocol {PROTOCOL}")
            return
        if not hello.cluster_id or any(char.isspace() for char in hello.cluster_id):
            self._answer("error", number, code="invalid", message="the cluster's id must be one word")
            return
        if objection := self._agent.standing.value.objection(hello.cluster_id, hello.term, hello.seq):
            self._answer("error", number, code="journal_regressed", message=objection)
            return
        await self._agent.on_disk(lambda: self._agent.standing.advance(hello.cluster_id, hello.term, hello.seq))
        self._server.take_over(self)
        self._server.renewed()
        # Reports that nobody confirmed come first: with them, the inventory is complete. What is added from now on comes after.
        agent = self._agent
        welcome = wire.Welcome(
            agent.boot,
            agent.node,
            os.getpid(),
            tuple(agent.hosts.values()),
            agent.inventory(),
            agent.options.lease_ms,
            agent.options.fence_ms,
            len(agent.outbox),
        )
        self._answer("welcome", number, welcome=welcome)
        self._sent = 0
        self._sender = asyncio.ensure_future(self._send_reports())

    async def _on_deliver(self, number: int, message: dict[str, Any]) -> None:
        effects = [codec.decode(msgspec.json.encode(each), codec.EFFECTS) for each in message["effects"]]
        self._answer("done", number)
        # What an order was given at has been seen: a journal that ends before it is an older copy.
        self._aside(self._note_seq(message))
        await self._agent.carry_out(effects)

    async def _on_ack(self, number: int, message: dict[str, Any]) -> None:
        self._agent.outbox.acknowledge(int(message["upto"]))

    async def _on_renew(self, number: int, message: dict[str, Any]) -> None:
        await self._note_seq(message)
        self._server.renewed()
        self._answer("renewed", number, boot=self._agent.boot)

    async def _note_seq(self, message: dict[str, Any]) -> None:
        """Remember how far the controller's journal has come, if it is the controller who says so."""
        standing = self._agent.standing
        if self._server.controller is self and (seq := int(message.get("seq", 0))) > standing.value.seq:
            await self._agent.on_disk(lambda: standing.advance(standing.value.cluster_id, standing.value.term, seq))

    async def _on_status(self, number: int, message: dict[str, Any]) -> None:
        self._answer("status", number, status=self._agent.status(self._server.guard.pid))

    async def _on_read_log(self, number: int, message: dict[str, Any]) -> None:
        self._aside(self._read_log(number, message))

    async def _read_log(self, number: int, message: dict[str, Any]) -> None:
        task = msgspec.convert(message["task"], TaskKey)
        try:
            chunk = await self._agent.read_log(task, str(message["stream"]), int(message["offset"]), int(message["limit"]))
        except OSError as error:
            self._answer("error", number, code="not_found", message=str(error))
            return
        self._answer("log", number, chunk=chunk)

    async def _on_want_model(self, number: int, message: dict[str, Any]) -> None:
        wanted = msgspec.convert(message["wanted"], ModelWanted)
        self._aside(self._model(number, self._agent.models.want(wanted)))

    async def _on_check_model(self, number: int, message: dict[str, Any]) -> None:
        self._aside(self._model(number, self._agent.models.check(str(message["root"]), str(message["pin"]))))

    async def _on_drop_model(self, number: int, message: dict[str, Any]) -> None:
        self._aside(self._model(number, self._agent.models.drop(str(message["root"]), str(message["pin"]))))

    async def _model(self, number: int, work: Awaitable[Any]) -> None:
        try:
            self._answer("model", number, said=await work)
        except OSError as error:
            self._answer("error", number, code="cache", message=str(error))

    async def _on_signal(self, number: int, message: dict[str, Any]) -> None:
        try:
            self._agent.signal(msgspec.convert(message["task"], TaskKey), int(message["number"]))
        except OSError as error:
            self._answer("error", number, code="not_found", message=str(error))
            return
        self._answer("done", number)

    async def _on_shutdown(self, number: int, message: dict[str, Any]) -> None:
        self._aside(self._shut_down(number, message.get("grace_ms")))

    async def _shut_down(self, number: int, grace_ms: int | None) -> None:
        await self._agent.stop_all("its host agent was shut down", None if grace_ms is None else grace_ms / 1000)
        self._answer("done", number)
        await self._writer.drain()
        self._server.finish()

    # --- answers ----------------------------------------------------------------------------------------------------

    def _answer(self, op: str, number: int, **data: Any) -> None:
        if not self._writer.is_closing():
            self._writer.write(wire.line(op, number, **data))

    def _aside(self, work: Any) -> None:
        """Work that the next request of this peer need not wait for."""
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _send_reports(self) -> None:
        """In order, each once per connection, and no faster than the peer reads."""
        outbox = self._agent.outbox
        while True:
            for number, report in await outbox.next_after(self._sent, REPORT_BATCH):
                self._writer.write(b'{"op":"report","id":%d,"report":%s}\n' % (number, codec.encode(report)))
                self._sent = number
            try:
                await self._writer.drain()
            except ConnectionError:
                return


class Server:
    """The agent with its socket, lease and watchdog."""

    def __init__(self, agent: TaskKeeper) -> None:
        self.agent = agent
        self.guard = Guard(agent)
        self.controller: Connection | None = None
        self._peers: set[asyncio.Task[None]] = set()
        self._renewed_at = kernel.boottime()
        self._last_use = kernel.boottime()
        self._finished = asyncio.Event()

    def renewed(self) -> None:
        """Somebody who knows that this node belongs to the cluster said so."""
        self._renewed_at = kernel.boottime()

    def take_over(self, connection: Connection) -> None:
        """The newest accepted hello gives the orders."""
        if self.controller is not None and self.controller is not connection:
            self.controller.drop()
        self.controller = connection

    def left(self, connection: Connection) -> None:
        if self.controller is connection:
            self.controller = None

    def finish(self) -> None:
        self._finished.set()

    async def run(self, path: Path, ready: int) -> None:
        """Serve until shut down, signalled, or idle for too long."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: self._peers.add(asyncio.ensure_future(self._end_gently())))
        loop.add_signal_handler(signal.SIGHUP, lambda: None)  # not SIG_IGN: our children would inherit it
        self.guard.start()
        await self.agent.recover()
        server = await asyncio.start_unix_server(self._accept, sock=wire.listening(path), limit=LINE_LIMIT)
        if ready >= 0:
            with contextlib.suppress(BrokenPipeError):  # whoever started us is gone: the next controller finds us
                os.write(ready, b"ready\n")
            os.close(ready)
        self._renewed_at = self._last_use = kernel.boottime()
        ticker = asyncio.ensure_future(self._tick())
        try:
            done, _ = await asyncio.wait(
                {ticker, waiting := asyncio.ensure_future(self._finished.wait())}, return_when="FIRST_COMPLETED"
            )
            if ticker in done:
                ticker.result()
            waiting.cancel()
        finally:
            ticker.cancel()
            server.close()
            _unlink(path)
            for peer in list(self._peers):
                peer.cancel()
            await asyncio.gather(*self._peers, return_exceptions=True)
            await self.agent.stop_all("its host agent ended")
            await self.guard.stop()
            self.agent.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        me = asyncio.current_task()
        assert me is not None
        self._peers.add(me)
        try:
            await Connection(self, reader, writer).serve()
        finally:
            self._peers.discard(me)

    async def _end_gently(self) -> None:
        await self.agent.stop_all("its host agent was told to end")
        self.finish()

    async def _tick(self) -> None:
        """Once a second: the lease, the beat, the logs, idleness."""
        while True:
            now = kernel.boottime()
            options = self.agent.options
            if options.lease_ms and now - self._renewed_at > (options.lease_ms + options.fence_ms) / 1000:
                if self.agent.busy:
                    log.error("not renewed for %.1f s: killing everything", now - self._renewed_at)
                self.agent.fence("fenced: nobody renewed the agent's lease")
                if self.controller is not None:
                    self.controller.drop()
                self._renewed_at = now
            self.guard.beat()
            self.agent.upkeep()
            if self._peers or self.agent.busy:
                self._last_use = now
            elif options.idle_exit_ms and now - self._last_use > options.idle_exit_ms / 1000:
                log.info("idle: ending")
                self.finish()
            await asyncio.sleep(options.beat_s)


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)  # newer Pythons have removed it already
