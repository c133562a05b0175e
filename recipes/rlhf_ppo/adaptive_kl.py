"""The weight of the KL penalty, steered towards a target (Ziegler et al., 2019, section 2.2).

After each step the weight β is multiplied by 1 + clip(KL / target − 1, ±0.2) · samples / horizon: while the policy is further
from its reference than the target, the penalty grows, and otherwise it shrinks. With a target of 0 the weight stays as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

LARGEST_ERROR: Final = 0.2


@dataclass(frozen=True, slots=True)
class AdaptiveKl:
    """The weight now, and how it moves."""

    weight: float
    """β: of a nat of KL, in units of reward."""
    target: float
    """Nats per sample: the KL divergence of whole replies that is aimed at. 0: fixed."""
    horizon: float
    """Samples over which an error of 1 would move the weight by a factor e."""

    def after(self, kl: float, samples: int) -> AdaptiveKl:
        """The weight after a step of so many samples, whose mean KL was that. ValueError for a KL that is no number."""
        if not math.isfinite(kl):
            raise ValueError(f"the KL divergence of a step is {kl}")
        if not self.target:
            return self
        error = max(-LARGEST_ERROR, min(LARGEST_ERROR, kl / self.target - 1))
        return replace(self, weight=self.weight * (1 + error * samples / self.horizon))
