"""Requests that stay in this process: to an app, or to whatever an httpx transport makes of them."""

from __future__ import annotations

import httpx

from gangflow.integrations.vllm.http import Broken, Reply, Unreached


class Within:
    """An `Http` over an httpx transport."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._client = httpx.AsyncClient(transport=transport, timeout=None)

    async def request(self, method: str, url: str, content: bytes | None = None) -> Reply:
        try:
            response = await self._client.request(method, url, content=content)
        except (httpx.ReadError, httpx.RemoteProtocolError) as error:
            raise Broken(f"{type(error).__name__} {error}".strip()) from error
        except httpx.TransportError as error:
            raise Unreached(f"{type(error).__name__} {error}".strip()) from error
        return Reply(response.status_code, response.content)

    async def close(self) -> None:
        await self._client.aclose()
