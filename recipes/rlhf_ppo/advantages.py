"""From scores and values to advantages: the reward of each token, generalised advantage estimation, whitening.

Tensors are (n, t − 1) as in `gangflow.recipes.lm.batch`: column j is about token j + 1, and `answer` (bool) says which columns
are of the reply, a run without a gap in each row. Elsewhere every result is 0, whatever the inputs have there.
"""

from __future__ import annotations

from typing import Any

import torch


def last_column(answer: Any) -> Any:
    """(n,) int64: where each reply ends. ValueError for a row without a reply."""
    if not bool(answer.any(dim=1).all()):
        raise ValueError("a reply without a token cannot be scored")
    places = torch.arange(answer.shape[1], device=answer.device)
    return (places * answer).max(dim=1).values


def token_rewards(scores: Any, logprobs: Any, reference: Any, answer: Any, kl_weight: float) -> Any:
    """What each token earns: −β · (log π − log π_ref), and the reply's score (n,) on its last token besides."""
    rewards = torch.where(answer, -kl_weight * (logprobs - reference), 0.0)
    return rewards.scatter_add(1, last_column(answer).unsqueeze(1), scores.unsqueeze(1).to(rewards.dtype))


def gae(rewards: Any, values: Any, answer: Any, discount: float, trace: float) -> tuple[Any, Any]:
    """(advantages, returns) by generalised advantage estimation (Schulman et al., 2016); a reply's last token ends its episode.

    δ_t = r_t + γ V_{t+1} − V_t and A_t = δ_t + γ λ A_{t+1}, where V and A are 0 behind the end; the returns, which the critic
    is trained towards, are A_t + V_t. `discount` is γ and `trace` is λ. The value of a column is the critic's of what was
    written before its token.
    """
    values = torch.where(answer, values, 0.0)
    found = torch.zeros_like(values)
    later = torch.zeros_like(values[:, 0])
    next_value = torch.zeros_like(later)
    for place in range(values.shape[1] - 1, -1, -1):
        delta = rewards[:, place] + discount * next_value - values[:, place]
        later = torch.where(answer[:, place], delta + discount * trace * later, 0.0)
        next_value = values[:, place]
        found[:, place] = later
    return found, found + values


def whiten(values: Any, answer: Any) -> Any:
    """Shifted and scaled to mean 0 and variance 1 over the tokens of replies."""
    count = answer.sum()
    mean = torch.where(answer, values, 0.0).sum() / count
    centred = torch.where(answer, values - mean, 0.0)
    return centred * torch.rsqrt((centred**2).sum() / count + 1e-8)


def sequence_kl(logprobs: Any, reference: Any, answer: Any) -> Any:
    """(n,) nats: log π − log π_ref, summed over each reply; its mean over samples of π estimates KL(π ‖ π_ref)."""
    return torch.where(answer, logprobs - reference, 0.0).sum(dim=1)
