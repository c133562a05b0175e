"""Small parts of RLHF with PPO for tests: a model of 20,000 parameters, settings to match, services that can be killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from gangflow.recipes.lm import tiny
from gangflow.recipes.lm.model import save_for_engines
from gangflow.recipes.lm.tiny import Tiny
from gangflow.recipes.rlhf_ppo import task
from gangflow.recipes.rlhf_ppo.config import Config
from gangflow.recipes.services.serving import Answer, JsonServer

SMALL = Tiny(problems="", hidden=32, layers=1, heads=1, kv_heads=1, warm_steps=0)


def make_model(folder: Path, seed: int = 0, warm_steps: int = 0) -> Path:
    """A model folder: random, or after some supervised steps on clerks' replies."""
    made = Tiny(**{**{name: getattr(SMALL, name) for name in SMALL.__slots__}, "seed": seed, "warm_steps": warm_steps})
    text, model = tiny.tokenizer(), tiny.fresh(made)
    if warm_steps:
        said = task.corpus(task.split()[0], warm_steps * made.warm_batch, seed)
        tiny.warm(model, [(text.encode(prompt), [*text.encode(reply), tiny.END]) for prompt, reply in said], made)
    save_for_engines(model, folder, tokenizer=text)
    return folder


def settings(**changes: Any) -> Config:
    """Of a run that takes a second: 3 steps of 12 replies."""
    small: dict[str, Any] = {
        "steps": 3,
        "prompts": 6,
        "samples": 2,
        "max_tokens": 8,
        "micro_batch": 5,
        "pairs": 64,
        "held_out_pairs": 32,
        "reward_epochs": 1,
        "reward_batch": 32,
        "checkpoint_every": 2,
        "evaluate_every": 2,
        "evaluate_prompts": 5,
        "patience": "20s",
        "request_timeout": "20s",
    }
    return Config(**{**small, **changes})


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two state dicts are equal to the bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Service:
    """A JSON service of this process that can go away, and come back elsewhere with other answers."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self._server: JsonServer | None = None
        self.asked: list[str] = []
        self.start(answers)

    @property
    def urls(self) -> list[str]:
        return [self._server.url] if self._server else []

    def start(self, answers: Mapping[str, Answer]) -> None:
        def noted(path: str, answer: Answer) -> Answer:
            def answered(asked: dict[str, Any]) -> dict[str, Any]:
                self.asked.append(path)
                return answer(asked)

            return answered

        self._server = JsonServer("127.0.0.1", 0, {path: noted(path, answer) for path, answer in answers.items()})
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()


@contextmanager
def service(answers: Mapping[str, Answer]) -> Iterator[Service]:
    made = Service(answers)
    try:
        yield made
    finally:
        made.stop()
