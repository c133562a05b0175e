"""The way from the SDK to a rollout: `POST /generate` of the embedded engine, and how its refusals are classed.

Request: {"incarnation", "attempt", "sample_ids": [[id, …] per prompt], "prompts": […], "params": {…}}.
Answer: {"results": [{"outputs": […], "weights": {…} | null} | {"error": message, "class": "infra"|"data"|"policy"}, …]}, one
for each prompt. A refusal as a whole is {"error", "class"} with a status of 400 or above.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
import msgspec

from gangflow.channel import WeightsId
from gangflow.member.dispatch import Answer
from gangflow.member.endpoints import Endpoint
from gangflow.member.failures import FailureClass

CONNECT_S = 2.0
"""A rollout that is alive accepts at once: it is on the cluster's own network."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One flight as it is sent."""

    numbers: tuple[int, ...]
    """Of its prompts within the call; answers come back under them."""
    prompts: Sequence[Any]
    sample_ids: Sequence[Sequence[str]]
    params: Mapping[str, Any]
    attempt: int


class RequestFailed(Exception):
    """A whole request failed."""

    def __init__(self, failure: FailureClass, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.failure = failure
        self.message = message
        self.refused = refused
        """The engine is well and said no (paused, another incarnation): no sign of a hang."""


class Wire(Protocol):
    """How samples are asked for. The embedded engine's is `HttpWire`."""

    async def generate(self, target: Endpoint, asked: Asked, timeout_s: float) -> dict[int, Answer]:
        """Answers by prompt number; RequestFailed when the request as a whole failed."""
        ...

    async def close(self) -> None: ...


class HttpWire:
    """JSON over HTTP, with one connection pool."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None) -> None:
        # A proxy of the environment never leads to a rollout, and there is no TLS to verify. Connections are dropped before
        # the engine drops them, so that none is just being closed when it is used again.
        limits = httpx.Limits(keepalive_expiry=30.0)
        self._http = httpx.AsyncClient(trust_env=False, verify=False, limits=limits, transport=transport)

    async def generate(self, target: Endpoint, asked: Asked, timeout_s: float) -> dict[int, Answer]:
        body = msgspec.json.encode(
            {
                "incarnation": target.incarnation,
                "attempt": asked.attempt,
                "sample_ids": asked.sample_ids,
                "prompts": asked.prompts,
                "params": asked.params,
            }
        )
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_S)
        try:
            response = await self._http.post(
                f"{target.url}/generate", content=body, headers={"Content-Type": "application/json"}, timeout=timeout
            )
        except httpx.TransportError as error:
            raise RequestFailed(FailureClass.INFRA, f"{type(error).__name__} {error}".strip()) from error
        if response.status_code >= 400:
            raise refusal(response.status_code, response.content)
        return _answers(asked.numbers, response.content)

    async def close(self) -> None:
        await self._http.aclose()


def refusal(status: int, content: bytes) -> RequestFailed:
    """What a refusal means. The engine's own word counts; a gateway's statuses are INFRA; anything unknown is DATA."""
    failure, message = None, content[:300].decode(errors="replace")
    try:
        document = msgspec.json.decode(content)
        message = str(document["error"])
        failure = FailureClass(document["class"])
    except (msgspec.DecodeError, ValueError, KeyError, TypeError):
        pass
    if failure is None:
        failure = FailureClass.INFRA if status in {409, 429, 502, 503, 504} else FailureClass.DATA
    return RequestFailed(failure, f"HTTP {status}: {message}", refused=status in {409, 429, 503})


def _answers(numbers: Sequence[int], content: bytes) -> dict[int, Answer]:
    try:
        results = msgspec.json.decode(content)["results"]
        return {number: _answer(result) for number, result in zip(numbers, results, strict=True)}
    except (msgspec.DecodeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RequestFailed(FailureClass.DATA, f"an answer that is none: {error}") from error


def _answer(result: Mapping[str, Any]) -> Answer:
    if "error" in result:
        try:
            failure = FailureClass(result.get("class", ""))
        except ValueError:
            failure = FailureClass.DATA
        return Answer(failure=failure, message=str(result["error"]))
    outputs = tuple(result["outputs"])
    weights = WeightsId.parse(result["weights"]) if result.get("weights") else None
    return Answer(outputs, (weights,) * len(outputs))
