"""Prompts and answers in a request to a service (reference, critic, reward model), and one number a token or an answer back.

A request has `tokens`, all sequences one after the other (packed int32), `lengths`, how long each is, and `starts`, where its
answer begins (≥ 1). What is said of answers' tokens comes one after the other, too (packed float32). No torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gangflow.recipes.services.asking import ServiceFailed
from gangflow.recipes.services.packing import pack_whole, whole


def sequences(prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The part of a request that has them."""
    return {
        "tokens": pack_whole(token for parts in zip(prompts, answers, strict=True) for part in parts for token in part),
        "lengths": [len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True)],
        "starts": [len(prompt) for prompt in prompts],
    }


def portions(
    prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], *, rows: int, tokens: int
) -> Iterator[tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]]:
    """(prompts, answers) in order, of at most so many rows and so many tokens together; a row that alone has more is alone."""
    low = held = 0
    for place, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        length = len(prompt) + len(answer)
        if place > low and (place - low == rows or held + length > tokens):
            yield prompts[low:place], answers[low:place]
            low, held = place, 0
        held += length
    if low < len(prompts):
        yield prompts[low:], answers[low:]


def read(asked: Mapping[str, Any], vocabulary: int) -> tuple[list[list[int]], list[list[int]]]:
    """(prompts, answers) of a request; ValueError, saying what was expected, for anything else."""
    tokens, lengths, starts = whole(asked["tokens"]), asked["lengths"], asked["starts"]
    if not isinstance(lengths, list) or not isinstance(starts, list) or not lengths or len(lengths) != len(starts):
        raise ValueError("expected as many lengths as starts, in two lists, and at least one")
    if not all(isinstance(n, int) and isinstance(s, int) and 1 <= s < n for n, s in zip(lengths, starts, strict=True)):
        raise ValueError("each sequence has at least one token of prompt and one of answer: 1 ≤ start < length")
    if sum(lengths) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens, but lengths of {sum(lengths)}")
    if not 0 <= min(tokens) <= max(tokens) < vocabulary:
        raise ValueError(f"tokens: from 0 to {vocabulary - 1}, got {min(tokens)} … {max(tokens)}")
    prompts, answers, at = [], [], 0
    for length, start in zip(lengths, starts, strict=True):
        prompts.append(tokens[at : at + start])
        answers.append(tokens[at + start : at + length])
        at += length
    return prompts, answers


def by_answer(flat: Sequence[float], answers: Sequence[Sequence[int]], member: str) -> list[list[float]]:
    """One number for each token, as it came from the member, in a list for each answer. ServiceFailed for more or fewer."""
    wanted = sum(len(answer) for answer in answers)
    if len(flat) != wanted:
        raise ServiceFailed(f"{member} answered {len(flat)} numbers for {wanted} tokens of answers")
    found, at = [], 0
    for answer in answers:
        found.append(list(flat[at : at + len(answer)]))
        at += len(answer)
    return found
