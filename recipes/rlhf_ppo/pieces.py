"""Which rows an optimizer step takes. Nothing here is random but by (seed, step): a repeated step takes the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch


def minibatches(count: int, epochs: int, parts: int, seed: int, step: int) -> Iterator[list[int]]:
    """For each epoch all rows in a new order, in `parts` parts that differ by one row at most; none is empty."""
    chance = torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)
    parts = min(parts, count)
    for _ in range(epochs):
        order = torch.randperm(count, generator=chance).tolist()
        for part in range(parts):
            yield order[count * part // parts : count * (part + 1) // parts]


def micro(rows: Sequence[int], size: int, rank: int = 0, ranks: int = 1) -> Iterator[Sequence[int]]:
    """This rank's share of a minibatch, at most `size` rows at a time.

    Each rank gets as many pieces as any other, since all of them must take part in each: the last may be empty.
    """
    share = rows[rank::ranks]
    longest = -(-len(rows) // ranks)
    for at in range(0, longest, size):
        yield share[at : at + size]
