"""Which problems a step takes, the seed of each, and which of them came back. The first two are functions of the run's seed and
the position alone. No torch.

The problems are gone through in a new order each time round, so that each is trained on as often as any other; a position is
how many were drawn before, and is all that a checkpoint has to keep.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

from gangflow.errors import GangflowError
from gangflow.member.samples import PromptSamples
from gangflow.recipes.lm.problems import Problem


class NothingSampled(GangflowError):
    """Every prompt of a step was skipped."""

    code = "nothing_sampled"


def sampled(what: str, groups: Sequence[PromptSamples], problems: Sequence[Problem]) -> list[tuple[Problem, PromptSamples]]:
    """The problems that were not skipped, each with its samples. NothingSampled, for `what` ("step 7"), when all were."""
    kept = [(problem, group) for group, problem in zip(groups, problems, strict=True) if not group.skipped]
    if not kept:
        raise NothingSampled(f"{what}: all {len(groups)} prompts were skipped; the last: {groups[-1].skipped}")
    return kept


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
