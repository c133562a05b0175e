"""How far an engine's log-probabilities may be from the trainer's before its samples are of another policy.

Two programs that compute the same in float32 agree to 1e-5 on every token. In bfloat16 the difference of a single improbable
token reaches half a nat and more with the very same weights, so that of many tokens the largest says little, and the mean much.
"""

from __future__ import annotations

from gangflow.recipes.lm.ranks import OnAllRanks


class EngineDrift(OnAllRanks):
    """The engine's log-probabilities are not the trainer's: the samples are of another policy, and nothing was learned."""


def check_drift(largest: float, mean: float, *, at_most: float, mean_at_most: float | None = None) -> None:
    """EngineDrift unless both are rounding. Differences in nats, over all tokens of a step that the newest weights sampled."""
    if not largest <= at_most:  # Also true of what is no number.
        raise EngineDrift(f"log-probabilities differ by {largest:g}; rounding is below {at_most:g}")
    if mean_at_most is not None and not mean <= mean_at_most:
        raise EngineDrift(f"log-probabilities differ by {mean:g} in the mean; rounding is below {mean_at_most:g}")
