"""An app in this process as a transport of httpx clients: of blocking ones in any thread, of asynchronous ones in any loop.

The app has an event loop of its own in a background thread; a request is a task there. Responses stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

import httpx

from gangflow.member.io import IoThread
from gangflow.testing.exchange import App, Exchange, ask

T = TypeVar("T")
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

    async def exchange(self, request: httpx.Request, body: bytes) -> Exchange:
        """Runs in the app's loop: returns when the head of the answer is there."""
        return await ask(self._app, request, body)


class _Blocking(httpx.BaseTransport):
    def __init__(self, served: Served) -> None:
        self._served = served

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        exchange = self._served.wait(self._served.exchange(request, request.read()))
        return httpx.Response(exchange.status, headers=exchange.headers, stream=_BlockingBody(self._served, exchange))


class _BlockingBody(httpx.SyncByteStream):
    def __init__(self, served: Served, exchange: Exchange) -> None:
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
    def __init__(self, served: Served, exchange: Exchange) -> None:
        self._served = served
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (chunk := await self._served.hop(self._exchange.next())) is not None:
            yield chunk

    async def aclose(self) -> None:
        with suppress(httpx.TransportError):
            await self._served.hop(self._exchange.close())
