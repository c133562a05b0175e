"""The accuracy on held-out problems, measured through the rollouts: greedy, and by exactly one version of the policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gangflow.errors import NoQuorum
from gangflow.member.context import Context


def answers(
    context: Context, prompts: Sequence[Any], params: Mapping[str, Any], version: int, *, timeout_s: float, patience_s: float
) -> list[Any]:
    """The greedy output for each prompt, all by that version; None for one that was skipped.

    Rollouts that have not got the version yet may answer in asynchronous mode: they are asked again, until `patience_s` is
    over. Nothing of it enters the ledger. NoQuorum when the version does not come.
    """
    greedy = {**params, "temperature": 0.0}
    found: list[Any] = [None] * len(prompts)
    left = list(range(len(prompts)))
    deadline = time.monotonic() + patience_s
    while left:
        context.weights.wait_synced(version)
        made = context.rollouts.generate([prompts[place] for place in left], 1, greedy, timeout_s=timeout_s)
        old: list[int] = []
        for place, group in zip(left, made, strict=True):
            if group.skipped:
                continue
            sample = group.samples[0]
            if sample.weights is not None and sample.weights.version < version:
                old.append(place)
            else:
                found[place] = sample.output
        if old and time.monotonic() > deadline:
            raise NoQuorum(f"{len(old)} of {len(prompts)} answers are of older weights than version {version}")
        left = old
    return found


def accuracy(exact: Callable[[Any, Any], bool], problems: Sequence[Any], made: Sequence[Any]) -> float | None:
    """Of the problems that were answered; None when none was."""
    judged = [exact(problem, output) for problem, output in zip(problems, made, strict=True) if output is not None]
    return sum(judged) / len(judged) if judged else None
