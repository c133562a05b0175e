"""The two clipped losses of PPO, as sums over the tokens of replies. Tensors are (n, t − 1) as in `advantages`.

A learner divides by the tokens of the whole minibatch, over all its portions and ranks: so the gradients of portions add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Clipped:
    """A loss, and how much of it the clip cut off."""

    loss: Any
    """Scalar tensor, with its graph."""
    cut: float
    """How many tokens got no gradient."""


def policy_loss(now: Any, old: Any, sampled: Any, gains: Any, answer: Any, *, clip: float, cap: float) -> Clipped:
    """−w · min(r · A, clip(r, 1 ± clip) · A), with r = exp(now − old) and w = min(exp(old − sampled), cap).

    `now` and `old` are the trainer's log-probabilities now and before the step, `sampled` the engine's when it drew the token:
    w, a constant, corrects for what differs between the two (truncated importance sampling); of the same weights it is 1 but
    for rounding.
    """
    ratio = torch.exp(torch.where(answer, now - old, 0.0))
    weight = torch.exp(torch.where(answer, old - sampled, 0.0)).clamp(max=cap)
    plain = -gains * ratio
    clipped = -gains * ratio.clamp(1 - clip, 1 + clip)
    loss = torch.where(answer, torch.maximum(plain, clipped) * weight, 0.0).sum()
    return Clipped(loss, float((answer & (clipped > plain)).sum()))


def value_loss(now: Any, before: Any, returns: Any, answer: Any, *, clip: float) -> Clipped:
    """½ max((V − R)², (V_clipped − R)²), where V_clipped moves at most `clip` from the value before the step."""
    near = before + (now - before).clamp(-clip, clip)
    plain = (now - returns) ** 2
    clipped = (near - returns) ** 2
    loss = 0.5 * torch.where(answer, torch.maximum(plain, clipped), 0.0).sum()
    return Clipped(loss, float((answer & (clipped > plain)).sum()))
