"""Every operation on a group meets every other one, at any distance, with or without a crash of the controller between them.

One seed is one pair. `SEEDS=2000` (as `make nightly` has it) plays a thousand of them.
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random

import pytest

from gangflow.xce.core.state import GroupState
from tests.property.pairs import MOMENTS, OPERATIONS, play

SEEDS = int(os.environ.get("SEEDS", "40"))


@pytest.mark.parametrize("seed", range(0, SEEDS, 2))
def test_two_operations_at_once_end_well(seed: int) -> None:
    """Properties 18, 19, 28, 29, 30, 32, 33, 35 and 37: invariants at each step; and once everybody behaves, the one group runs
    with exactly its targets, and the other waits for its claim and holds nothing until it is its turn."""
    random = Random(seed)
    moment = random.choice(["running", "running", *MOMENTS])
    first, second = random.choice([*OPERATIONS]), random.choice([*OPERATIONS])
    play(moment, first, second, random.choice([0, 1, 2, 3, 5, 8, 13, 25, 60]), random.choice([0, 0, 1, 2, 4, 9]), seed)


def test_the_operations_do_something() -> None:
    """A test whose commands are all refused proves nothing."""
    answered: Counter[str] = Counter()
    states: Counter[GroupState] = Counter()
    for moment in ("running", "pending"):
        for name in OPERATIONS:
            pair = play(moment, name, "nothing", 5, 0, 1)
            answered.update(pair.answered)
            states[pair.ended_as] += 1
    for command in (
        "SuspendGroup",
        "ScaleGroup",
        "StopMember",
        "DrainSlot",
        "CloseHost",
        "OpenHost",
        "RestartGroup",
        "EndGroup",
    ):
        assert any(text.startswith((f"{command} 200", f"{command} 202")) for text in answered), command
    assert {GroupState.RUNNING, GroupState.PENDING, GroupState.CANCELLED, GroupState.SUCCEEDED} <= {*states}
