"""The wire's answers and refusals: what class each failure has, over a transport in memory."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gangflow.channel import WeightsId
from gangflow.member.dispatch import Answer
from gangflow.member.endpoints import Endpoint
from gangflow.member.failures import FailureClass
from gangflow.member.wire import Asked, HttpWire, RequestFailed

WEIGHTS = WeightsId(1, 2, "a" * 64)
TARGET = Endpoint("rollout", 0, 3, {}, "http://rollout", WEIGHTS)
ASKED = Asked((4, 7), ["p", "q"], [["g/0/4/0"], ["g/0/7/0"]], {"t": 1}, attempt=2)


class Server:
    def __init__(self, status: int, body: Any) -> None:
        self.status = status
        self.body = body
        self.seen: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if isinstance(self.body, Exception):
            raise self.body
        self.seen.append(json.loads(request.content))
        content = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        return httpx.Response(self.status, content=content)


async def ask(server: Server) -> dict[int, Answer]:
    wire = HttpWire(httpx.MockTransport(server))
    try:
        return await wire.generate(TARGET, ASKED, 5.0)
    finally:
        await wire.close()


async def test_answers_come_back_under_their_numbers() -> None:
    results = [{"outputs": ["x"], "weights": WEIGHTS.document()}, {"error": "too long", "class": "data"}]
    server = Server(200, {"results": results})
    assert await ask(server) == {
        4: Answer(("x",), (WEIGHTS,)),
        7: Answer(failure=FailureClass.DATA, message="too long"),
    }
    assert server.seen[0]["incarnation"] == 3
    assert server.seen[0]["prompts"] == ["p", "q"]


@pytest.mark.parametrize(
    ("status", "body", "failure", "refused"),
    [
        (503, {"error": "paused", "class": "infra"}, FailureClass.INFRA, True),
        (409, {"error": "another incarnation", "class": "infra"}, FailureClass.INFRA, True),
        (500, {"error": "bug", "class": "data"}, FailureClass.DATA, False),
        (500, {"error": "reference differs", "class": "policy"}, FailureClass.POLICY, False),
        (502, b"<html>", FailureClass.INFRA, False),
        (500, b"<html>", FailureClass.DATA, False),
        (418, {"error": "new", "class": "never heard of"}, FailureClass.DATA, False),
        (200, b"not json", FailureClass.DATA, False),
        (200, {"results": []}, FailureClass.DATA, False),
        (200, {"results": [1, 2]}, FailureClass.DATA, False),
        (200, httpx.ConnectError("refused"), FailureClass.INFRA, False),
        (200, httpx.ReadTimeout("slow"), FailureClass.INFRA, False),
    ],
)
async def test_a_failed_request_has_a_class(status: int, body: Any, failure: FailureClass, refused: bool) -> None:
    """Scenario 51: unknown counts as DATA, and nothing becomes an empty success."""
    with pytest.raises(RequestFailed) as failed:
        await ask(Server(status, body))
    assert (failed.value.failure, failed.value.refused) == (failure, refused)
    assert failed.value.message


async def test_an_unknown_class_of_one_prompt_is_data() -> None:
    answers = await ask(Server(200, {"results": [{"error": "x", "class": "?"}, {"outputs": ["y"]}]}))
    assert answers[4].failure is FailureClass.DATA
    assert answers[7] == Answer(("y",), (None,))
