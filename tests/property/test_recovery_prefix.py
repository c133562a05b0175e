"""Recovery from every record of a history gives the state that was live there, and owes what was owed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gangflow.xce.codec import EVENTS, INPUTS, decode, encode
from gangflow.xce.core.evolve import apply, apply_all
from gangflow.xce.core.state import State
from gangflow.xce.machine import Decision, effects_due, handle
from tests.property.greedy import Greedy
from tests.property.histories import History
from tests.property.world import World

SEEDS = int(os.environ.get("SEEDS", "40"))


@pytest.mark.parametrize("seed", range(0, SEEDS, 4))
def test_every_prefix_of_the_journal_is_the_state_that_was_live(seed: int) -> None:
    """Scenarios 14 and 77, Properties 19 and 20: whoever takes over at any record knows the same and owes what was due."""
    history = History(seed)
    live: list[State] = []

    def remember(world: World, before: State, decision: Decision) -> None:
        if decision.events:
            live.append(decision.state)

    history.world.after_step.append(remember)
    history.play(20)
    state = State()
    for batch, expected in zip(history.world.journal, live, strict=True):
        stepwise = state
        for event in batch.events:
            assert decode(encode(event), EVENTS) == event
            stepwise = apply(stepwise, event, batch.now_ms)
        state = apply_all(state, batch.events, batch.now_ms)
        assert state == expected
        assert stepwise == expected
        assert list(state.groups) == list(expected.groups)
        assert effects_due(state) == effects_due(expected)


@pytest.mark.parametrize("seed", range(0, SEEDS, 8))
def test_the_same_inputs_give_the_same_decisions(seed: int) -> None:
    """Property 21 (I14): a journal's inputs, fed again, give its events byte for byte."""
    history = History(seed)
    history.play(20)
    state = State()
    for batch in history.world.journal:
        inputs = [decode(encode(one), INPUTS) for one in batch.inputs]
        decision = handle(state, inputs, batch.now_ms, Greedy())
        assert [encode(event) for event in decision.events] == [encode(event) for event in batch.events]
        state = decision.state
    assert state == history.world.state


PRINT_DIGEST = """
import hashlib
from gangflow.xce.codec import encode
from tests.property.histories import History

digest = hashlib.sha256()
for seed in (1, 2, 3):
    history = History(seed)
    history.play(20)
    for batch in history.world.journal:
        for event in batch.events:
            digest.update(encode(event))
print(digest.hexdigest())
"""


def test_decisions_do_not_depend_on_the_hash_seed() -> None:
    """Property 21 (I14): the same history, byte for byte, whatever PYTHONHASHSEED says."""
    root = Path(__file__).resolve().parents[2]
    digests = []
    for hash_seed in ("0", "1", "4242"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)}
        done = subprocess.run(
            [sys.executable, "-c", PRINT_DIGEST], env=env, cwd=root, capture_output=True, text=True, check=True
        )
        digests.append(done.stdout)
    assert len(digests[0].strip()) == 64
    assert digests[0] == digests[1] == digests[2]
