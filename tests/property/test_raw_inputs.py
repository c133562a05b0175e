"""Whatever comes from outside, in any order, in any batch: no edge that does not exist, every invariant, an end to everything.

`SEEDS=2000` (as `make nightly` has it) plays five hundred.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from gangflow.xce.placement import Scheduler
from tests.property.greedy import Greedy
from tests.property.raw import Raw

SEEDS = int(os.environ.get("SEEDS", "40"))


def play(seed: int, moves: int = 150) -> Raw:
    raw = Raw(seed, Scheduler if seed % 2 else Greedy)
    for _ in range(moves):
        raw.move()
    raw.calm()
    return raw


@pytest.mark.parametrize("seed", range(0, SEEDS, 4))
def test_no_input_stops_a_controller(seed: int) -> None:
    """An InvalidTransition would; and so would a deadline at which nothing happens, for ever."""
    play(seed)


def test_the_inputs_do_something() -> None:
    """Commands that are all refused would prove nothing."""
    answered: Counter[str] = Counter()
    for seed in range(12):
        answered.update(play(seed).answered)
    for command in ("SubmitGroup 201", "CreateClaim 201", "ScaleGroup 202", "ScaleGroup 409", "ScaleGroup 422"):
        assert answered[command], command
    for name in ("SuspendGroup", "ResumeGroup", "RestartGroup", "RestartSlot", "DrainSlot", "StopMember", "EndGroup"):
        assert answered[f"{name} 200"], name
        assert answered[f"{name} 409"], name
