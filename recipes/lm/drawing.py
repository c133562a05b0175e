"""Which problems a step takes, and the seed of each: functions of the run's seed and the position alone. No torch.

The problems are gone through in a new order each time round, so that each is trained on as often as any other; a position is
how many were drawn before, and is all that a checkpoint has to keep.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

from gangflow.recipes.lm.problems import Problem


def drawn(problems: Sequence[Problem], position: int, count: int, seed: int) -> list[Problem]:
    """The next `count` problems after `position` were drawn; a step never has one twice unless it has more than there are."""
    found: list[Problem] = []
    while len(found) < count:
        round_, offset = divmod(position + len(found), len(problems))
        order = list(range(len(problems)))
        random.Random(f"{seed}/order/{round_}").shuffle(order)
        found += [problems[place] for place in order[offset : offset + count - len(found)]]
    return found


def sample_seed(seed: int, position: int) -> int:
    """What an engine draws the samples of one prompt with: 0 … 2⁶² − 1, another one for each position."""
    return int.from_bytes(hashlib.sha256(f"{seed}/sample/{position}".encode()).digest()[:8], "big") >> 2
