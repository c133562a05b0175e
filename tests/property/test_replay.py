"""I14: live decisions are what a replay of their journal decides, byte for byte: from the beginning, from any image, after the
controller's death at any record, in another process with another PYTHONHASHSEED."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random

import pytest

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.asks import Ask, Grant, Refusal
from gangflow.xce.core.state import State
from gangflow.xce.journal.divergence import Kind
from gangflow.xce.journal.record import Batch
from gangflow.xce.journal.replay import replay
from gangflow.xce.machine import Machine
from gangflow.xce.placement import Scheduler
from gangflow.xce.placement import scheduler as scheduler_room
from gangflow.xce.placement.session import Session
from tests.property.greedy import Greedy
from tests.property.histories import History
from tests.property.kept import Kept, batches_of
from tests.property.test_scale import ScaleHistory
from tests.unit.xce.core.plans import job, plan

SEEDS = int(os.environ.get("SEEDS", "40"))
ROOT = Path(__file__).resolve().parents[2]


def history(
    seed: int, scheduler: type = Scheduler, moves: int = 25, kind: type[History] = History
) -> tuple[History, list[Batch]]:
    """A played history (the controller dies at random records of it) and what its journal has."""
    played = kind(seed, scheduler)
    played.play(moves)
    return played, batches_of(played.world.journal)


@pytest.mark.parametrize("kind", [History, ScaleHistory])
@pytest.mark.parametrize("seed", range(0, SEEDS, 2))
def test_live_decisions_are_what_a_replay_decides(seed: int, kind: type[History]) -> None:
    """Property 41, Scenario 77: a machine that kept a ledger, and one that has the journal only, agree on every byte."""
    played, batches = history(seed, kind=kind)
    every = range(0, len(batches), 7)
    found = replay(Kept(batches, images=every))
    assert found.divergence is None, found.divergence
    assert (found.batches, found.events) == (len(batches), sum(len(batch.events) for batch in batches))
    assert found.reworded == 0
    assert found.images == [batches[number].last_seq for number in every]
    assert found.state == played.world.state


@pytest.mark.parametrize("seed", range(1, SEEDS, 4))
def test_a_replay_that_begins_with_an_image_decides_the_same(seed: int) -> None:
    """Whatever was kept in memory before an image is not needed after it: nothing kept decides."""
    played, batches = history(seed)
    random = Random(seed)
    for _ in range(4):
        number = random.randrange(len(batches) - 1)
        forgotten = random.randrange(number + 1)
        journal = Kept(batches, images=[number, len(batches) - 1], horizon=forgotten)
        found = replay(journal)
        assert found.divergence is None, found.divergence
        assert found.began_after == (batches[number].last_seq if forgotten else 0)
        assert found.state == played.world.state
        begin = random.randrange(journal.horizon, journal.seq) if not forgotten else batches[number].last_seq + 1
        found = replay(journal, after=begin)
        assert found.divergence is None, found.divergence
        assert found.state == played.world.state


@pytest.mark.parametrize("seed", range(3, SEEDS, 8))
def test_a_controller_that_dies_at_any_record_replays(seed: int) -> None:
    """Its successor has an index, a ledger and a term of its own; what both decided replays as one history."""
    played = History(seed, Scheduler)
    played.play(4)
    for _ in range(8):
        played.crash()
        played.world.run(played.world.now_ms + 3_000)
        played.move()
    found = replay(Kept(batches_of(played.world.journal)))
    assert found.divergence is None, found.divergence
    assert found.state.term >= 9
    assert found.state == played.world.state


def test_a_journal_of_another_scheduler_is_told_from_ours() -> None:
    """A replay can fail: who decided otherwise is found at the first record that shows it, and not before."""
    found_out = 0
    for seed in range(6):
        batches = history(seed, Greedy, 10)[1]
        assert replay(Kept(batches), machine=lambda state: Machine(state, Greedy())).divergence is None
        found = replay(Kept(batches))
        if found.divergence is not None:
            found_out += 1
            assert found.divergence.kind is Kind.EVENTS
            assert found.divergence.first_seq == found.seq + 1
            assert found.state == (Kept(batches).states[found.batches - 1] if found.batches else State())
    assert found_out


class Forgetful:
    """A scheduler whose answers depend on what it was asked before: what the ledger of placement must never do."""

    def __init__(self) -> None:
        self.real, self.calls = Scheduler(), 0

    def decide(self, state: State, asks: Sequence[Ask]) -> Sequence[Grant | Refusal]:
        self.calls += 1
        return self.real.decide(state, asks if self.calls % 3 else asks[:0])


def test_a_scheduler_that_remembers_is_found_out() -> None:
    """The test above can fail: with a session that depends on the number of sessions before, histories do not replay."""

    def differs(seed: int) -> bool:
        played = History(seed, Forgetful)
        played.world.after_step.clear()
        played.world.start()
        for _ in range(6):
            played.submit()
            played.world.run(played.world.now_ms + 2_000)
        batches = batches_of(played.world.journal)
        half = Kept(batches, images=[len(batches) // 2 - 1], horizon=1)
        return replay(half, machine=lambda state: Machine(state, Forgetful())).divergence is not None

    assert any(differs(seed) for seed in range(6))


def test_the_limits_of_a_session_are_of_the_version_not_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """SESSION_WORK decides: it is a constant of the code, and a journal that was made with another one diverges."""
    monkeypatch.setattr(scheduler_room, "Session", partial(Session, work=1))
    played = history(5)[0]
    played.world.feed(*(inp.SubmitGroup(plan(job(cpu=500), name=f"many-{number}")) for number in range(4)))
    batches = batches_of(played.world.journal)
    assert replay(Kept(batches)).divergence is None
    monkeypatch.undo()
    assert replay(Kept(batches)).divergence is not None


WRITE = """
import sys
from pathlib import Path
from gangflow.xce.journal.sqlite import SqliteJournal
from tests.property.test_replay import history

journal = SqliteJournal(Path(sys.argv[1]), cluster_id="test-cluster")
for batch in history(int(sys.argv[2]), moves=15)[1]:
    journal.append(batch)
journal.close()
"""


@pytest.mark.parametrize("seed", [6, 11])
def test_a_journal_replays_in_another_process_whatever_its_hash_seed(seed: int, tmp_path: Path) -> None:
    file = tmp_path / "journal.db"

    def run(hash_seed: str, *words: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, *words], env=environment, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
        )
        return done.stdout

    run("0", "-c", WRITE, str(file), str(seed))
    told = {run(hash_seed, "-m", "gangflow.cli.main", "replay", str(file), "--json") for hash_seed in ("1", "4242")}
    assert len(told) == 1
    assert '"same": true' in told.pop()
