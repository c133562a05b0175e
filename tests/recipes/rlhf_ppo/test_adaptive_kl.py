"""The adaptive weight of the KL penalty, against Ziegler et al. by hand."""

import math

import pytest

from gangflow.recipes.rlhf_ppo.adaptive_kl import AdaptiveKl


def test_the_weight_follows_the_error() -> None:
    start = AdaptiveKl(weight=0.1, target=4.0, horizon=1_000)
    # error 4.4 / 4 − 1 = 0.1, over 100 of 1,000 samples: a hundredth more.
    assert start.after(4.4, 100).weight == pytest.approx(0.1 * 1.01)
    assert start.after(3.6, 100).weight == pytest.approx(0.1 * 0.99)
    assert start.after(4.0, 100).weight == 0.1


@pytest.mark.parametrize(("kl", "factor"), [(400.0, 1.02), (0.0, 0.98), (-3.0, 0.98)])
def test_an_error_counts_as_a_fifth_at_most(kl: float, factor: float) -> None:
    assert AdaptiveKl(0.1, 4.0, 1_000).after(kl, 100).weight == pytest.approx(0.1 * factor)


def test_it_settles_where_the_target_is() -> None:
    # A policy whose KL falls as the weight grows: KL = 1 / β. The weight that gives the target of 4 is 0.25.
    control = AdaptiveKl(1.0, 4.0, 1_000)
    for _ in range(500):
        control = control.after(1 / control.weight, 128)
    assert control.weight == pytest.approx(0.25, rel=1e-3)


def test_without_a_target_it_stays() -> None:
    assert AdaptiveKl(0.1, 0.0, 1_000).after(7.0, 100) == AdaptiveKl(0.1, 0.0, 1_000)


@pytest.mark.parametrize("kl", [math.nan, math.inf])
def test_a_divergence_that_is_no_number_is_refused(kl: float) -> None:
    with pytest.raises(ValueError, match="the KL divergence of a step is"):
        AdaptiveKl(0.1, 4.0, 1_000).after(kl, 100)
