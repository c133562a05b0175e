"""What was sampled, as tensors: n sequences, each a prompt and its answer, padded on the right to t tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import torch


@dataclass(frozen=True, slots=True)
class Sequences:
    """Prompts with their answers. Log-probabilities belong to the token that they predict: column j is token j + 1."""

    tokens: Any
    """(n, t) int64; 0 where there is none."""
    attention: Any
    """(n, t) bool: where there is a token."""
    answer: Any
    """(n, t − 1) bool: columns whose token belongs to the answer, its end token included."""
    sampled: Any
    """(n, t − 1) float32: the engine's log-probability of each answer token when it was sampled; 0 elsewhere."""

    def __len__(self) -> int:
        return int(self.tokens.shape[0])

    def rows(self, chosen: Any) -> Self:
        """Some of them (a slice, or indices), with what is only padding now cut off."""
        parts = {field.name: getattr(self, field.name)[chosen] for field in fields(self)}
        longest = int(parts["attention"].sum(1).max()) if len(parts["attention"]) else 1
        cut = {name: value[:, : longest - (name in {"answer", "sampled"})] for name, value in parts.items()}
        return type(self)(**cut)

    def to(self, device: str) -> Self:
        return type(self)(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


def pack(
    prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]] | None = None
) -> Sequences:
    """One row for each prompt with its answer; `logprobs`: the engine's, of the answer's tokens.

    ValueError when a prompt or an answer is empty, or when an answer and its log-probabilities differ in length.
    """
    if not prompts or len(prompts) != len(answers):
        raise ValueError(f"{len(prompts)} prompts and {len(answers)} answers: as many of each, and at least one")
    lengths = [len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True)]
    count, longest = len(prompts), max(lengths)
    tokens = torch.zeros(count, longest, dtype=torch.int64)
    attention = torch.zeros(count, longest, dtype=torch.bool)
    answer_of = torch.zeros(count, longest - 1, dtype=torch.bool)
    sampled = torch.zeros(count, longest - 1, dtype=torch.float32)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        if not len(prompt) or not len(answer):
            raise ValueError(f"row {row}: {len(prompt)} tokens of prompt and {len(answer)} of answer: at least one of each")
        start, end = len(prompt), lengths[row]
        tokens[row, :end] = torch.tensor([*prompt, *answer])
        attention[row, :end] = True
        answer_of[row, start - 1 : end - 1] = True
        if logprobs is not None:
            if len(logprobs[row]) != len(answer):
                raise ValueError(f"row {row}: {len(answer)} tokens, but {len(logprobs[row])} log-probabilities")
            sampled[row, start - 1 : end - 1] = torch.tensor(logprobs[row], dtype=torch.float32)
    return Sequences(tokens, attention, answer_of, sampled)


def outputs(made: Sequence[Any]) -> tuple[list[list[int]], list[list[float]]]:
    """Tokens and log-probabilities of what the vLLM wire answers; ValueError for anything else."""
    tokens: list[list[int]] = []
    logprobs: list[list[float]] = []
    for number, output in enumerate(made):
        try:
            tokens.append([int(token) for token in output["token_ids"]])
            logprobs.append([float(value) for value in output["logprobs"]])
        except (TypeError, KeyError, ValueError) as broken:
            raise ValueError(f"output {number} is none of a language model: {str(output)[:200]}") from broken
    return tokens, logprobs
