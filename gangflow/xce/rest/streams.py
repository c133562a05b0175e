"""Server-sent events: framing, keepalives, the limit per client, and an end when the server stops."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from gangflow.xce.rest.problems import Refusal
from gangflow.xce.rest.watch import KEEPALIVE_S

STREAMS_PER_CLIENT = 64
"""A member opens one or two; a command line and a dashboard a few under the admin's token."""
STREAMS = 1_024
"""Of the whole server: each costs a socket and a queue."""


def message(data: str = "", *, event: str = "", ident: int | None = None, comment: str = "") -> bytes:
    """One message. `data` is a JSON text (no line breaks); with `ident` alone it only moves the reader's position."""
    lines = [f": {comment}"] if comment else []
    lines += [f"event: {event}"] if event else []
    lines += [f"id: {ident}"] if ident is not None else []
    lines += [f"data: {data}"] if data else []
    return ("\n".join(lines) + "\n\n").encode()


class Streams:
    """Counts open streams and ends them all when asked: a server that stops would wait for them for ever."""

    def __init__(self, per_client: int = STREAMS_PER_CLIENT, total: int = STREAMS, keepalive_s: float = KEEPALIVE_S) -> None:
        self.open: Counter[str] = Counter()
        self._per_client = per_client
        self._total = total
        self._keepalive_s = keepalive_s
        self._closing = asyncio.Event()

    def end_all(self) -> None:
        """End every stream now, and every later one at once. Readers connect again to whoever serves next."""
        self._closing.set()

    def admit(self, client: str) -> None:
        """429 if this client has too many already."""
        if self.open[client] >= self._per_client or self.open.total() >= self._total:
            raise Refusal(
                429, "too_many_streams", f"{client} has {self.open[client]} streams open", headers={"Retry-After": "5"}
            )

    def response(
        self, client: str, source: AsyncGenerator[bytes, None], idle: Callable[[], bytes], over: Callable[[], bool]
    ) -> StreamingResponse:
        """Serve a source of messages; `idle()` is sent when it has been silent for the keepalive period.

        It ends when `over()`: whoever reads it may not any more, and is told so when he connects again.
        """
        self.admit(client)
        return _Stream(self, client, self._pump(source, idle, over))

    async def _pump(
        self, source: AsyncGenerator[bytes, None], idle: Callable[[], bytes], over: Callable[[], bool]
    ) -> AsyncGenerator[bytes, None]:
        closing = asyncio.ensure_future(self._closing.wait())
        step: asyncio.Task[bytes | None] | None = None
        try:
            while True:
                step = step or asyncio.ensure_future(_next(source))
                done, _ = await asyncio.wait({step, closing}, timeout=self._keepalive_s, return_when=asyncio.FIRST_COMPLETED)
                if closing in done or over():
                    return
                if not done:
                    yield idle()
                    continue
                chunk = step.result()
                step = None
                if chunk is None:
                    return
                yield chunk
        finally:
            pending = [task for task in (step, closing) if task is not None]
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            await source.aclose()


class _Stream(StreamingResponse):
    media_type = "text/event-stream"

    def __init__(self, streams: Streams, client: str, chunks: AsyncGenerator[bytes, None]) -> None:
        super().__init__(chunks, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._streams = streams
        self._client = client
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.open[self._client] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            # A reader that left while something was being sent to it leaves the source waiting in mid-air.
            await self._chunks.aclose()
            self._streams.open[self._client] -= 1
            if not self._streams.open[self._client]:
                del self._streams.open[self._client]


async def _next(source: AsyncGenerator[bytes, None]) -> bytes | None:
    return await anext(source, None)
