"""HTTP calls to one vLLM server: what an answer, a refusal and a silence are; a deadline over all calls of one verb."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlencode

import msgspec

from gangflow.coordinators.engine import EngineRefused, EngineSilent
from gangflow.integrations.vllm import capabilities
from gangflow.integrations.vllm.capabilities import Capabilities
from gangflow.integrations.vllm.http import AioHttp, Http, Reply, Unreached, send

_WAITING: ContextVar[list[str]] = ContextVar("waiting")
"""Calls of the present verb that were not answered yet: verbs of one engine overlap, health checks with all others."""


class Calls:
    """The calls of the verbs, to one server."""

    def __init__(self, url: str, http: Http | None = None) -> None:
        self.url = url
        self._http = http or AioHttp()

    @asynccontextmanager
    async def deadline(self, verb: str, timeout_s: float) -> AsyncIterator[None]:
        """Of a whole verb: EngineSilent after it, with the calls that were not answered."""
        waiting: list[str] = []
        before = _WAITING.set(waiting)
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError as error:
            where = f" to {', '.join(waiting)}" if waiting else ""
            raise EngineSilent(f"{verb}: no answer{where} within {timeout_s:g} s") from error
        finally:
            _WAITING.reset(before)

    async def get(self, path: str) -> Any:
        """The JSON document there."""
        return _document(path, await self.ask("GET", path))

    async def post(self, path: str, body: object = None, params: Mapping[str, str] | None = None) -> Any:
        """The answer to a JSON body; None when it is empty."""
        return _document(path, await self.ask("POST", path, body, params))

    async def ask(self, method: str, path: str, body: object = None, params: Mapping[str, str] | None = None) -> Reply:
        """The answer, whatever its status. EngineSilent when there is none."""
        waiting = _WAITING.get([])
        waiting.append(f"{method} {path}")
        query = f"?{urlencode(params)}" if params else ""
        content = None if body is None else msgspec.json.encode(body)
        try:
            reply = await send(self._http, method, self.url + path + query, content)
        except Unreached as error:
            raise EngineSilent(f"{path}: {error}") from error
        waiting.remove(f"{method} {path}")
        return reply

    async def capabilities(self) -> Capabilities:
        """What this server can do: two requests."""
        try:
            return capabilities.read(await self.get("/openapi.json"), await self.get("/version"))
        except EngineRefused as error:
            hint = " (was it started with --disable-fastapi-docs?)" if "/openapi.json" in error.message else ""
            raise EngineRefused(f"what it can do cannot be seen: {error.message}{hint}") from error
        except (ValueError, AttributeError) as error:
            raise EngineRefused(f"{self.url}: {error}") from error

    async def close(self) -> None:
        await self._http.close()


def content(path: str, reply: Reply) -> bytes:
    """The body of an answer that is no refusal."""
    if reply.status >= 400:
        raise EngineRefused(f"{path}: HTTP {reply.status}: {complaint(reply.content)}")
    return reply.content


def complaint(content: bytes) -> str:
    """What an error's body says, without its wrapping."""
    try:
        document = msgspec.json.decode(content)
        told = document.get("error", document.get("detail", document))
        return str(told.get("message", told) if isinstance(told, Mapping) else told)[:500]
    except (msgspec.DecodeError, AttributeError):
        return content[:300].decode(errors="replace")


def _document(path: str, reply: Reply) -> Any:
    body = content(path, reply)
    try:
        return msgspec.json.decode(body) if body else None
    except msgspec.DecodeError as error:
        raise EngineRefused(f"{path}: an answer that is not JSON: {body[:200].decode(errors='replace')}") from error
