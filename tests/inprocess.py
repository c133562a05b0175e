"""An ASGI app as an httpx transport that streams: httpx's own waits for the end of a response, which a stream has not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx


class InProcess(httpx.AsyncBaseTransport):
    """Each request runs the app in a task; closing the response is a disconnect."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        url = request.url
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": request.method,
            "headers": [(key.lower(), value) for key, value in request.headers.raw], "scheme": url.scheme, "path": url.path,
            "raw_path": url.raw_path.split(b"?")[0], "query_string": url.query, "server": (url.host, url.port),
            "client": ("127.0.0.1", 1), "root_path": "",
        }  # fmt: skip
        exchange = _Exchange(body)
        exchange.task = asyncio.create_task(self._app(scope, exchange.receive, exchange.send))
        exchange.task.add_done_callback(lambda _: exchange.chunks.put_nowait(None))
        await asyncio.wait(
            {exchange.task, started := asyncio.ensure_future(exchange.started.wait())}, return_when=asyncio.FIRST_COMPLETED
        )
        started.cancel()
        if not exchange.started.is_set():
            await exchange.task
            raise AssertionError("the app answered nothing")
        return httpx.Response(exchange.status, headers=exchange.headers, stream=exchange)


class _Exchange(httpx.AsyncByteStream):
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

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (chunk := await self.chunks.get()) is not None:
            if chunk:
                yield chunk
        await self.task  # a fault of the app is a fault of the test

    async def aclose(self) -> None:
        self._closed.set()
        await asyncio.wait({self.task})
