"""An app in this process as a transport of httpx clients: of blocking ones in any thread, of asynchronous ones in any loop.

The app has an event loop of its own in a background thread; a request is a task there. Responses stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

import httpx

from gangflow.member.io import IoThread

T = TypeVar("T")
App = Callable[..., Coroutine[Any, Any, None]]
GONE = "the cluster for tests was closed"


class Served:
    """One app and its loop."""

    def __init__(self, app: App, io: IoThread) -> None:
        self._app = app
        self._io = io
        self._closed = False

    def sync(self) -> httpx.BaseTransport:
        """For `httpx.Client`."""
        return _Blocking(self)

    def asynchronous(self) -> httpx.AsyncBaseTransport:
        """For `httpx.AsyncClient`."""
        return _Awaited(self)

    def close(self) -> None:
        """Nobody is served any more: who asks, or waits, is told so as by a server that has gone."""
        self._closed = True

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result, for a thread that may block."""
        future = self._begin(work)
        try:
            return future.result()
        except CancelledError:
            raise httpx.ReadError(GONE) from None
        except BaseException:
            future.cancel()
            raise

    async def hop(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result, for another event loop. Cancelling the caller cancels it."""
        future = self._begin(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise httpx.ReadError(GONE) from None

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._closed:
            work.close()
            raise httpx.ConnectError(GONE)
        return self._io.submit(work)

    async def exchange(self, request: httpx.Request, body: bytes) -> _Exchange:
        """Runs in the app's loop: returns when the head of the answer is there."""
        url = request.url
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
            "method": request.method, "headers": [(key.lower(), value) for key, value in request.headers.raw],
            "scheme": url.scheme, "path": url.path, "raw_path": url.raw_path.split(b"?")[0], "query_string": url.query,
            "server": (url.host, url.port), "client": ("127.0.0.1", 1), "root_path": "",
        }  # fmt: skip
        exchange = _Exchange(body)
        task = exchange.task = asyncio.create_task(self._app(scope, exchange.receive, exchange.send))
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


class _Exchange:
    """One request under way, in the app's loop."""

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


class _Blocking(httpx.BaseTransport):
    def __init__(self, served: Served) -> None:
        self._served = served

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        exchange = self._served.wait(self._served.exchange(request, request.read()))
        return httpx.Response(exchange.status, headers=exchange.headers, stream=_BlockingBody(self._served, exchange))


class _BlockingBody(httpx.SyncByteStream):
    def __init__(self, served: Served, exchange: _Exchange) -> None:
        self._served = served
        self._exchange = exchange

    def __iter__(self) -> Iterator[bytes]:
        while (chunk := self._served.wait(self._exchange.next())) is not None:
            yield chunk

    def close(self) -> None:
        with suppress(httpx.TransportError):  # Closed with everything else.
            self._served.wait(self._exchange.close())


class _Awaited(httpx.AsyncBaseTransport):
    def __init__(self, served: Served) -> None:
        self._served = served

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = await self._served.hop(self._served.exchange(request, await request.aread()))
        return httpx.Response(exchange.status, headers=exchange.headers, stream=_AwaitedBody(self._served, exchange))


class _AwaitedBody(httpx.AsyncByteStream):
    def __init__(self, served: Served, exchange: _Exchange) -> None:
        self._served = served
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (chunk := await self._served.hop(self._exchange.next())) is not None:
            yield chunk

    async def aclose(self) -> None:
        with suppress(httpx.TransportError):
            await self._served.hop(self._exchange.close())
