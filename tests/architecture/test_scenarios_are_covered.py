"""Failures from the field that this version answers for: each has a test that carries its number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
SCENARIOS = (
    1, 2, 4, 6, 9, 10, 11, 13, 14, 15, 17, 18, 20, 22, 29, 31, 32, 34, 35, 37, 38, 39, 40, 43, 45, 46, 48, 49, 50, 51, 53, 54,
    63, 66, 69, 71, 72, 73, 76, 77, 80, 82, 83, 84,
)  # fmt: skip


def _numbers() -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if path.name == Path(__file__).name:
            continue
        for listed in re.findall(r"Scenarios? ((?:\d+(?:, | and )?)+)", path.read_text()):
            for number in re.findall(r"\d+", listed):
                found.setdefault(int(number), []).append(path.name)
    return found


@pytest.mark.parametrize("number", SCENARIOS)
def test_scenario_has_a_test(number: int) -> None:
    assert number in _numbers()
