"""I8, the journal's half: cut the journal after any of its records, and recovery gives the state that was true then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gangflow.xce.core.inputs import Input, PutValue, ReportSlot, Request, TaskExited
from gangflow.xce.core.invariants import check
from gangflow.xce.core.plan import Cause
from gangflow.xce.core.state import GroupState, State
from gangflow.xce.journal import image
from gangflow.xce.journal.image import Image
from gangflow.xce.journal.record import Batch
from gangflow.xce.journal.recovery import recover
from gangflow.xce.journal.sqlite import SqliteJournal
from gangflow.xce.machine import Decision, Machine
from tests.unit.xce.controller.fakes import until
from tests.unit.xce.controller.worlds import World, world


async def a_life(here: World) -> None:
    """Much of what a group may go through: start, a value, a failure and its repair, a verdict, a restart of XCE, the end."""
    await here.start()
    await here.running()
    await here.controller.command(PutValue("g1", "weights/head", "1", request=Request(key="k", digest="d")))
    victim = next(key for key in here.hosts.starts if key.member == "rollout")
    here.hosts.running.discard(victim)
    await here.controller.report([TaskExited(victim, here.hosts.places[victim], Cause.SIGNAL, signal=9, stderr_tail="Killed")])
    await _time_passes(here, lambda: here.is_in(GroupState.RUNNING) and len(here.hosts.starts) == 5)
    newest = here.group().slots["rollout", 1].incarnation
    await here.controller.command(ReportSlot("g1", "rollout", 1, newest, Cause.UNHEALTHY, "does not answer"))
    await _time_passes(here, lambda: here.is_in(GroupState.RUNNING) and len(here.hosts.starts) == 6)
    await here.kill()
    await here.start()
    await here.cancel()
    await until(lambda: here.is_in(GroupState.CANCELLED) and here.provider.released)


async def _time_passes(here: World, reached: object) -> None:
    assert callable(reached)

    def moved() -> bool:
        if reached():
            return True
        here.clock.value += 500
        here.controller.wake()
        return False

    await until(moved)


@pytest.mark.parametrize("images", [0, 3], ids=["journal alone", "with images"])
async def test_recovery_from_every_record_is_the_state_that_was_true_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: int
) -> None:
    states: dict[int, State] = {}
    handle = Machine.handle

    def watched(self: Machine, inputs: Sequence[Input], now_ms: int) -> Decision:
        decision = handle(self, inputs, now_ms)
        if decision.events:
            states[sum(len(batch.events) for batch in history) + len(decision.events)] = decision.state
            history.append(Batch(1, 1, now_ms, (), decision.events))
        return decision

    history: list[Batch] = []
    monkeypatch.setattr(Machine, "handle", watched)
    async with world(tmp_path) as here:
        await a_life(here)
        batches = list(here.journal.batches())
        name = here.journal.cluster_id
    assert len(batches) > 15
    assert [batch.last_seq for batch in batches] == list(states)[: len(batches)], "the last one may have died in the making"
    cut = SqliteJournal(tmp_path / "cut.db", cluster_id=name)
    for number, batch in enumerate(batches):
        again = cut.append(batch)
        assert again.digest == batch.digest, "the same records make the same chain"
        found = recover(cut)
        assert found.state == states[batch.last_seq]
        assert check(found.state) == []
        if images and number % images == 0:
            cut.save_image(
                batch.last_seq, image.encode(Image(found.state, batch.last_seq, bytes.fromhex(batch.digest))), keep=2
            )
    assert bool(recover(cut).image_seq) is bool(images)
    cut.close()


async def test_inputs_fed_again_decide_the_same(tmp_path: Path) -> None:
    """I14: the journal's inputs, at their times and in their batches, give the journal's decisions."""
    async with world(tmp_path) as here:
        await a_life(here)
        batches = list(here.journal.batches())
    machine = Machine(State())
    for batch in batches:
        assert machine.handle(batch.inputs, batch.now_ms).events == batch.events
