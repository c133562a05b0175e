"""The policy's half of PPO: from sampled replies and their advantages to the next policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gangflow.recipes.lm.batch import Sequences
from gangflow.recipes.lm.model import token_logprobs
from gangflow.recipes.rlhf_ppo.losses import policy_loss
from gangflow.recipes.rlhf_ppo.pieces import micro, minibatches


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """What an update does."""

    epochs: int = 2
    """Passes over a step's replies."""
    minibatches: int = 2
    """Optimizer steps in a pass."""
    micro_batch: int = 128
    """Replies in one forward and backward pass."""
    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.99
    grad_clip: float = 1.0
    clip: float = 0.2
    seed: int = 0


class EngineDrift(Exception):
    """The engine's log-probabilities are not the trainer's: the samples are of another policy, and nothing was learned."""


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """What an update saw, as means over its optimizer steps."""

    loss: float
    clipped: float
    """Fraction of tokens whose gradient was cut off by the clip."""
    moved: float
    """½ (log ratio)², a measure of how far the policy went from the one that sampled, in nats per token."""
    grad_norm: float
    """Before it was clipped."""


class PolicyLearner:
    """The model and its optimizer."""

    def __init__(self, model: Any, settings: PolicySettings) -> None:
        self.model = model
        self.settings = settings
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.learning_rate, betas=(settings.beta1, settings.beta2), weight_decay=0.0
        )

    def logprobs(self, batch: Sequences) -> Any:
        """(n, t − 1), of every column, without gradient."""
        with torch.no_grad():
            found = torch.zeros_like(batch.sampled)
            for at in range(0, len(batch), self.settings.micro_batch):
                rows = batch.rows(slice(at, at + self.settings.micro_batch))
                now = token_logprobs(self.model, rows.tokens, rows.attention)
                found[at : at + len(rows), : now.shape[1]] = now
        return found

    def drift(self, batch: Sequences) -> float:
        """The largest |trainer − engine| log-probability of a reply's token; of the same weights it is rounding only."""
        return float(torch.where(batch.answer, self.logprobs(batch) - batch.sampled, 0.0).abs().max())

    def train(self, batch: Sequences, advantages: Any, step: int) -> PolicyReport:
        """All epochs of one step, in place. The ratio is against the log-probabilities that the engines sampled with."""
        settings, seen = self.settings, list[tuple[float, float, float, float]]()
        for rows in minibatches(len(batch), settings.epochs, settings.minibatches, settings.seed, step):
            tokens = int(batch.answer[rows].sum())
            self.optimizer.zero_grad(set_to_none=True)
            loss = cut = moved = 0.0
            for piece in micro(rows, settings.micro_batch):
                part = batch.rows(piece)
                now = token_logprobs(self.model, part.tokens, part.attention)
                gains = advantages[piece][:, : now.shape[1]]
                found = policy_loss(now, part.sampled, gains, part.answer, settings.clip, tokens)
                found.loss.backward()
                loss += float(found.loss.detach())
                cut += found.cut
                moved += float(0.5 * torch.where(part.answer, now.detach() - part.sampled, 0.0).square().sum())
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.grad_clip)
            self.optimizer.step()
            seen.append((loss, cut / tokens, moved / tokens, float(norm)))
        return PolicyReport(*(sum(column) / len(seen) for column in zip(*seen, strict=True)))
