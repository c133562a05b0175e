"""GRPO in torch: from sampled answers and their rewards to the next policy. Every public method runs on all ranks together.

An answer's advantage is its reward against the mean of its prompt's samples, in their standard deviations: no critic. With

    now     the log-probability of a token under the policy that is being trained,
    old     the same before this step, by this same program,
    sampled what the engine said when it drew the token,

the objective of a token is  w · min(r·A, clip(r)·A) − kl_weight · k3  with r = exp(now − old), clipped asymmetrically; k3 is
the estimate exp(d) − d − 1, d = reference − now, of the KL divergence to the reference. w = min(exp(old − sampled), cap) is a
constant: it corrects for what was sampled by an older policy (truncated importance sampling). In synchronous mode w is 1 but
for rounding, and that it is so is checked (`max_drift`, `max_mean_drift`). The loss is the mean over all answer tokens of a
minibatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

from gangflow.channel import Probe
from gangflow.recipes.grpo.lm.config import LmConfig
from gangflow.recipes.lm import checkpoint, sharded
from gangflow.recipes.lm import model as models
from gangflow.recipes.lm.batch import Sequences
from gangflow.recipes.lm.drawing import sample_seed
from gangflow.recipes.lm.drift import check_drift
from gangflow.recipes.lm.ranks import Team
from gangflow.recipes.lm.schedule import rate
from gangflow.recipes.lm.shares import Plan, plan
from gangflow.recipes.lm.spread import Spread, in_half, is_split


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's samples, prompt by prompt: n rows."""

    sequences: Sequences
    advantages: Any
    """(n,) float32."""
    reference: Any
    """(n, t − 1) float32: the reference's log-probabilities of answer tokens; None without a KL term."""
    current: Any
    """(n,) bool: sampled with the very weights that are trained now, from the first token to the last."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a training step saw; the same on all ranks."""

    kl: float
    """Mean k3 per answer token, before the step; 0 without a reference."""
    clipped: float
    """Fraction of tokens whose gradient the clip cut off, over all passes."""
    drift: float | None
    """Largest |trainer − engine| of a token that the current weights sampled, before the step; None when there was none."""
    drift_mean: float | None
    """The mean of the same."""
    importance: float
    """Mean of exp(old − sampled), before it is capped: 1 when nothing is stale."""
    capped: float
    """Fraction of tokens whose correction was capped."""
    norm: float
    """Of the gradient before it is clipped; the largest of the step."""
    rate: float
    """The learning rate."""
    tokens: int
    """Of answers."""
    drifts: Any = field(compare=False, repr=False)
    """(n,): the largest drift of each sample; 0 where it was not compared."""


def advantages(rewards: Sequence[float], samples: int) -> Any:
    """(n,): rewards normalised within each prompt's group; a group of equal rewards teaches nothing: zeros."""
    groups = torch.tensor(rewards, dtype=torch.float32).reshape(-1, samples)
    centred = groups - groups.mean(1, keepdim=True)
    return (centred / (groups.std(1, unbiased=False, keepdim=True) + 1e-4)).reshape(-1)


