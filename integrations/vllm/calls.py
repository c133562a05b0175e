"""HTTP calls to one vLLM server: what an answer, a refusal and a silence are; a deadline over all calls of one verb."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from gangflow.coordinators.engine import EngineRefused, EngineSilent
from gangflow.integrations.vllm import capabilities
from gangflow.integrations.vllm.capabilities import Capabilities

KEY = "VLLM_API_KEY"
"""The environment variable with the key of servers that were started with one."""
_OUTER_S = 3_600.0
"""Never reached: each verb has its own deadline, for the whole of it."""


def client(base_url: str = "", transport: httpx.AsyncBaseTransport | None = None, **more: Any) -> httpx.AsyncClient:
    """As it should be for engines: no proxy of the environment leads to them, and there is no TLS to verify."""
    key = os.environ.get(KEY)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    given = {"timeout": _OUTER_S, **more}
    return httpx.AsyncClient(base_url=base_url, headers=headers, trust_env=False, verify=False, transport=transport, **given)


async def send(http: httpx.AsyncClient, method: str, url: str, **request: Any) -> httpx.Response:
    """One request; a second time when a kept connection turned out to be closed.

    vLLM closes a connection after it answered 500, without a word, and whoever asks next finds out. Everything that is asked of
    an engine may be asked twice. httpx.TransportError when the server is really away.
    """
    try:
        return await http.request(method, url, **request)
    except (httpx.ReadError, httpx.RemoteProtocolError, httpx.WriteError):
        return await http.request(method, url, **request)


class Calls:
    """The calls of the verbs, to one server."""

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.url = url
        self._http = client(url, transport)
        self._at = ""

    @asynccontextmanager
    async def deadline(self, verb: str, timeout_s: float) -> AsyncIterator[None]:
        """Of a whole verb: EngineSilent after it, with the call that it was waiting for."""
        self._at = ""
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError as error:
            where = f", the last of {self._at}" if self._at else ""
            raise EngineSilent(f"{verb}: no answer within {timeout_s:g} s{where}") from error

    async def get(self, path: str) -> Any:
        """The JSON document there."""
        return _document(path, await self.ask("GET", path))

    async def post(self, path: str, body: object = None, params: Mapping[str, str] | None = None) -> Any:
        """The answer to a JSON body; None when it is empty."""
        return _document(path, await self.ask("POST", path, body, params))

    async def ask(self, method: str, path: str, body: object = None, params: Mapping[str, str] | None = None) -> httpx.Response:
        """The answer, whatever its status. EngineSilent when there is none."""
        self._at = f"{method} {path}"
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            return await send(self._http, method, path, content=content, headers=headers, params=params)
        except httpx.TransportError as error:
            raise EngineSilent(f"{path}: {type(error).__name__} {error}".strip()) from error

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
        await self._http.aclose()


def content(path: str, response: httpx.Response) -> bytes:
    """The body of an answer that is no refusal."""
    if response.status_code >= 400:
        raise EngineRefused(f"{path}: HTTP {response.status_code}: {complaint(response.content)}")
    return response.content


def complaint(content: bytes) -> str:
    """What an error's body says, without its wrapping."""
    try:
        document = msgspec.json.decode(content)
        told = document.get("error", document.get("detail", document))
        return str(told.get("message", told) if isinstance(told, Mapping) else told)[:500]
    except (msgspec.DecodeError, AttributeError):
        return content[:300].decode(errors="replace")


def _document(path: str, response: httpx.Response) -> Any:
    body = content(path, response)
    try:
        return msgspec.json.decode(body) if body else None
    except msgspec.DecodeError as error:
        raise EngineRefused(f"{path}: an answer that is not JSON: {response.text[:200]}") from error
