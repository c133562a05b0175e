"""Requests over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gangflow.integrations.vllm.http import KEY, AioHttp, Broken, Reply, Unreached, send

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
T = 10.0


@asynccontextmanager
async def listening(handler: Handler) -> AsyncIterator[str]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture
async def http() -> AsyncIterator[AioHttp]:
    made = AioHttp()
    yield made
    await made.close()


async def head(reader: asyncio.StreamReader) -> str:
    """Of the next request; empty at the end of the connection."""
    try:
        return (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return ""


def answer(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    writer.write(b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)


async def test_an_answer_of_any_status_is_a_reply_and_the_connection_is_kept(http: AioHttp) -> None:
    heads: list[list[str]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append([])
        while text := await head(reader):
            heads[-1].append(text)
            if "Content-Length: 2" in text:
                assert await reader.readexactly(2) == b"{}"
            answer(writer, 200 if "GET" in text else 404, b"body")
        writer.close()

    async with listening(serve) as url:
        assert await send(http, "GET", f"{url}/a?b=c") == Reply(200, b"body")
        assert await send(http, "POST", f"{url}/d", b"{}") == Reply(404, b"body")
        assert await send(http, "POST", f"{url}/e") == Reply(404, b"body")
        await http.close()
    assert [text.split(" HTTP")[0] for text in heads[0]] == ["GET /a?b=c", "POST /d", "POST /e"]
    assert "Content-Type: application/json" in heads[0][1]
    assert "Authorization" not in heads[0][0]


async def test_the_key_of_the_environment_is_sent(http: AioHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await head(reader))
        answer(writer, 200, b"")
        writer.close()

    monkeypatch.setenv(KEY, "secret")
    async with listening(serve) as url:
        await http.request("GET", url)
    assert "Authorization: Bearer secret\r\n" in seen[0]


async def test_a_connection_that_was_closed_after_an_answer_is_made_anew(http: AioHttp) -> None:
    """As vLLM does it after a 500: the answer says nothing of it, and the next request on that connection meets its end."""
    connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await head(reader)
        answer(writer, 500 if len(connections) == 1 else 200, b"")
        await head(reader)
        writer.close()

    async with listening(serve) as url:
        assert (await send(http, "POST", url)).status == 500
        assert (await send(http, "POST", url)).status == 200
        await http.close()
    assert len(connections) == 2


async def test_a_server_that_always_hangs_up_is_broken(http: AioHttp) -> None:
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await head(reader))
        if len(asked) > 1:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        writer.close()

    async with listening(serve) as url:
        with pytest.raises(Broken, match="ClientPayloadError"):
            await send(http, "POST", url)
    assert len(asked) == 2


async def test_a_server_that_is_away_is_unreached(http: AioHttp) -> None:
    async with listening(lambda *_: asyncio.sleep(0)) as url:
        pass
    with pytest.raises(Unreached, match="ClientConnectorError") as error:
        await send(http, "GET", url)
    assert not isinstance(error.value, Broken)


async def test_what_speaks_no_http_is_unreached(http: AioHttp) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"hello\r\n\r\n")
        writer.close()

    async with listening(serve) as url:
        with pytest.raises(Unreached):
            await send(http, "GET", url)


async def test_what_was_closed_stays_closed(http: AioHttp) -> None:
    await http.close()
    with pytest.raises(Unreached, match="closed here"):
        await send(http, "GET", "http://127.0.0.1:9")


async def test_a_request_that_is_given_up_closes_its_connection(http: AioHttp) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        begun.set()
        await head(reader)
        ended.set()
        writer.close()

    async with listening(serve) as url:
        asking = asyncio.create_task(send(http, "POST", url))
        await asyncio.wait_for(begun.wait(), T)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.wait_for(ended.wait(), T)