class Learner:
    """The trainer's state: policy, optimizer, steps done."""

    def __init__(self, model: Any, config: LmConfig, team: Team) -> None:
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
        self.position = 0
        """Problems drawn by them."""

    @classmethod
    def start(cls, folder: str, config: LmConfig, team: Team) -> Self:
        """With the model of a folder."""
        if is_split(team, config.sharding):
            model = sharded.load(folder, team, half=in_half(team, config.dtype), checkpointing=config.checkpointing)
        else:
            model = models.load(folder, device=team.device, checkpointing=config.checkpointing)
        return cls(model, config, team)

    def train(self, batch: Batch) -> Report:
        """One GRPO step. EngineDrift and TrainingBroken before anything is changed (by the gradient that is broken)."""
        made = plan(len(batch.sequences), self.config.minibatches, self.config.micro_batch, self.team, self._shuffling())
        old, seen, drifts = self._survey(batch, made)
        kl, importance, capped, gap, compared = self.team.sum(torch.tensor(seen, dtype=torch.float64)).tolist()
        drift, drift_mean = (float(drifts.max()), gap / compared) if compared else (None, None)
        if drift is not None and drift_mean is not None:
            check_drift(drift, drift_mean, at_most=self.config.max_drift, mean_at_most=self.config.max_mean_drift)
        learning_rate = self._rate()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        cut, norm = 0.0, 0.0
        for _ in range(self.config.epochs):
            for minibatch in made.minibatches:
                cut += self._accumulate(batch, old, minibatch, made)
                norm = max(norm, self.spread.update(self.optimizer, self.config.grad_clip, f"step {self.step}"))
        tokens = int(batch.sequences.answer.sum())
        (clipped,) = self.team.sum(torch.tensor([cut], dtype=torch.float64)).tolist()
        self.step += 1
        self.position += self.config.prompts
        return Report(
            kl=kl / tokens,
            clipped=clipped / tokens / self.config.epochs,
            drift=drift,
            drift_mean=drift_mean,
            importance=importance / tokens,
            capped=capped / tokens,
            norm=norm,
            rate=learning_rate,
            tokens=tokens,
            drifts=drifts,
        )

    def probe(self, tokens: Sequence[int]) -> Probe:
        """What the policy says of these tokens."""
        with self.spread.precision():
            return models.probe_of(self.model, tokens)

    def export(self, folder: Path, tokenizer: Any = None) -> None:
        """Write the policy as a model folder for engines; the leader writes."""
        state = checkpoint.whole_weights(self.model) if self.spread.split else None
        if self.team.leads:
            models.save_for_engines(self.model, folder, tokenizer=tokenizer, dtype=self.config.dtype, state=state)

    def save(self, folder: Path) -> None:
        """Write everything that must survive a restart."""
        checkpoint.save(folder, self.model, self.optimizer, {"step": self.step, "position": self.position})

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote, with this or another number of ranks."""
        found = checkpoint.load(folder, self.model, self.optimizer, {"step": 0, "position": 0})
        self.step, self.position = int(found["step"]), int(found["position"])

    # --- one step

    def _survey(self, batch: Batch, made: Plan) -> tuple[Any, tuple[float, ...], Any]:
        """Log-probabilities before the step (n, t − 1) of this rank's rows; sums, see the end; drifts (n,)."""
        old = torch.zeros_like(batch.sequences.sampled)
        drifts = torch.zeros(len(batch.sequences))
        k3 = weight = capped = gaps = compared = 0.0
        for part in made.micro_batches():
            rows = batch.sequences.rows(part.rows).to(self.team.device)
            with torch.no_grad(), self.spread.precision():
                before = models.token_logprobs(self.model, rows.tokens, rows.attention, temperature=self.config.temperature)
            if part.padding:
                continue
            mask, width = rows.answer, before.shape[1]
            old[part.rows, :width] = before.cpu()
            apart = torch.where(mask, before - rows.sampled, 0.0)
            current = batch.current[part.rows].to(self.team.device)
            gap = torch.where(current, apart.abs().amax(1), 0.0)
            gaps += float(apart[current].abs().sum())
            compared += float(mask[current].sum())
            # A NaN would be lost in the comparison of ranks.
            drifts[part.rows] = torch.nan_to_num(gap, nan=torch.inf, posinf=torch.inf).cpu()
            ratio = apart.exp()[mask]
            weight += float(ratio.sum())
            capped += float((ratio > self.config.importance_cap).sum())
            if batch.reference is not None:
                reference = batch.reference[part.rows, :width].to(self.team.device)
                k3 += float(_k3(reference - before)[mask].sum())
        return old, (k3, weight, capped, gaps, compared), self.team.largest(drifts)

    def _accumulate(self, batch: Batch, old: Any, minibatch: Sequence[Any], made: Plan) -> float:
        """Gradients of a minibatch, in as many passes as it takes; how many tokens the clip cut off."""
        tokens = float(batch.sequences.answer[made.rows_of(minibatch)].sum())
        cut = 0.0
        for part in minibatch[self.team.rank]:
            rows = batch.sequences.rows(part.rows).to(self.team.device)
            width = rows.sampled.shape[1]
            with self.spread.precision():
                now = models.token_logprobs(self.model, rows.tokens, rows.attention, temperature=self.config.temperature)
            mask = torch.zeros_like(rows.answer) if part.padding else rows.answer
            loss, clipped = self._loss(
                now,
                old[part.rows, :width].to(self.team.device),
                rows.sampled,
                batch.advantages[part.rows].to(self.team.device)[:, None],
                None if batch.reference is None else batch.reference[part.rows, :width].to(self.team.device),
                mask,
            )
            self.spread.backward(loss / tokens)
            cut += clipped
        return cut

    def _loss(self, now: Any, old: Any, sampled: Any, gains: Any, reference: Any, mask: Any) -> tuple[Any, float]:
        """The loss, summed over answer tokens; how many of them the clip cut off."""
        config = self.config
        ratio = (now - old).exp()
        # What stands for nothing must not become infinite: it would be a NaN times the mask's zero.
        correction = torch.where(mask, old - sampled, 0.0).exp().clamp(max=config.importance_cap)
        surrogate = torch.minimum(ratio * gains, ratio.clamp(config.clip_low, config.clip_high) * gains) * correction
        objective = surrogate
        if reference is not None:
            objective = objective - config.kl_weight * _k3(torch.where(mask, reference - now, 0.0))
        cut = ((gains > 0) & (ratio > config.clip_high)) | ((gains < 0) & (ratio < config.clip_low))
        return -torch.where(mask, objective, 0.0).sum(), float((cut & mask).sum())

    def _rate(self) -> float:
        config = self.config
        return rate(
            self.step,
            config.steps,
            top=config.learning_rate,
            warmup=config.warmup,
            schedule=config.schedule,
            bottom=config.min_learning_rate,
        )

    def _shuffling(self) -> Any:
        """The random order of a step's samples in minibatches, the same on all ranks; None for one minibatch."""
        if self.config.minibatches == 1:
            return None
        return torch.Generator().manual_seed(sample_seed(self.config.seed, self.step))


def _k3(apart: Any) -> Any:
    return apart.exp() - apart - 1
