"""The agent's side of its watchdog: start it, beat, listen for its echo, start another when it dies."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time

from gangflow.xce.hosts.children import spawn
from gangflow.xce.hosts.keeper import TaskKeeper
from gangflow.xce.hosts.watchdog import GOODBYE

log = logging.getLogger("gangflow.agent")
_RESPAWN_S = 0.5
"""Pause before the next watchdog after one that lived no longer, lest one that cannot run be started in a tight loop."""


class Guard:
    """Keeps one watchdog beside this process."""

    def __init__(self, agent: TaskKeeper) -> None:
        self._agent = agent
        self.pid = 0
        self._socket: socket.socket | None = None
        self._heard = 0.0
        self._keeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._spawn()
        self._keeper = asyncio.ensure_future(self._keep())

    def beat(self) -> None:
        """At every beat. A watchdog that does not answer is replaced."""
        now = time.monotonic()
        if self._socket is None:
            return
        try:
            if self._socket.recv(4096):
                self._heard = now
        except OSError:
            pass
        try:
            self._socket.send(b".")
        except OSError:
            pass
        if now - self._heard > max(self._agent.options.fence_ms / 1000, 5 * self._agent.options.beat_s) and self.pid:
            log.warning("watchdog %d does not answer: replacing it", self.pid)
            self._heard = now
            os.kill(self.pid, signal.SIGKILL)

    async def stop(self) -> None:
        """Dismiss the watchdog; nothing must be left that it could have to take down."""
        if self._keeper is not None:
            self._keeper.cancel()
        if self._socket is not None:
            try:
                self._socket.send(GOODBYE)
            except OSError:
                pass
            self._socket.close()
            self._socket = None

    async def _keep(self) -> None:
        while True:
            began = time.monotonic()
            code = await self._ended
            log.warning("the watchdog ended (%d): starting another", code)
            self.pid = 0
            if time.monotonic() - began < _RESPAWN_S:
                await asyncio.sleep(_RESPAWN_S)
            self._spawn()

    def _spawn(self) -> None:
        if self._socket is not None:
            self._socket.close()
        ours, theirs = socket.socketpair()
        options = self._agent.options
        argv = [
            sys.executable,
            "-m",
            "gangflow.xce.hosts.watchdog",
            "--agent",
            self._agent.agent_id,
            "--life",
            self._agent.life,
        ]
        argv += ["--pid", str(os.getpid()), "--fence-ms", str(options.fence_ms), "--group", str(self._agent.groups.path or "")]
        argv += ["--beat-ms", str(round(options.beat_s * 1000))]
        argv += ["--boottime"] if options.lease_ms else []
        with theirs:
            self.pid = spawn(argv, environment=os.environ, stdin=theirs.fileno(), stdout=2, stderr=2, own_session=True)
        ours.setblocking(False)
        self._socket = ours
        self._heard = time.monotonic()
        self._ended = self._agent.children.expect(self.pid)
