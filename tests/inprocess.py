"""An ASGI app as an httpx transport that streams, in the loop of whoever asks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx

from gangflow.testing.exchange import App, Exchange, ask


class InProcess(httpx.AsyncBaseTransport):
    """Each request runs the app in a task; closing the response is a disconnect."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = await ask(self._app, request, await request.aread())
        return httpx.Response(exchange.status, headers=exchange.headers, stream=_Answer(exchange))


class _Answer(httpx.AsyncByteStream):
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (chunk := await self._exchange.next()) is not None:
            yield chunk

    async def aclose(self) -> None:
        await self._exchange.close()
