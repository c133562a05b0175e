"""Samples of real vLLM servers for the SDK: what the weights say, and whose fault a failure is."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from gangflow.integrations.vllm.adapter import VllmEngine
from gangflow.integrations.vllm.capabilities import TOKENS
from gangflow.integrations.vllm.wire import VllmWire
from gangflow.member.endpoints import Endpoint
from gangflow.member.wire import RequestFailed
from tests.engines.versions import (
    LONG,
    MANY,
    SEQUENCE,
    T,
    Trainer,
    agrees,
    flight,
    pushed,
    running,
    scraped,
)


async def test_samples_are_what_the_weights_say_with_and_without_the_token_api(
    rollout: VllmEngine, trainer: Trainer, wire: VllmWire
) -> None:
    head = trainer.head(1)
    await pushed(rollout, head)
    target = Endpoint("rollout", 0, 1, {}, rollout.url, head.weights)
    asked = flight({"token_ids": SEQUENCE, "seed": 3}, {"token_ids": [9, 8, 7], "seed": 4}, [7, 7])
    answers = await wire.generate(target, asked, T)
    again = await wire.generate(target, asked, T)
    _, able = wire._able[target.url]
    wire._able[target.url] = (1, replace(able, paths=able.paths - {TOKENS}))
    completions = await wire.generate(target, asked, T)
    for number, prompt in enumerate((SEQUENCE, [9, 8, 7], [7, 7])):
        for answer in (answers[number], completions[number]):
            assert answer.failure is None, answer.message
            assert answer.weights == (head.weights,) * 4
            for output in answer.outputs:
                assert output["finish_reason"] in ("stop", "length")
                agrees(trainer, prompt, output)
    assert len({tuple(output["token_ids"]) for output in answers[0].outputs}) > 1
    for number in (0, 1):
        tokens = [output["token_ids"] for output in answers[number].outputs]
        assert [output["token_ids"] for output in again[number].outputs] == tokens
        assert [output["token_ids"] for output in completions[number].outputs] == tokens


async def test_faults_of_a_prompt_are_told_from_faults_of_an_engine(
    rollout: VllmEngine, trainer: Trainer, wire: VllmWire
) -> None:
    head = trainer.head(1)
    await pushed(rollout, head)
    target = Endpoint("rollout", 0, 1, {}, rollout.url, head.weights)
    answers = await wire.generate(target, flight([5], [500], [5] * 300, samples=1), T)
    assert [answer.failure and answer.failure.value for answer in answers.values()] == [None, "data", "data"]
    assert "out of vocabulary" in answers[1].message
    assert "length" in answers[2].message
    assert "300" in answers[2].message
    with pytest.raises(RequestFailed, match="no sampling parameter 'temprature'"):
        await wire.generate(target, flight([5], temprature=1.0), T)


async def test_a_restarted_engine_has_samples_of_nobodys_weights(engine_url: str, wire: VllmWire, trainer: Trainer) -> None:
    """Scenario 45: it answers, under the same address, and has not got the weights yet."""
    target = Endpoint("rollout", 0, 1, {}, engine_url, trainer.head(1).weights)
    answers = await wire.generate(target, flight([5], samples=1), T)
    assert answers[0].failure == "infra"
    assert "'default'" in answers[0].message


async def test_a_flight_that_is_taken_back_is_ended_in_the_engine(
    rollout: VllmEngine, trainer: Trainer, wire: VllmWire
) -> None:
    head = trainer.head(1)
    await pushed(rollout, head)
    target = Endpoint("rollout", 0, 1, {}, rollout.url, head.weights)
    before = await scraped(rollout.url)
    asking = asyncio.create_task(wire.generate(target, flight(SEQUENCE, samples=MANY, max_tokens=LONG, ignore_eos=True), T))
    await running(rollout.url, 1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    deadline = time.monotonic() + T
    while (after := await scraped(rollout.url)).running:
        assert time.monotonic() < deadline
    assert after.finished["length"] == before.finished["length"], "it ran to its end, for nobody"
