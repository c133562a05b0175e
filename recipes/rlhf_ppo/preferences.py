"""Training a reward model on preference pairs: the loss of Bradley and Terry, and how often it agrees with held-out choices.

P(chosen ≻ rejected) = σ(r(chosen) − r(rejected)); the loss is its negative log-likelihood. A score's zero and unit mean nothing
to it, so they are set afterwards: over the replies it was trained on, scores have mean 0 and variance 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.nn import functional

from gangflow.recipes.lm import checkpoint
from gangflow.recipes.lm.batch import Sequences, pack
from gangflow.recipes.lm.ranks import Team
from gangflow.recipes.lm.schedule import rate
from gangflow.recipes.lm.spread import Spread, minibatches
from gangflow.recipes.rlhf_ppo.config import Config
from gangflow.recipes.rlhf_ppo.scalar import Scalar

Tokens = Sequence[int]

TOLD_EVERY: Final = 10
"""Optimizer steps between two lines about the loss."""


@dataclass(frozen=True, slots=True)
class TokenPair:
    """A preference pair as tokens; whole replies have their end token."""

    prompt: Tokens
    chosen: Tokens
    rejected: Tokens


@dataclass(frozen=True, slots=True)
class Scale:
    """What makes raw outputs scores."""

    mean: float = 0.0
    std: float = 1.0

    def __call__(self, raw: Any) -> Any:
        return (raw - self.mean) / self.std


def bradley_terry(chosen: Any, rejected: Any) -> Any:
    """The negative log-likelihood of choices, summed; both (n,) are outputs of the model. A coin has log 2 each."""
    return -functional.logsigmoid(chosen - rejected).sum()


class RewardModel:
    """A scalar model that learns to score, and scores. Every method runs on all ranks together."""

    def __init__(self, model: Scalar, config: Config, team: Team, scale: Scale = Scale()) -> None:
        self.config = config
        self.team = team
        self.spread = Spread(model, model.trunk.layers, team, sharding=config.sharding, dtype=config.dtype)
        self.model: Scalar = self.spread.model
        self.scale = scale

    def outputs(self, batch: Sequences) -> Any:
        """(n,) raw."""
        return self.spread.each(batch, self._last, (len(batch),), self.config.micro_batch)

    def scores(self, batch: Sequences) -> Any:
        """(n,) of mean 0 and variance 1 over the replies of the training pairs."""
        return self.scale(self.outputs(batch))

    def accuracy(self, pairs: Sequence[TokenPair]) -> float:
        """The fraction of pairs whose chosen reply gets the larger output; a tie counts half."""
        chosen, rejected = self.outputs(_both(pairs)).chunk(2)
        return float(((chosen > rejected).double() + 0.5 * (chosen == rejected).double()).mean())

    def fit(self, pairs: Sequence[TokenPair]) -> list[float]:
        """Train, and set the scale by the same pairs; the loss of each optimizer step, per pair."""
        config = self.config
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.reward_learning_rate, weight_decay=0.0)
        parts = -(-len(pairs) // config.reward_batch)
        # A pair is two rows.
        portion = max(1, config.micro_batch // 2)
        passes = minibatches(len(pairs), config.reward_epochs, parts, portion, self.team, config.seed)
        steps = sum(len(made.minibatches) for made in passes)
        losses: list[float] = []
        for made in passes:
            for minibatch in made.minibatches:
                for group in optimizer.param_groups:
                    group["lr"] = rate(len(losses), steps + 1, top=config.reward_learning_rate, schedule="linear")
                count = len(made.rows_of(minibatch))
                loss = sum(self._backward(pairs, part, count) for part in minibatch[self.team.rank])
                self.spread.update(optimizer, config.grad_clip, f"reward model: step {len(losses)}")
                losses.append(float(self.team.sum(torch.tensor(loss))))
                if self.team.leads and len(losses) % TOLD_EVERY == 0:
                    print(f"reward model: step {len(losses)} of {steps}, loss {losses[-1]:.3f}", flush=True)
        self.measure(pairs)
        return losses

    def measure(self, pairs: Sequence[TokenPair]) -> None:
        """Set the scale by what it says of these."""
        raw = self.outputs(_both(pairs))
        self.scale = Scale(float(raw.mean()), float(raw.std(correction=0).clamp_min(1e-6)))

    def save(self, folder: Path) -> None:
        """Write the model as a folder that was not there before; the leader writes. The scale is not in it."""
        state = checkpoint.whole_weights(self.model) if self.spread.split else None
        if self.team.leads:
            self.model.save(folder, state)

    def _last(self, rows: Sequences) -> Any:
        return self.model.last(rows.tokens, rows.attention)

    def _backward(self, pairs: Sequence[TokenPair], part: Any, count: int) -> float:
        """Gradients of a portion of a minibatch of so many pairs; its part of the loss."""
        rows = _both([pairs[place] for place in part.rows.tolist()]).to(self.team.device)
        with self.spread.precision():
            chosen, rejected = self._last(rows).chunk(2)
        loss = bradley_terry(chosen, rejected) / count * (0.0 if part.padding else 1.0)
        self.spread.backward(loss)
        return float(loss.detach())


def _both(pairs: Sequence[TokenPair]) -> Sequences:
    """All chosen replies, then all rejected ones."""
    prompts = [pair.prompt for pair in pairs]
    return pack(prompts * 2, [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs])
