"""Histories of commands, reports and faults through the machine; every invariant after every step. `SEEDS=200` plays 200."""

from __future__ import annotations

import os

import pytest

from tests.property.histories import History

SEEDS = int(os.environ.get("SEEDS", "40"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_history_is_safe_and_comes_to_rest(seed: int) -> None:
    """Invariants after every step; liveness after the last fault. Scenarios 15, 17, 38, 73, 83."""
    history = History(seed)
    history.play()
    history.calm()
    assert history.steps > 10
