"""What TRL asks of a `rollout_func`, as questions for `ctx.rollouts`, and the answers as TRL wants them. Pure.

TRL repeats each prompt `num_generations` times and wants one completion for each; a group asks for a prompt once, with so many
samples. A prompt that the group skipped (its budget for wrong data allows some) has no samples: see `columns`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gangflow.errors import GangflowError
from gangflow.member.samples import PromptSamples


class SkippedPrompts(GangflowError):
    """The rollouts skipped prompts, and TRL needs a completion for each."""

    code = "skipped_prompts"


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt of a batch."""

    row: int
    """Where its first copy stands in the batch."""
    count: int
    """Copies: so many samples are wanted."""
    token_ids: tuple[int, ...]


def asked(token_ids: Sequence[Sequence[int]], copies: int) -> list[Asked]:
    """The prompts of a batch in which each stands up to `copies` times in a row."""
    found: list[Asked] = []
    for row, ids in enumerate(token_ids):
        last = found[-1] if found else None
        if last is not None and last.count < copies and last.token_ids == tuple(ids):
            found[-1] = Asked(last.row, last.count + 1, last.token_ids)
        else:
            found.append(Asked(row, 1, tuple(ids)))
    return found


def seed_of(seed: int, step: int, number: int) -> int:
    """Of a prompt's samples: the same run asks for the same ones, whoever answers."""
    digest = hashlib.blake2b(f"{seed}/{step}/{number}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def params_of(arguments: Any, stop_token_ids: Sequence[int]) -> dict[str, Any]:
    """vLLM's sampling parameters from a `GRPOConfig`: only what is not vLLM's own default."""
    params: dict[str, Any] = {"temperature": arguments.temperature, "max_tokens": arguments.max_completion_length}
    if stop_token_ids:
        params["stop_token_ids"] = list(stop_token_ids)
    for name, plain in (("top_p", (1.0,)), ("top_k", (0, None)), ("min_p", (0.0, None)), ("repetition_penalty", (1.0,))):
        value = getattr(arguments, name)
        if value not in plain:
            params[name] = value
    return params | dict(arguments.generation_kwargs or {})


def columns(batch: Sequence[Asked], groups: Sequence[PromptSamples], *, filler: int, mask: bool) -> dict[str, list[Any]]:
    """TRL's columns, a row for each completion in the order of the batch: `prompt_ids`, `completion_ids`, `logprobs`.

    Where a prompt was skipped: SkippedPrompts; or, with `mask`, each of its rows is the one token `filler` with an `env_mask`
    of 0, so that nothing is learned from it, and `skipped` is true, which reward functions see.
    """
    skipped = [group for group in groups if group.skipped]
    if skipped and not mask:
        raise SkippedPrompts(f"{len(skipped)} of {len(groups)} prompts were skipped, the first for: {skipped[0].skipped}")
    made: dict[str, list[Any]] = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "skipped": []}
    masks: list[list[int]] = []
    for question, group in zip(batch, groups, strict=True):
        outputs: list[Mapping[str, Any]] = group.outputs
        if group.skipped:
            outputs = [{"token_ids": [filler], "logprobs": [0.0]}] * question.count
        for output in outputs:
            made["prompt_ids"].append(list(question.token_ids))
            made["completion_ids"].append(list(output["token_ids"]))
            made["logprobs"].append(list(output["logprobs"]))
            made["skipped"].append(bool(group.skipped))
            masks.append([0 if group.skipped else 1] * len(output["token_ids"]))
    return {**made, "env_mask": masks} if skipped else made
