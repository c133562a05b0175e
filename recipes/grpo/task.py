"""Two-digit addition: the problems, the split into trained and held-out ones, and the reward.

A problem is two numbers from 0 to 99, written with two digits each (`07+45=`). Its answer is three digits, **least significant
first** (`250` for 52), so that a policy can carry as a child does. There are 10,000 problems; a seeded fifth is held out.

Arrays: `prompts` is int8 (n, 4), the digits a₁ a₀ b₁ b₀; `answers` is int8 (n, 3), least significant first.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Digits = NDArray[np.int8]

PROBLEMS: Final = 10_000
PROMPT_DIGITS: Final = 4
ANSWER_DIGITS: Final = 3
BEST_REWARD: Final = 2.0
"""Of an exact answer: 1 for being exact and 1 for three right digits of three."""


def prompts_of(problems: NDArray[np.int64]) -> Digits:
    """Digits (n, 4) of problems by number: problem `100·a + b` asks for a + b."""
    first, second = np.divmod(problems, 100)
    return np.stack([first // 10, first % 10, second // 10, second % 10], axis=1).astype(np.int8)


def solutions(prompts: Digits) -> Digits:
    """The right answers (n, 3), least significant digit first."""
    wide = prompts.astype(np.int64)
    total = wide[:, 0] * 10 + wide[:, 1] + wide[:, 2] * 10 + wide[:, 3]
    return np.stack([total % 10, total // 10 % 10, total // 100], axis=1).astype(np.int8)


def split(seed: int = 0, held_out: float = 0.2) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(trained, held out) problem numbers, each sorted: disjoint, together all 10,000, the same for the same seed."""
    order = np.random.Generator(np.random.PCG64(seed)).permutation(PROBLEMS)
    cut = round(PROBLEMS * held_out)
    return np.sort(order[cut:]), np.sort(order[:cut])


def rewards(prompts: Digits, answers: Digits) -> NDArray[np.float32]:
    """Per answer (n,): 1 if it is exact, plus the fraction of its digits that are right; from 0 to 2."""
    right = answers == solutions(prompts)
    return np.asarray(right.all(axis=1) + right.mean(axis=1), np.float32)


def text(prompt: Digits) -> str:
    """A problem as people write it: `07+45=`."""
    return f"{prompt[0]}{prompt[1]}+{prompt[2]}{prompt[3]}="
