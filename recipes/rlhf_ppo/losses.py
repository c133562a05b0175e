"""The two clipped losses of PPO. Tensors are (n, t − 1) as in `advantages`; a loss is a sum over tokens of replies, over `tokens`.

`tokens` is the count of the whole minibatch, over all its pieces and ranks: so the gradients of pieces add up to the minibatch's.
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


def policy_loss(now: Any, sampled: Any, advantages: Any, answer: Any, clip: float, tokens: int) -> Clipped:
    """−min(ratio · A, clip(ratio, 1 ± clip) · A), where ratio = π / π_sampled from log-probabilities."""
    ratio = torch.exp(torch.where(answer, now - sampled, 0.0))
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip, 1 + clip)
    loss = torch.where(answer, torch.maximum(plain, clipped), 0.0).sum() / tokens
    return Clipped(loss, float((answer & (clipped > plain)).sum()))


def value_loss(now: Any, sampled: Any, returns: Any, answer: Any, clip: float, tokens: int) -> Clipped:
    """½ max((V − R)², (V_clipped − R)²), where V_clipped moves at most `clip` from the value at the time of sampling."""
    near = sampled + (now - sampled).clamp(-clip, clip)
    plain = (now - returns) ** 2
    clipped = (near - returns) ** 2
    loss = 0.5 * torch.where(answer, torch.maximum(plain, clipped), 0.0).sum() / tokens
    return Clipped(loss, float((answer & (clipped > plain)).sum()))
