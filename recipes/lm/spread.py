"""A model that one process trains or several: weights split over the ranks or copied, gradients added up, the norm clipped.

What every learner of several ranks needs beneath its loss. Every method runs on all ranks together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from gangflow.errors import GangflowError
from gangflow.recipes.lm import sharded
from gangflow.recipes.lm.batch import Sequences
from gangflow.recipes.lm.ranks import OnAllRanks, Team
from gangflow.recipes.lm.shares import Plan, plan


class TrainingBroken(GangflowError, OnAllRanks):
    """A gradient is infinite or not a number; the model was not changed by it."""

    code = "training_broken"
    remedy = "a lower `learning_rate` or a longer `warmup`; a restart goes on from the newest checkpoint"


class Spread:
    """A model on the ranks of a team."""

    def __init__(self, model: Any, layers: Iterable[Any], team: Team, *, sharding: str, dtype: str) -> None:
        """`layers`: its blocks, split one by one where `sharding` is full. `dtype`: what GPUs compute in."""
        self.team = team
        self.split = is_split(team, sharding)
        self._half = in_half(team, dtype)
        if sharded.is_split(model):  # Loaded so: it was never whole.
            self.model = model
        else:
            self.model = model.to(team.device)
            if self.split:
                sharded.split(self.model, team, layers=layers, half=self._half)

    def precision(self) -> AbstractContextManager[Any]:
        """On GPUs the forward pass computes as the engines do; weights, gradients and loss are float32 everywhere."""
        if self._half and not self.split:
            half: AbstractContextManager[Any] = torch.autocast("cuda", torch.bfloat16)
            return half
        return nullcontext()

    def each(self, batch: Sequences, compute: Callable[[Sequences], Any], shape: tuple[int, ...], micro_batch: int) -> Any:
        """What `compute` says of each row, on all ranks: float32, on the CPU, without gradient.

        `shape` is the result's, (n,) or (n, t − 1), where what a portion's rows are too short for is 0; each rank computes its
        share of the rows, `micro_batch` at a time.
        """
        found = torch.zeros(shape)
        for part in plan(len(batch), 1, micro_batch, self.team).micro_batches():
            with torch.no_grad(), self.precision():
                now = compute(batch.rows(part.rows).to(self.team.device)).float().cpu()
            if part.padding:
                continue
            if len(shape) == 1:
                found[part.rows] = now
            else:
                found[part.rows, : now.shape[1]] = now
        return self.team.sum(found)

    def backward(self, loss: Any) -> None:
        """Add a loss's gradients; losses of all ranks add up."""
        # The gradients of split weights are averaged over the ranks, where the sum is meant.
        (loss * (self.team.size if self.split else 1)).backward()

    def update(self, optimizer: Any, grad_clip: float, what: str) -> float:
        """Clip the gradient's norm, step, and forget the gradient; the norm before. TrainingBroken when it is no number, which
        says of `what` ("step 7")."""
        if self.team.size > 1 and not self.split:
            self._add_up()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), grad_clip)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        if not bool(torch.isfinite(norm)):
            optimizer.zero_grad()
            raise TrainingBroken(f"{what}: the gradient's norm is {float(norm)}")
        optimizer.step()
        optimizer.zero_grad()
        return float(norm)

    def _add_up(self) -> None:
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        flat = self.team.sum(torch.cat([parameter.grad.reshape(-1) for parameter in parameters]))
        for parameter, total in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad.copy_(total.view_as(parameter))


def is_split(team: Team, sharding: str) -> bool:
    """Whether weights are split over the ranks."""
    return team.size > 1 and sharding == "full"


def in_half(team: Team, dtype: str) -> bool:
    """Whether forward passes are in bfloat16."""
    return dtype == "bfloat16" and team.device == "cuda"


def minibatches(rows: int, epochs: int, parts: int, micro_batch: int, team: Team, seed: int) -> list[Plan]:
    """The plan of each pass over a batch, each in an order of its own; the same on all ranks, and for the same seed."""
    shuffling = torch.Generator().manual_seed(seed)
    return [plan(rows, parts, micro_batch, team, shuffling) for _ in range(epochs)]
