"""The critic's half of PPO: the value of what was written so far, and its training. On all ranks together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from gangflow.recipes.lm import checkpoint
from gangflow.recipes.lm.batch import Sequences
from gangflow.recipes.lm.drawing import sample_seed
from gangflow.recipes.lm.ranks import Team
from gangflow.recipes.lm.schedule import rate
from gangflow.recipes.lm.spread import Spread, minibatches
from gangflow.recipes.rlhf_ppo.config import Config
from gangflow.recipes.rlhf_ppo.losses import value_loss
from gangflow.recipes.rlhf_ppo.scalar import Scalar


@dataclass(frozen=True, slots=True)
class ValueReport:
    """What an update saw; the same on all ranks."""

    loss: float
    """Mean per token, over all passes."""
    clipped: float
    """Fraction of tokens whose gradient was cut off by the clip, over all passes."""
    norm: float
    """Of the gradient before it is clipped; the largest of the step."""


class ValueLearner:
    """Value model, optimizer, steps done."""

    def __init__(self, model: Scalar, config: Config, team: Team) -> None:
        self.config = config
        self.team = team
        self.spread = Spread(model, model.trunk.layers, team, sharding=config.sharding, dtype=config.dtype)
        self.model: Scalar = self.spread.model
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=config.critic_learning_rate,
            betas=(config.beta1, config.beta2),
            weight_decay=config.weight_decay,
        )
        self.step = 0
        """Steps done."""

    @classmethod
    def start(cls, folder: str | Path, config: Config, team: Team) -> Self:
        """With the trunk of a model folder; its values are 0 at first."""
        model = Scalar.load(folder, fresh_head=config.seed, checkpointing=config.checkpointing)
        model.forget_head()
        return cls(model, config, team)

    def values(self, batch: Sequences) -> Any:
        """(n, t − 1): column j is the value of having written everything before token j + 1; 0 where there is no reply."""
        found = self.spread.each(batch, self._values, tuple(batch.sampled.shape), self.config.micro_batch)
        return torch.where(batch.answer, found, 0.0)

    def train(self, batch: Sequences, before: Any, returns: Any) -> ValueReport:
        """One step: all passes over the batch. `before` is what `values` said of it; `returns` are (n, t − 1), too.

        TrainingBroken before the optimizer step whose gradient is broken.
        """
        config, seen, norm = self.config, torch.zeros(2, dtype=torch.float64), 0.0
        top = config.critic_learning_rate
        learning_rate = rate(
            self.step,
            config.steps,
            top=top,
            warmup=config.warmup,
            schedule=config.schedule,
            bottom=config.min_learning_rate * top / config.learning_rate,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        seed = sample_seed(config.seed, self.step)
        passes = minibatches(len(batch), config.critic_epochs, config.critic_minibatches, config.micro_batch, self.team, seed)
        for made in passes:
            for minibatch in made.minibatches:
                tokens = float(batch.answer[made.rows_of(minibatch)].sum())
                for part in minibatch[self.team.rank]:
                    seen += self._backward(batch, before, returns, part, tokens)
                norm = max(norm, self.spread.update(self.optimizer, config.grad_clip, f"step {self.step}"))
        counted = float(batch.answer.sum()) * config.critic_epochs
        loss, clipped = (self.team.sum(seen) / counted).tolist()
        self.step += 1
        return ValueReport(loss, clipped, norm)

    def save(self, folder: Path) -> None:
        """Write everything that must survive a restart."""
        checkpoint.save(folder, self.model, self.optimizer, {"step": self.step})

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote, with this or another number of ranks."""
        self.step = int(checkpoint.load(folder, self.model, self.optimizer, {"step": 0})["step"])

    def _values(self, rows: Sequences) -> Any:
        return self.model(rows.tokens, rows.attention)[:, :-1]

    def _backward(self, batch: Sequences, before: Any, returns: Any, part: Any, tokens: float) -> Any:
        """Gradients of a portion of a minibatch of so many tokens; (loss, clipped), summed over its tokens."""
        rows = batch.rows(part.rows).to(self.team.device)
        with self.spread.precision():
            now = self._values(rows)
        width = now.shape[1]
        was, wanted = (each[part.rows, :width].to(self.team.device) for each in (before, returns))
        mask = torch.zeros_like(rows.answer) if part.padding else rows.answer
        found = value_loss(now, was, wanted, mask, clip=self.config.value_clip)
        self.spread.backward(found.loss / tokens)
        return torch.tensor([float(found.loss.detach()), found.cut], dtype=torch.float64)
