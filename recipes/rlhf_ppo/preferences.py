"""Training a reward model on preference pairs: the loss of Bradley and Terry, and how often it agrees with held-out choices.

P(chosen ≻ rejected) = σ(r(chosen) − r(rejected)); the loss is its negative log-likelihood. A score's zero and unit mean nothing to
it, so they are set afterwards: over the replies it was trained on, scores have mean 0 and variance 1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.nn import functional

from gangflow.recipes.lm.batch import pack
from gangflow.recipes.rlhf_ppo.scalar import Scalar

Tokens = Sequence[int]


@dataclass(frozen=True, slots=True)
class TokenPair:
    """A preference pair as tokens; replies have their end token."""

    prompt: Tokens
    chosen: Tokens
    rejected: Tokens


FILE: Final = "scores.json"
PIECE: Final = 128
"""Rows of one forward pass where no gradient is wanted."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """How a reward model is trained."""

    epochs: int = 2
    batch: int = 32
    """Pairs per gradient step."""
    learning_rate: float = 1e-3
    """At the start; it falls to 0 in a line."""
    grad_clip: float = 1.0
    seed: int = 0
    """Of the order of the pairs."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What makes raw outputs scores."""

    mean: float = 0.0
    std: float = 1.0

    def __call__(self, raw: Any) -> Any:
        return (raw - self.mean) / self.std


def bradley_terry(chosen: Any, rejected: Any) -> Any:
    """The mean negative log-likelihood of the choices; both (n,) are outputs of the model. A coin has log 2."""
    return -functional.logsigmoid(chosen - rejected).mean()


def outputs(model: Scalar, prompts: Sequence[Tokens], replies: Sequence[Tokens], *, piece: int = PIECE) -> Any:
    """(n,) raw outputs for prompts with their replies, without gradient; `piece` rows in a forward pass."""
    with torch.no_grad():
        pieces = [_last(model, prompts[at : at + piece], replies[at : at + piece]) for at in range(0, len(prompts), piece)]
    return torch.cat(pieces)


def accuracy(model: Scalar, pairs: Sequence[TokenPair]) -> float:
    """The fraction of pairs whose chosen reply gets the larger output; a tie counts half."""
    prompts = [pair.prompt for pair in pairs]
    chosen = outputs(model, prompts, [pair.chosen for pair in pairs])
    rejected = outputs(model, prompts, [pair.rejected for pair in pairs])
    return float(((chosen > rejected).double() + 0.5 * (chosen == rejected).double()).mean())


def fit(
    model: Scalar, pairs: Sequence[TokenPair], how: Fitting, seen: Callable[[int, int, float], None] = lambda *_: None
) -> Scale:
    """Train in place; the scale of its scores. `seen` is called after each gradient step with (step, of how many, loss)."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=how.learning_rate, weight_decay=0.0)
    batches = list(_batches(len(pairs), how))
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = how.learning_rate * (1 - step / len(batches))
        those = [pairs[place] for place in batch]
        prompts = [pair.prompt for pair in those]
        replies = [pair.chosen for pair in those] + [pair.rejected for pair in those]
        chosen, rejected = _last(model, prompts * 2, replies).chunk(2)
        loss = bradley_terry(chosen, rejected)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), how.grad_clip)
        optimizer.step()
        seen(step + 1, len(batches), float(loss.detach()))
    prompts = [pair.prompt for pair in pairs]
    raw = outputs(model, prompts * 2, [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs])
    return Scale(float(raw.mean()), float(raw.std(correction=0).clamp_min(1e-6)))


def save(folder: Path, model: Scalar, scale: Scale, report: dict[str, Any]) -> None:
    """Write the model, its scale and what was measured of it."""
    model.save(folder)
    (folder / FILE).write_text(json.dumps({**asdict(scale), "report": report}, indent=2) + "\n")


def load(folder: Path) -> tuple[Scalar, Scale, dict[str, Any]]:
    """What `save` wrote."""
    document = json.loads((folder / FILE).read_text())
    return Scalar.load(folder), Scale(document["mean"], document["std"]), document["report"]


def _last(model: Scalar, prompts: Sequence[Tokens], replies: Sequence[Tokens]) -> Any:
    rows = pack(prompts, replies).to(str(next(model.parameters()).device))
    return model.last(rows.tokens, rows.attention)


def _batches(count: int, how: Fitting) -> Iterator[list[int]]:
    chance = torch.Generator().manual_seed(how.seed)
    for _ in range(how.epochs):
        order = torch.randperm(count, generator=chance).tolist()
        for at in range(0, count, how.batch):
            yield order[at : at + how.batch]
