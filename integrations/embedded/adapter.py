"""The engine port over the embedded engine's HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import msgspec

from gangflow.channel import INCARNATION_HEADER, TERM_HEADER, Head, WeightsId
from gangflow.coordinators.engine import EngineFenced, EngineRefused, EngineSilent, PauseMode

_OUTER_S = 600.0
"""Never reached: each verb has its own deadline, for the whole of it."""


class EmbeddedEngine:
    """One incarnation of one embedded rollout."""

    def __init__(self, url: str, incarnation: int, term: int) -> None:
        self.url = url
        headers = {TERM_HEADER: str(term), INCARNATION_HEADER: str(incarnation)}
        # A proxy of the environment never leads to a rollout, and there is no TLS to verify.
        self._http = httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, verify=False, timeout=_OUTER_S)
        self._incarnation = incarnation

    async def health(self, timeout_s: float) -> None:
        await self._ask("GET", "/health", None, timeout_s)

    async def generate(self, prompts: Sequence[Any], params: Mapping[str, Any], timeout_s: float) -> list[Any]:
        body = {
            "incarnation": self._incarnation,
            "attempt": 1,
            "sample_ids": [[f"canary/{number}"] for number in range(len(prompts))],
            "prompts": prompts,
            "params": params,
        }
        results = (await self._ask("POST", "/generate", body, timeout_s))["results"]
        failed = [result["error"] for result in results if "error" in result]
        if failed:
            raise EngineRefused(failed[0])
        return [result["outputs"][0] for result in results]

    async def pause(self, mode: PauseMode, timeout_s: float) -> None:
        if mode == "keep":
            raise EngineRefused("the embedded engine cannot freeze what runs: pause wait or abort")
        await self._ask("POST", "/pause", {"mode": mode}, timeout_s)

    async def resume(self, timeout_s: float) -> None:
        await self._ask("POST", "/resume", {}, timeout_s)

    async def abort(self, timeout_s: float) -> None:
        await self._ask("POST", "/abort", {}, timeout_s)

    async def load(self, head: Head, timeout_s: float, membership_version: int) -> WeightsId:
        body = {"path": head.path, "sha256": head.weights.sha256, "weights": head.weights.document()}
        return WeightsId.parse((await self._ask("POST", "/load", body, timeout_s))["weights"])

    async def version(self, timeout_s: float) -> WeightsId | None:
        return _weights(await self._ask("GET", "/version", None, timeout_s))

    async def release(self, timeout_s: float) -> None:
        await self._ask("POST", "/release", {}, timeout_s)

    async def close(self) -> None:
        await self._http.aclose()

    async def _ask(self, method: str, path: str, body: object, timeout_s: float) -> dict[str, Any]:
        content = None if body is None else msgspec.json.encode(body)
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._http.request(method, path, content=content)
        except TimeoutError as error:
            raise EngineSilent(f"{path}: no answer within {timeout_s:g} s") from error
        except httpx.TransportError as error:
            raise EngineSilent(f"{path}: {type(error).__name__} {error}".strip()) from error
        try:
            document: dict[str, Any] = msgspec.json.decode(response.content)
        except msgspec.DecodeError:
            document = {"error": response.text[:200]}
        if response.status_code < 400:
            return document
        message = f"{path}: HTTP {response.status_code}: {document.get('error', '')}"
        if document.get("code") == EngineFenced.code:
            raise EngineFenced(message)
        raise EngineRefused(message, _weights(document))


def _weights(document: Mapping[str, Any]) -> WeightsId | None:
    given = document.get("weights")
    return WeightsId.parse(given) if given else None
