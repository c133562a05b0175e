"""Samples for the SDK: one request a prompt, and which failure is whose."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx
import pytest

from gangflow.channel import WeightsId
from gangflow.integrations.vllm.wire import VllmWire
from gangflow.member.dispatch import Answer
from gangflow.member.endpoints import Endpoint
from gangflow.member.failures import FailureClass
from gangflow.member.wire import Asked, RequestFailed
from tests.inprocess import InProcess
from tests.unit.integrations.vllm.fake_vllm import FakeVllm, logprob
from tests.unit.integrations.vllm.within import Within

T = 5.0
OLD, NEW = WeightsId(1, 3, "a" * 64), WeightsId(1, 4, "b" * 64)
TOKENS = "/inference/v1/generate"
COMPLETIONS = "/v1/completions"


def target(incarnation: int = 1, weights: WeightsId | None = OLD) -> Endpoint:
    return Endpoint("rollout", 0, incarnation, {}, "http://rollout", weights)


def flight(*prompts: Any, samples: int = 2, **params: Any) -> Asked:
    ids = [[f"run/0/{number}/{index}" for index in range(samples)] for number in range(len(prompts))]
    return Asked(tuple(range(10, 10 + len(prompts))), prompts, ids, {"max_tokens": 4, **params}, 1)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> FakeVllm:
    made = FakeVllm("policy", **getattr(request, "param", {}))
    made.label = OLD.label()
    return made


@pytest.fixture
async def wire(server: FakeVllm) -> AsyncIterator[VllmWire]:
    made = VllmWire(Within(InProcess(server.app)))
    yield made
    await made.close()


async def failed(wire: VllmWire, asked: Asked, timeout_s: float = T, **of: Any) -> RequestFailed:
    with pytest.raises(RequestFailed) as error:
        await wire.generate(target(**of), asked, timeout_s)
    return error.value


async def test_each_prompt_is_a_request_with_its_seed_and_its_answer_has_the_prompts_number(
    server: FakeVllm, wire: VllmWire
) -> None:
    answers = await wire.generate(target(), flight({"token_ids": [5, 6], "seed": 7}, [8]), T)
    assert server.requests.count(f"POST {TOKENS}") == 2
    assert set(answers) == {10, 11}
    first = answers[10]
    assert first.weights == (OLD, OLD)
    output = first.outputs[0]
    assert output["finish_reason"] == "length"
    assert output["versions"] == [[3, 0, 4]]
    assert len(output["token_ids"]) == 4
    before = [5, 6]
    for token, said in zip(output["token_ids"], output["logprobs"], strict=True):
        assert said == logprob("policy", before, token)
        before.append(token)
    assert first.outputs[0]["token_ids"] != first.outputs[1]["token_ids"]
    again = await wire.generate(target(), flight({"token_ids": [5, 6], "seed": 7}), T)
    assert again[10].outputs == first.outputs
    other = await wire.generate(target(), flight({"token_ids": [5, 6], "seed": 8}), T)
    assert other[10].outputs[0] == first.outputs[1]


async def test_the_oldest_of_several_weights_is_the_samples(server: FakeVllm, wire: VllmWire) -> None:
    server.hold_after = 1
    asking = asyncio.create_task(wire.generate(target(), flight([5, 6]), T))
    await server.held.wait()
    server.label, server.hold_after = NEW.label(), None
    server.wake()
    answer = (await asking)[10]
    assert [output["versions"] for output in answer.outputs] == [[[3, 0, 1], [4, 1, 4]]] * 2
    assert answer.weights == (OLD, OLD)


async def test_what_a_server_can_do_is_asked_once_in_its_life(server: FakeVllm, wire: VllmWire) -> None:
    for incarnation in (1, 1, 2):
        await wire.generate(target(incarnation), flight([5]), T)
    assert server.requests.count("GET /openapi.json") == 2


# --- whose weights


@pytest.mark.parametrize("label", ["default", "loading 1/4/" + "b" * 64 + " under term 1", "7"])
async def test_weights_that_nobody_published_are_infra(server: FakeVllm, wire: VllmWire, label: str) -> None:
    """The engine restarted under the same address, or it is being loaded."""
    server.label = label
    answers = await wire.generate(target(), flight([5]), T)
    assert answers[10].failure is FailureClass.INFRA
    assert repr(label) in answers[10].message


async def test_without_a_coordinator_nobody_publishes(server: FakeVllm, wire: VllmWire) -> None:
    server.label = "default"
    answer = (await wire.generate(target(weights=None), flight([5]), T))[10]
    assert answer.failure is None
    assert answer.weights == (None, None)
    assert answer.outputs[0]["versions"] == []


async def test_token_answers_that_say_no_versions_are_infra(server: FakeVllm, wire: VllmWire) -> None:
    server.says_spans = False
    answer = (await wire.generate(target(), flight([5]), T))[10]
    assert (answer.failure, answer.message) == (
        FailureClass.INFRA,
        "sampled by weights that nobody published: nobody says which",
    )


# --- without the token API

WITHOUT = pytest.mark.parametrize("server", [{"scale_out": False}], indirect=True)


@WITHOUT
async def test_completions_stand_in_for_the_token_api(server: FakeVllm, wire: VllmWire) -> None:
    answer = (await wire.generate(target(), flight({"token_ids": [5, 6], "seed": 7}), T))[10]
    assert [request for request in server.requests if "weight_info" in request or "POST" in request] == [
        "GET /weight_info",
        f"POST {COMPLETIONS}",
        "GET /weight_info",
    ]
    assert answer.weights == (OLD, OLD)
    assert answer.outputs[0]["versions"] == [[3, 0, 4]]
    assert answer.outputs[0]["logprobs"][0] == logprob("policy", [5, 6], answer.outputs[0]["token_ids"][0])


@WITHOUT
async def test_completions_sample_the_whole_distribution_whatever_the_model_prefers(server: FakeVllm, wire: VllmWire) -> None:
    """What is not given would be the model's own `generation_config.json`'s, and the log-probabilities would not show it."""
    await wire.generate(target(), flight([5, 6]), T)
    body = server.bodies[COMPLETIONS]
    given = {name: body[name] for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
    assert given == {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    await wire.generate(target(), flight([5, 6], top_p=0.9), T)
    assert server.bodies[COMPLETIONS]["top_p"] == 0.9


@WITHOUT
@pytest.mark.parametrize(
    ("before", "after", "weights"), [(OLD, NEW, OLD), (NEW, OLD, OLD), (OLD, None, None), (None, NEW, None)]
)
async def test_the_older_of_the_versions_around_a_completion_counts(
    server: FakeVllm, wire: VllmWire, before: WeightsId | None, after: WeightsId | None, weights: WeightsId | None
) -> None:
    server.label = before.label() if before else "default"

    def change() -> None:
        server.label = after.label() if after else "default"

    server.on[COMPLETIONS] = change
    answer = (await wire.generate(target(), flight([5]), T))[10]
    if weights is None:
        assert (answer.failure, "'default'" in answer.message) == (FailureClass.INFRA, True)
    else:
        assert answer.weights == (weights, weights)
        assert answer.outputs[0]["versions"] == [[weights.version, 0, 4]]


@pytest.mark.parametrize("server", [{"scale_out": False, "development": False}], indirect=True)
async def test_a_server_without_versions_serves_groups_without_a_coordinator_only(server: FakeVllm, wire: VllmWire) -> None:
    alone = (await wire.generate(target(weights=None), flight([5]), T))[10]
    assert (alone.failure, alone.weights) == (None, (None, None))
    answer = (await wire.generate(target(), flight([5]), T))[10]
    assert answer.failure is FailureClass.INFRA


# --- failures


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([], "a list of token ids"),
        ("5 6", "a list of token ids"),
        ([5, True], "a list of token ids"),
        ({"token_ids": [5], "sed": 1}, "not 'sed'"),
        ({"token_ids": [5], "seed": "x"}, "a seed is a whole number"),
        ([500], "Token id 500 is out of vocabulary"),
    ],
)
async def test_a_prompt_that_cannot_be_is_data_and_spoils_no_other(
    server: FakeVllm, wire: VllmWire, prompt: Any, said: str
) -> None:
    answers = await wire.generate(target(), flight([5], prompt, [6]), T)
    assert answers[11].failure is FailureClass.DATA
    assert said in answers[11].message
    assert [answers[number].failure for number in (10, 12)] == [None, None]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"temprature": 1}, "no sampling parameter 'temprature'; nearest: temperature"),
        ({"n": 4}, "n is set by the wire"),
        ({"logprobs": 5, "seed": 1}, "logprobs, seed is set by the wire"),
    ],
)
async def test_params_that_would_be_ignored_are_data(server: FakeVllm, wire: VllmWire, params: Any, said: str) -> None:
    error = await failed(wire, flight([5], **params))
    assert error.failure is FailureClass.DATA
    assert said in error.message
    assert f"POST {TOKENS}" not in server.requests


async def test_more_samples_than_the_server_has_places_is_data(server: FakeVllm, wire: VllmWire) -> None:
    answers = await wire.generate(target(), flight([5], samples=200), T)
    assert answers[10].failure is FailureClass.DATA
    assert "max_num_seqs (128), got 200" in answers[10].message


async def test_text_is_made_only_where_something_needs_it(server: FakeVllm, wire: VllmWire) -> None:
    await wire.generate(target(), flight([5]), T)
    assert server.bodies[TOKENS]["sampling_params"]["detokenize"] is False
    await wire.generate(target(), flight([5], stop=["\n"]), T)
    assert "detokenize" not in server.bodies[TOKENS]["sampling_params"]


async def test_what_was_aborted_is_infra_and_no_sign_of_a_hang(server: FakeVllm, wire: VllmWire) -> None:
    server.hold_after = 1
    asking = asyncio.create_task(wire.generate(target(), flight([5], [6]), T))
    await server.held.wait()
    async with httpx.AsyncClient(transport=InProcess(server.app), base_url="http://rollout") as other:
        await other.post("/abort_requests", json={})
    answers = await asking
    assert [(answer.failure, answer.message) for answer in answers.values()] == [
        (FailureClass.INFRA, "the engine ended it: abort")
    ] * 2


async def test_a_dead_engine_is_infra(server: FakeVllm, wire: VllmWire) -> None:
    await wire.generate(target(), flight([5]), T)
    server.weights = "broken"
    error = await failed(wire, flight([5], [6]))
    assert (error.failure, error.refused) == (FailureClass.INFRA, False)
    assert "EngineCore encountered an issue" in error.message


async def test_one_that_hangs_is_infra_and_what_it_was_asked_is_taken_back(server: FakeVllm, wire: VllmWire) -> None:
    server.hold_after = 1
    error = await failed(wire, flight([5], [6]), 0.3)
    assert (error.failure, error.refused, error.message) == (FailureClass.INFRA, False, "no answer within 0.3 s")
    assert server.left == 4
    server.hang = {"/openapi.json"}
    assert (await failed(wire, flight([5]), 0.1, incarnation=2)).failure is FailureClass.INFRA


async def test_what_was_answered_in_time_is_not_lost_with_the_rest(server: FakeVllm, wire: VllmWire) -> None:
    """Prompts of one flight end at different times."""
    server.hold_prompt = [6]
    answers = await wire.generate(target(), flight([5], [6]), 1.0)
    assert {number: answer.failure for number, answer in answers.items()} == {10: None, 11: FailureClass.INFRA}
    assert len(answers[10].outputs) == 2
    assert server.left == 2


async def test_a_flight_that_is_taken_back_ends_in_the_engine(server: FakeVllm, wire: VllmWire) -> None:
    server.hold_after = 1
    asking = asyncio.create_task(wire.generate(target(), flight([5], [6]), T))
    await server.held.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert server.left == 4
    assert server.running == []


def answering(handler: Callable[[httpx.Request], httpx.Response]) -> VllmWire:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/openapi.json":
            return httpx.Response(200, json={"paths": {TOKENS: {}}})
        if request.url.path == "/version":
            return httpx.Response(200, json={"version": "0.32.0"})
        return handler(request)

    return VllmWire(Within(httpx.MockTransport(answer)))


@pytest.mark.parametrize(
    ("status", "failure", "refused"),
    [
        (400, FailureClass.DATA, False),
        (401, FailureClass.DATA, False),
        (429, FailureClass.INFRA, True),
        (500, FailureClass.INFRA, False),
        (503, FailureClass.INFRA, True),
    ],
)
async def test_statuses(status: int, failure: FailureClass, refused: bool) -> None:
    wire = answering(lambda _: httpx.Response(status, json={"error": {"message": "so it is"}}))
    asked = flight([5])
    if failure is FailureClass.DATA:
        answers = await wire.generate(target(), asked, T)
        assert (answers[10].failure, answers[10].message) == (failure, f"{TOKENS}: HTTP {status}: so it is")
    else:
        error = await failed(wire, asked)
        assert (error.failure, error.refused) == (failure, refused)


async def test_a_broken_connection_is_infra_unless_only_the_connection_was(wire: VllmWire) -> None:
    asked: list[int] = []

    def closed(request: httpx.Request) -> httpx.Response:
        asked.append(1)
        raise httpx.RemoteProtocolError("closed", request=request)

    error = await failed(answering(closed), flight([5]))
    assert (error.failure, error.message, len(asked)) == (FailureClass.INFRA, "RemoteProtocolError closed", 2)


ONE: dict[str, Any] = {
    "index": 0,
    "token_ids": [5],
    "finish_reason": "stop",
    "logprobs": {"content": [{"logprob": -1.0}]},
    "weight_versions": [{"version": OLD.label(), "start": 0, "end": 1}],
}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "an answer that is none"),
        ({"choices": [{**ONE, "token_ids": None}]}, "an answer that is none"),
        ({"choices": [{**ONE, "logprobs": None}]}, "0 log-probabilities for 1 tokens"),
        ({"choices": [ONE, ONE]}, "2 samples instead of 1"),
        ({"choices": []}, "0 samples instead of 1"),
    ],
)
async def test_answers_that_are_none_are_data(document: Mapping[str, Any], said: str) -> None:
    wire = answering(lambda _: httpx.Response(200, json=document))
    answer = (await wire.generate(target(), flight([5], samples=1), T))[10]
    assert answer.failure is FailureClass.DATA
    assert said in answer.message


async def test_an_answer_as_a_real_server_gave_it() -> None:
    wire = answering(lambda _: httpx.Response(200, json={"choices": [ONE]}))
    assert await wire.generate(target(), flight([5], samples=1), T) == {
        10: Answer(
            ({"token_ids": [5], "logprobs": [-1.0], "finish_reason": "stop", "versions": [[3, 0, 1]]},),
            (OLD,),
        )
    }


async def test_what_is_no_vllm_is_data() -> None:
    wire = VllmWire(Within(httpx.MockTransport(lambda _: httpx.Response(200, json={"hello": "world"}))))
    assert (await failed(wire, flight([5]))).failure is FailureClass.DATA
