"""Versions of a tiny model as a trainer publishes them, and what real engines are asked about them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from gangflow.channel import Head, WeightsId
from gangflow.coordinators.engine import PauseMode
from gangflow.integrations.vllm import metrics
from gangflow.integrations.vllm.adapter import VllmEngine
from gangflow.integrations.vllm.http import AioHttp
from gangflow.member.digest import digest
from gangflow.member.wire import Asked
from gangflow.recipes.lm import model as models

T = 60.0
SCORE = {"score": True}
TOLERANCE = 1e-5
ALIKE = [5 + place % 90 for place in range(140)]
"""A prompt of more than a block of the cache, which has 128 tokens on a CPU."""
MANY = 96
"""Sequences at once, so that they take longer than it takes to see that they run."""
LONG = 240
"""Tokens of each."""
SEQUENCE = [5, 9, 17, 33, 65, 12, 40, 77, 23, 8, 51, 90]


class Trainer:
    """Policies of one actor: the tiny model, moved a little for each version."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model = models.load(model)
        self.tokenizer = models.tokenizer_of(model)
        self.folder = folder
        self.first = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.heads: dict[int, Head] = {}

    def head(self, version: int) -> Head:
        """Published: a folder, its digest, and what the policy says of a few tokens. The same at every call."""
        if version not in self.heads:
            self.become(version)
            folder = self.folder / f"v{version}"
            models.save_for_engines(self.model, folder, tokenizer=self.tokenizer)
            probe = models.probe_of(self.model, SEQUENCE)
            self.heads[version] = Head(WeightsId(1, version, digest(folder)), str(folder), probe)
        return self.heads[version]

    def become(self, version: int) -> None:
        """Take the weights of a version."""
        noise = torch.Generator().manual_seed(version)
        moved = {
            name: value + 0.05 * value.std() * torch.randn(value.shape, generator=noise) if value.dim() > 1 else value
            for name, value in self.first.items()
        }
        self.model.load_state_dict(moved)

    def says(self, version: int, tokens: list[int]) -> list[float]:
        """Of each token after the first, under the weights of a version."""
        self.become(version)
        return list(models.probe_of(self.model, tokens).logprobs)


async def pushed(engine: VllmEngine, head: Head, mode: PauseMode = "wait") -> None:
    """As the coordinator does it, the probe last."""
    await engine.pause(mode, T)
    assert await engine.load(head, T, 1) == head.weights
    await engine.resume(T)
    await probed(engine, head)


async def probed(engine: VllmEngine, head: Head) -> None:
    assert head.probe is not None
    (found,) = await engine.generate([list(head.probe.tokens)], SCORE, T)
    assert head.probe.difference(found["logprobs"]).largest <= TOLERANCE


async def sample(engine: VllmEngine, tokens: list[int], **params: Any) -> Any:
    given = {"max_tokens": 8, "temperature": 1.0, "ignore_eos": True, **params}
    (found,) = await engine.generate([{"token_ids": tokens, "seed": 11}], given, T)
    return found


def begun(engine: VllmEngine) -> asyncio.Task[list[Any]]:
    """A lot of work for an engine."""
    given = {"max_tokens": LONG, "temperature": 1.0, "ignore_eos": True}
    return asyncio.create_task(engine.generate([SEQUENCE] * MANY, given, T))


def agrees(trainer: Trainer, prompt: list[int], output: dict[str, Any]) -> None:
    """Every log-probability is what transformers computes for the weights that the span names."""
    whole = [*prompt, *output["token_ids"]]
    assert output["versions"]
    for version, start, end in output["versions"]:
        expected = trainer.says(version, whole)[len(prompt) - 1 :]
        for place in range(start, end):
            assert output["logprobs"][place] == pytest.approx(expected[place], abs=TOLERANCE), (version, place)


async def running(url: str, tokens: int) -> None:
    """Returns when sequences have got so many more tokens: they are being worked on."""
    begun = (await scraped(url)).generation_tokens
    deadline = time.monotonic() + T
    while (await scraped(url)).generation_tokens < begun + tokens:
        assert time.monotonic() < deadline


async def all_running(url: str) -> None:
    """Returns when all of `begun` have a place in the batch: what comes only after a pause would wait for its end."""
    deadline = time.monotonic() + T
    while (await scraped(url)).running < MANY:
        assert time.monotonic() < deadline


async def scraped(url: str) -> metrics.Metrics:
    http = AioHttp()
    try:
        return await metrics.scrape(http, url, T)
    finally:
        await http.close()


def flight(*prompts: Any, samples: int = 4, **params: Any) -> Asked:
    ids = [[f"run/0/{number}/{index}" for index in range(samples)] for number in range(len(prompts))]
    return Asked(tuple(range(len(prompts))), prompts, ids, {"max_tokens": 12, "temperature": 1.0, **params}, 1)
