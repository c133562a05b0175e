"""The critic's half of PPO: the value of what was written so far, and its training towards the returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gangflow.recipes.lm.batch import Sequences
from gangflow.recipes.rlhf_ppo.losses import value_loss
from gangflow.recipes.rlhf_ppo.pieces import micro, minibatches
from gangflow.recipes.rlhf_ppo.scalar import Scalar


@dataclass(frozen=True, slots=True)
class ValueSettings:
    """What an update does."""

    epochs: int = 2
    minibatches: int = 2
    micro_batch: int = 128
    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.99
    grad_clip: float = 1.0
    clip: float = 0.2
    """How far a value may move in one step, in units of reward."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ValueReport:
    """What an update saw, as means over its optimizer steps."""

    loss: float
    clipped: float
    grad_norm: float


class ValueLearner:
    """The value model and its optimizer."""

    def __init__(self, model: Scalar, settings: ValueSettings) -> None:
        self.model = model
        self.settings = settings
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.learning_rate, betas=(settings.beta1, settings.beta2), weight_decay=0.0
        )

    def values(self, batch: Sequences) -> Any:
        """(n, t − 1) without gradient: column j is the value of having written everything before token j + 1; 0 elsewhere."""
        found = torch.zeros_like(batch.sampled)
        with torch.no_grad():
            for at in range(0, len(batch), self.settings.micro_batch):
                rows = batch.rows(slice(at, at + self.settings.micro_batch))
                now = self.model(rows.tokens, rows.attention)[:, :-1]
                found[at : at + len(rows), : now.shape[1]] = now
        return torch.where(batch.answer, found, 0.0)

    def train(self, batch: Sequences, sampled: Any, returns: Any, step: int) -> ValueReport:
        """All epochs of one step, in place. `sampled` is what `values` said of the batch before."""
        settings, seen = self.settings, list[tuple[float, float, float]]()
        for rows in minibatches(len(batch), settings.epochs, settings.minibatches, settings.seed, step):
            tokens = int(batch.answer[rows].sum())
            self.optimizer.zero_grad(set_to_none=True)
            loss = cut = 0.0
            for piece in micro(rows, settings.micro_batch):
                part = batch.rows(piece)
                now = self.model(part.tokens, part.attention)[:, :-1]
                before, wanted = (each[piece][:, : now.shape[1]] for each in (sampled, returns))
                found = value_loss(now, before, wanted, part.answer, settings.clip, tokens)
                found.loss.backward()
                loss += float(found.loss.detach())
                cut += found.cut
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.grad_clip)
            self.optimizer.step()
            seen.append((loss, cut / tokens, float(norm)))
        return ValueReport(*(sum(column) / len(seen) for column in zip(*seen, strict=True)))
