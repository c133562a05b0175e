"""Canaries: the coordinator asks an engine what its weights say, before it serves and besides."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gangflow.channel import Head
from gangflow.coordinators.engine import EngineRefused
from gangflow.integrations.vllm.adapter import VllmEngine
from gangflow.integrations.vllm.transport import PathTransport
from tests.unit.integrations.vllm.conftest import TOKENS, connect
from tests.unit.integrations.vllm.fake_vllm import FakeVllm, logprob
from tests.unit.integrations.vllm.within import Within

T = 5.0
Publish = Callable[..., Head]
SCORE = {"score": True}


@pytest.mark.parametrize("scale_out", [True, False])
@pytest.mark.parametrize("priorities", [True, False])
async def test_a_score_is_asked_for_before_all_that_waits_where_that_can_be(
    publish: Publish, paths: PathTransport, scale_out: bool, priorities: bool
) -> None:
    server = FakeVllm(scale_out=scale_out, priorities=priorities)
    engine = connect(server, paths)
    head = publish(1)
    await engine.pause("wait", T)
    await engine.load(head, T, 1)
    await engine.resume(T)
    for _ in range(2):
        found = await engine.generate([list(TOKENS), [9, 9]], SCORE, T)
        assert head.probe is not None
        assert head.probe.difference(found[0]["logprobs"]).largest == 0
        assert found[1] == {"logprobs": [logprob("policy 1/1", [9], 9)]}
    path = "/inference/v1/generate" if scale_out else "/v1/completions"
    assert server.bodies[path].get("priority", 0) == (-1 if priorities else 0)


@pytest.mark.parametrize(
    ("prompt", "params", "said"),
    [
        ([5], SCORE, "two tokens at least"),
        ("text", SCORE, "a list of token ids, not 'text'"),
        ([5, 6], {**SCORE, "max_tokens": 3}, "takes no parameters, not max_tokens"),
        ([5, 500], SCORE, "Token id 500 is out of vocabulary"),
        ([5, 6], {"n": 3}, "n is set by the wire"),
        ([], {"max_tokens": 2}, "a list of token ids"),
        ([500], {"max_tokens": 2}, "out of vocabulary"),
    ],
)
async def test_a_canary_that_cannot_be_is_refused(engine: VllmEngine, prompt: Any, params: dict[str, Any], said: str) -> None:
    with pytest.raises(EngineRefused, match=said):
        await engine.generate([prompt], params, T)


async def test_scores_that_are_none_are_refused(paths: PathTransport) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.path
        documents: dict[str, Any] = {
            "/openapi.json": {"paths": {"/inference/v1/generate": {}}},
            "/version": {"version": "0.32.0"},
        }
        return httpx.Response(200, content=json.dumps(documents.get(path, {"prompt_logprobs": [None], "choices": [{}]})))

    engine = VllmEngine("http://rollout", 1, 1, paths, Within(httpx.MockTransport(answer)))
    with pytest.raises(EngineRefused, match="log-probabilities of 1 prompt tokens instead of 2"):
        await engine.generate([[5, 6]], SCORE, T)
