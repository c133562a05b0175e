"""The learning rate of each step."""

import pytest

from gangflow.recipes.lm.schedule import rate


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.7, 0.4, 0.1]),
        ("cosine", [0.5, 1.0, 1.0, 0.775, 0.325, 0.1]),
    ],
)
def test_it_rises_then_stays_or_falls(schedule: str, expected: list[float]) -> None:
    found = [rate(step, 6, top=1.0, warmup=2, schedule=schedule, bottom=0.1) for step in range(6)]
    assert found == pytest.approx(expected)


def test_a_run_of_one_step_has_a_rate() -> None:
    assert rate(0, 1, top=1.0, schedule="cosine") == pytest.approx(1.0)


def test_another_word_is_refused() -> None:
    with pytest.raises(ValueError, match="constant, linear or cosine, got 'cosin'"):
        rate(0, 6, top=1.0, schedule="cosin")
