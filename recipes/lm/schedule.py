"""The learning rate of each step. A function of the step alone: nothing of it has to be saved."""

from __future__ import annotations

import math


def rate(step: int, steps: int, *, top: float, warmup: int = 0, schedule: str = "constant", bottom: float = 0.0) -> float:
    """Of step 0 … steps − 1: rises to `top` over `warmup` steps, then stays, or falls to `bottom` at the last step.

    `schedule` is constant, linear or cosine; ValueError for another word.
    """
    if step < warmup:
        return top * (step + 1) / warmup
    along = (step - warmup) / max(1, steps - 1 - warmup)
    left = 1 - min(1.0, along)
    if schedule == "constant":
        return top
    if schedule == "linear":
        return bottom + (top - bottom) * left
    if schedule == "cosine":
        return bottom + (top - bottom) * (1 - math.cos(math.pi * left)) / 2
    raise ValueError(f"schedule: expected constant, linear or cosine, got {schedule!r}")
