"""An HTTP server inside a running event loop: listens, says where, and stops without waiting for streams."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from gangflow.errors import SetupError
from gangflow.xce.rest.server import check_bind, end_streams

STOP_S = 3
"""What is under way may take this long when the server stops."""


class HttpServer:
    """Serves an app. `url` is known before the app exists, so that the controller can tell its tasks."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, admin_token: str) -> None:
        """Bind; port 0 takes a free one. SetupError when it is taken, or open to others without a token."""
        check_bind(host, admin_token)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            raise SetupError(
                f"can not listen on {host}:{port}: {error}", remedy="name another port, or 0 for a free one"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        self.url = f"http://{shown}:{self.port}"
        self._app: FastAPI | None = None
        self._server: _Quiet | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, app: FastAPI) -> None:
        """Returns when it answers."""
        self._app = app
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=STOP_S)
        self._server = _Quiet(config)
        self._task = asyncio.create_task(self._server.serve([self._socket]), name="http")
        started = asyncio.create_task(self._server.answering.wait())
        await asyncio.wait({started, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            started.cancel()
            await self._task
            raise SetupError(f"the HTTP server at {self.url} ended at once")

    async def stop(self) -> None:
        """End streams, let short requests finish, close the socket. May be called twice."""
        if self._app is not None:
            end_streams(self._app)
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close()


class _Quiet(uvicorn.Server):
    """uvicorn without its hands on signals (they are the process's business), and with an edge when it answers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.answering = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.answering.set()
