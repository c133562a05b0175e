"""The policy's half of PPO: from sampled replies and their advantages to the next policy. On all ranks together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from gangflow.channel import Probe
from gangflow.recipes.lm import checkpoint, sharded
from gangflow.recipes.lm import model as models
from gangflow.recipes.lm.batch import Sequences
from gangflow.recipes.lm.drawing import sample_seed
from gangflow.recipes.lm.ranks import Team
from gangflow.recipes.lm.schedule import rate
from gangflow.recipes.lm.spread import Spread, in_half, is_split, minibatches
from gangflow.recipes.rlhf_ppo.config import Config
from gangflow.recipes.rlhf_ppo.losses import policy_loss


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """What an update saw; the same on all ranks."""

    clipped: float
    """Fraction of tokens whose gradient was cut off by the clip, over all passes."""
    moved: float
    """Mean of ½ (now − old)²: how far the policy went from the one before, in nats per token, over all passes."""
    norm: float
    """Of the gradient before it is clipped; the largest of the step."""
    rate: float
    """The learning rate."""


class PolicyLearner:
    """Policy, optimizer, steps done."""

    def __init__(self, model: Any, config: Config, team: Team) -> None:
        self.config = config
        self.team = team
        self.spread = Spread(model, model.model.layers, team, sharding=config.sharding, dtype=config.dtype)
        self.model = self.spread.model
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            weight_decay=config.weight_decay,
        )
        self.step = 0
        """Steps done."""
        self._kept = ""

    @classmethod
    def start(cls, folder: str | Path, config: Config, team: Team) -> Self:
        """With the model of a folder; where it is split over the ranks, none but the first one ever reads all of it."""
        if is_split(team, config.sharding):
            model = sharded.load(str(folder), team, half=in_half(team, config.dtype), checkpointing=config.checkpointing)
        else:
            model = models.load(folder, device=team.device, checkpointing=config.checkpointing)
        return cls(model, config, team)

    def survey(self, batch: Sequences) -> Any:
        """(n, t − 1): the policy's log-probabilities of the batch's tokens; without meaning where there is no reply."""
        return self.spread.each(batch, self._logprobs, tuple(batch.sampled.shape), self.config.micro_batch)

    def train(self, batch: Sequences, old: Any, gains: Any) -> PolicyReport:
        """One step: all passes over the batch. `old` is what `survey` said, `gains` are whitened advantages; both (n, t − 1).

        TrainingBroken before the optimizer step whose gradient is broken.
        """
        config, seen, norm = self.config, torch.zeros(2, dtype=torch.float64), 0.0
        learning_rate = rate(
            self.step,
            config.steps,
            top=config.learning_rate,
            warmup=config.warmup,
            schedule=config.schedule,
            bottom=config.min_learning_rate,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        seed = sample_seed(config.seed, self.step)
        for made in minibatches(len(batch), config.epochs, config.minibatches, config.micro_batch, self.team, seed):
            for minibatch in made.minibatches:
                tokens = float(batch.answer[made.rows_of(minibatch)].sum())
                for part in minibatch[self.team.rank]:
                    seen += self._backward(batch, old, gains, part, tokens)
                norm = max(norm, self.spread.update(self.optimizer, config.grad_clip, f"step {self.step}"))
        counted = float(batch.answer.sum()) * config.epochs
        clipped, moved = (self.team.sum(seen) / counted).tolist()
        self.step += 1
        return PolicyReport(clipped, moved, norm, learning_rate)

    def probe(self, tokens: Sequence[int]) -> Probe:
        """What the policy says of these tokens."""
        with self.spread.precision():
            return models.probe_of(self.model, tokens)

    def export(self, folder: Path, tokenizer: Any = None) -> None:
        """Write the policy as a model folder for engines; the leader writes."""
        state = checkpoint.whole_weights(self.model) if self.spread.split else None
        if self.team.leads:
            models.save_for_engines(self.model, folder, tokenizer=tokenizer, dtype=self.config.dtype, state=state)

    def keep(self, text: str) -> None:
        """What else must be at the same step after a restart: it is saved with the next checkpoints."""
        self._kept = text

    def save(self, folder: Path) -> None:
        """Write everything that must survive a restart."""
        checkpoint.save(folder, self.model, self.optimizer, {"step": self.step, "kept": self._kept})

    def load(self, folder: Path) -> str:
        """Continue from what `save` wrote, with this or another number of ranks; returns what was kept."""
        found = checkpoint.load(folder, self.model, self.optimizer, {"step": 0, "kept": ""})
        self.step, self._kept = int(found["step"]), str(found["kept"])
        return self._kept

    def _logprobs(self, rows: Sequences) -> Any:
        return models.token_logprobs(self.model, rows.tokens, rows.attention)

    def _backward(self, batch: Sequences, old: Any, gains: Any, part: Any, tokens: float) -> Any:
        """Gradients of a portion of a minibatch of so many tokens; (clipped, moved), summed over its tokens."""
        rows = batch.rows(part.rows).to(self.team.device)
        with self.spread.precision():
            now = self._logprobs(rows)
        width = now.shape[1]
        before, gain = (each[part.rows, :width].to(self.team.device) for each in (old, gains))
        mask = torch.zeros_like(rows.answer) if part.padding else rows.answer
        found = policy_loss(now, before, rows.sampled, gain, mask, clip=self.config.clip, cap=self.config.importance_cap)
        self.spread.backward(found.loss / tokens)
        moved = 0.5 * torch.where(mask, now.detach() - before, 0.0).square().sum()
        return torch.tensor([found.cut, float(moved)], dtype=torch.float64)
