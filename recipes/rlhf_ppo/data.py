"""What a run learns from: prompts, preference pairs, and the truth where it is known. No torch.

`counter` is made by `task`. Any other name is a file of JSON lines with `prompt`, `chosen` and `rejected`, all texts; its
prompts, with all of their pairs, are split into those that are trained on and a seeded fifth that is held out. Its truth is not
known.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gangflow.recipes.lm.problems import Problem, json_lines
from gangflow.recipes.rlhf_ppo import task
from gangflow.recipes.rlhf_ppo.config import COUNTER, Config
from gangflow.recipes.rlhf_ppo.task import Pair
from gangflow.recipes.services.ending import BadInput

HELD_OUT: Final = 0.2
"""Of a file's prompts."""

Truth = Callable[[str, str], float]
"""How good a reply to a prompt is, from 0 to 1."""


class BadPreferences(BadInput):
    """A file of preference pairs that is not there, or has something else in it."""

    code = "bad_preferences"


@dataclass(frozen=True, slots=True)
class Data:
    """One run's."""

    trained: tuple[Problem, ...]
    """Prompts that the policy replies to in training; their `answer` is empty."""
    held_out: tuple[Problem, ...]
    pairs: tuple[Pair, ...]
    """On trained prompts."""
    held_out_pairs: tuple[Pair, ...]
    truth: Truth | None
    """For measuring only: neither policy nor reward model is told."""


def load(config: Config) -> Data:
    """By the configuration. BadPreferences names the line of a file and what is wrong with it."""
    if config.data == COUNTER:
        trained, held_out = task.split(config.split_seed)
        return Data(
            _prompts(trained, 0),
            _prompts(held_out, len(trained)),
            tuple(task.pairs(trained, config.pairs, config.seed)),
            tuple(task.pairs(held_out, config.held_out_pairs, config.seed + 1)),
            task.quality,
        )
    pairs = _read(Path(config.data))
    prompts = list(dict.fromkeys(pair.prompt for pair in pairs))
    random.Random(f"split/{config.split_seed}").shuffle(prompts)
    cut = round(len(prompts) * HELD_OUT)
    if not 0 < cut < len(prompts):
        raise BadPreferences(f"{config.data}: {len(prompts)} different prompts; at least 3, so that some can be held out")
    kept = set(prompts[:cut])
    return Data(
        _prompts(tuple(prompts[cut:]), 0),
        _prompts(tuple(prompts[:cut]), len(prompts) - cut),
        tuple(pair for pair in pairs if pair.prompt not in kept),
        tuple(pair for pair in pairs if pair.prompt in kept)[: config.held_out_pairs],
        None,
    )


def _prompts(texts: tuple[str, ...], first: int) -> tuple[Problem, ...]:
    return tuple(Problem(first + number, text, "", text) for number, text in enumerate(texts))


def _read(path: Path) -> list[Pair]:
    try:
        lines = json_lines(path)
    except (OSError, UnicodeDecodeError) as broken:
        raise BadPreferences(f"{path}: {broken}") from broken
    return [_pair(f"{path}:{number + 1}", line) for number, line in enumerate(lines)]


def _pair(where: str, line: str) -> Pair:
    try:
        found: Any = json.loads(line)
    except json.JSONDecodeError as broken:
        raise BadPreferences(f"{where}: not JSON: {broken}") from broken
    if not isinstance(found, dict):
        raise BadPreferences(f"{where}: expected an object with `prompt`, `chosen` and `rejected`, got {line[:100]}")
    for key in ("prompt", "chosen", "rejected"):
        if not isinstance(found.get(key), str) or not found[key]:
            raise BadPreferences(f"{where}: {key}: expected a text, got {found.get(key)!r}")
    if found["chosen"] == found["rejected"]:
        raise BadPreferences(f"{where}: rejected: expected another text than `chosen`, got the same")
    return Pair(found["prompt"], found["chosen"], found["rejected"])
