"""One request to an ASGI app in this process, its answer in pieces: httpx's own waits for the end, which a stream has not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import httpx

App = Callable[..., Coroutine[Any, Any, None]]


class Exchange:
    """One request under way, in the app's loop; closing it is a disconnect."""

    task: asyncio.Task[None]

    def __init__(self, body: bytes) -> None:
        self.started = asyncio.Event()
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._body: bytes | None = body
        self._closed = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._closed.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], message["headers"]
            self.started.set()
        elif message["type"] == "http.response.body":
            self.chunks.put_nowait(message.get("body", b""))

    async def next(self) -> bytes | None:
        """The next piece of the body; None at its end."""
        while (chunk := await self.chunks.get()) is not None:
            if chunk:
                return chunk
        await self.task  # a fault of the app is a fault of the test
        return None

    async def close(self) -> None:
        self._closed.set()
        await asyncio.wait({self.task})


async def ask(app: App, request: httpx.Request, body: bytes) -> Exchange:
    """Run the app on a request, in a task of this loop: returns when the head of the answer is there."""
    url = request.url
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": request.method, "headers": [(key.lower(), value) for key, value in request.headers.raw],
        "scheme": url.scheme, "path": url.path, "raw_path": url.raw_path.split(b"?")[0], "query_string": url.query,
        "server": (url.host, url.port), "client": ("127.0.0.1", 1), "root_path": "",
    }  # fmt: skip
    exchange = Exchange(body)
    task = exchange.task = asyncio.create_task(app(scope, exchange.receive, exchange.send))
    task.add_done_callback(lambda _: exchange.chunks.put_nowait(None))
    started = asyncio.ensure_future(exchange.started.wait())
    try:
        await asyncio.wait({task, started}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        await exchange.close()
        raise
    finally:
        started.cancel()
    if not exchange.started.is_set():
        await task
        raise httpx.RemoteProtocolError("the app answered nothing", request=request)
    return exchange
