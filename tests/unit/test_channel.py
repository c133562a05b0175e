"""The words of the RL channel: what is written is what is read, and nonsense is told apart from it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangflow.channel import Head, Probe, WeightsId

IDS = st.builds(WeightsId, st.integers(1, 10**6), st.integers(0, 10**9), st.text("0123456789abcdef", min_size=64, max_size=64))
LOGPROBS = st.lists(st.floats(-100, 0, allow_nan=False), min_size=1, max_size=8)


@given(IDS)
def test_a_label_says_the_whole_id(weights: WeightsId) -> None:
    assert WeightsId.from_label(weights.label()) == weights


@pytest.mark.parametrize(
    "text", ["default", "", "loading 1/2", "1/2/abc", "1/-2/" + "0" * 64, "1/2/" + "0" * 64 + "\n", "١/2/" + "0" * 64]
)
def test_another_name_is_no_id(text: str) -> None:
    assert WeightsId.from_label(text) is None


@given(IDS, st.none() | LOGPROBS)
def test_a_head_is_read_as_it_was_written(weights: WeightsId, logprobs: list[float] | None) -> None:
    probe = None if logprobs is None else Probe(tuple(range(len(logprobs) + 1)), tuple(logprobs))
    head = Head(weights, "/w", probe)
    assert Head.parse(head.render()) == head


@pytest.mark.parametrize(
    "probe", [{"tokens": [1, 2]}, {"tokens": [1, 2], "logprobs": []}, {"tokens": [1], "logprobs": []}, [1], "x"]
)
def test_a_head_with_a_broken_probe_is_none(probe: Any) -> None:
    document = {**WeightsId(1, 2, "0" * 64).document(), "path": "/w", "probe": probe}
    with pytest.raises(ValueError, match="probe"):
        Head.parse(json.dumps(document))


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_policy_that_is_broken_publishes_no_probe(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        Probe((1, 2), (value,))


def test_the_difference_is_the_largest_one_and_the_mean_and_infinite_without_a_number() -> None:
    probe = Probe((1, 2, 3), (-1.0, -2.0))
    assert probe.difference([-1.25, -2.0]) == (0.25, 0.125)
    for found in ([-1.0], [-1.0, math.nan], []):
        assert probe.difference(found) == (math.inf, math.inf)
