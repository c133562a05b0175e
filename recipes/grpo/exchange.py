"""What actor and rollout tell each other about samples: prompts and outputs as the JSON of the `generate` verb.

A prompt is `{"text": "07+45=", "seed": n}`; the k-th of its samples is drawn from that seed and k alone.
An output is `["250", l₀, l₁, l₂]`: the answer as written, least significant digit first, and its digits' log-probabilities.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gangflow.recipes.grpo import task
from gangflow.recipes.grpo.policy import Floats, Policy, chances
from gangflow.recipes.grpo.task import ANSWER_DIGITS, PROMPT_DIGITS, Digits

_TEXT = re.compile(r"\d\d\+\d\d=", re.ASCII)


def ask(digits: Digits, seeds: NDArray[np.uint64]) -> list[dict[str, Any]]:
    """Prompts (n, 4) and their seeds (n,) as JSON objects."""
    return [{"text": task.text(prompt), "seed": int(seed)} for prompt, seed in zip(digits, seeds, strict=True)]


def answer(policy: Policy, asked: Sequence[Any], indices: Sequence[int]) -> list[list[Any]]:
    """An output for each of `asked`: the sample of that index of that prompt. ValueError for what is not a prompt."""
    digits, seeds = _read(asked)
    answers, logprobs = policy.sample(digits, chances(seeds, np.array(indices, np.int64)))
    texts = ["".join(map(str, written)) for written in answers.tolist()]
    return [[text, *row] for text, row in zip(texts, logprobs.tolist(), strict=True)]


def prompts(asked: Sequence[Any]) -> Digits:
    """The digits (n, 4) of prompts that `ask` made."""
    return _read(asked)[0]


def read(outputs: Sequence[Any]) -> tuple[Digits, Floats]:
    """Answers (n, 3) and their log-probabilities (n, 3), to the bit. ValueError for what is not an output."""
    try:
        letters = "".join([output[0] for output in outputs])
        answers = np.frombuffer(letters.encode("ascii"), np.uint8).reshape(len(outputs), ANSWER_DIGITS) - np.uint8(ord("0"))
        logprobs = np.array([output[1:] for output in outputs], np.float32).reshape(len(outputs), ANSWER_DIGITS)
    except (TypeError, KeyError, IndexError, UnicodeEncodeError) as broken:
        raise ValueError(f"not the outputs of a rollout: {broken}") from broken
    if answers.max(initial=0) > 9:
        raise ValueError("an answer has something else than digits")
    return answers.astype(np.int8), logprobs


def _read(asked: Sequence[Any]) -> tuple[Digits, NDArray[np.uint64]]:
    digits: list[list[int]] = []
    seeds: list[int] = []
    for prompt in asked:
        text, seed = (prompt.get("text"), prompt.get("seed")) if isinstance(prompt, dict) else (None, None)
        if not isinstance(text, str) or not _TEXT.fullmatch(text):
            raise ValueError(f"expected a prompt such as 07+45=, got {text!r}")
        if not isinstance(seed, int) or not 0 <= seed < 2**64:
            raise ValueError(f"expected a seed from 0 to 2^64 - 1, got {seed!r}")
        digits.append([int(letter) for letter in text if letter.isdigit()])
        seeds.append(seed)
    return np.array(digits, np.int8).reshape(-1, PROMPT_DIGITS), np.array(seeds, np.uint64)
