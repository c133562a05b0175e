"""Which rows of a step's batch are computed by whom, in which portions. Pure.

All ranks make the same number of passes through the model in each minibatch, since its weights may be split over them: a rank
that has fewer rows passes one row for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gangflow.recipes.lm.ranks import Team


@dataclass(frozen=True, slots=True)
class Part:
    """One pass: at most `micro_batch` rows."""

    rows: Any
    """Indices (k,) int64, k ≥ 1."""
    padding: bool = False
    """It counts for nothing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Minibatch → rank → its passes."""

    minibatches: tuple[tuple[tuple[Part, ...], ...], ...]
    rank: int

    def micro_batches(self) -> Iterator[Part]:
        """All passes of this rank, once."""
        for minibatch in self.minibatches:
            yield from minibatch[self.rank]

    @staticmethod
    def rows_of(minibatch: Sequence[Sequence[Part]]) -> Any:
        """The rows of a minibatch, of all ranks."""
        return torch.cat([part.rows for parts in minibatch for part in parts if not part.padding])


def plan(rows: int, minibatches: int, micro_batch: int, team: Team, shuffling: Any = None) -> Plan:
    """Each row once. `shuffling`: the generator of their order, the same on all ranks; None: as they come."""
    order = torch.arange(rows) if shuffling is None else torch.randperm(rows, generator=shuffling)
    made = []
    for chunk in order.tensor_split(min(minibatches, rows)):
        shares = chunk.tensor_split(team.size)
        passes = max(-(-len(share) // micro_batch) for share in shares)
        made.append(tuple(_passes(share, micro_batch, passes) for share in shares))
    return Plan(tuple(made), team.rank)


def _passes(share: Any, micro_batch: int, passes: int) -> tuple[Part, ...]:
    parts = [Part(rows) for rows in share.split(micro_batch)] if len(share) else []
    nothing = Part(torch.zeros(1, dtype=torch.int64), padding=True)
    return (*parts, *[nothing] * (passes - len(parts)))
