"""Effects to agents: owed until the state says otherwise, whatever happens to a delivery."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gangflow.errors import JournalRegressed
from gangflow.xce.controller import delivery
from gangflow.xce.controller.delivery import Deliveries
from gangflow.xce.core.effects import Start, Stop, TaskEffect, Unprepare
from gangflow.xce.core.state import TaskKey
from tests.unit.xce.controller.fakes import FakeHosts, until


def task(n: int) -> TaskKey:
    return TaskKey("g1", 1, "a", n, 1, 0)


class Bench:
    def __init__(self) -> None:
        self.hosts = FakeHosts()
        self.refusals: list[JournalRegressed] = []
        node_of = {"h1": "n1", "h2": "n1", "h3": "n2"}
        self.deliveries = Deliveries(self.hosts, lambda host: node_of[host], lambda effect: effect, self.refusals.append)

    def kinds(self) -> list[tuple[str, TaskKey]]:
        return [(type(effect).__name__, effect.task) for effect in self.hosts.delivered]


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(delivery, "RESEND_S", (0.0,))
    made = Bench()
    yield made
    await made.deliveries.close()


async def test_an_effect_goes_out_at_once(bench: Bench) -> None:
    bench.deliveries.issue([Stop(task(1), "h1", 5)])
    await until(lambda: bench.kinds() == [("Stop", task(1))])


async def test_what_was_not_confirmed_is_sent_again_and_again(bench: Bench) -> None:
    """Scenario 13: an obligation is retried for as long as it is due, not a fixed number of times."""
    due: list[TaskEffect] = [Stop(task(1), "h1", 5)]
    bench.hosts.unreachable = True
    bench.deliveries.issue(due)
    for attempts in range(1, 8):
        await until(lambda attempts=attempts: bench.hosts.attempts >= attempts)
        bench.deliveries.reconcile(due)
    bench.hosts.unreachable = False
    bench.deliveries.reconcile(due)
    await until(lambda: bench.kinds()[:1] == [("Stop", task(1))])
    bench.deliveries.reconcile([])
    assert not bench.deliveries


async def test_the_pauses_between_tries_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "RESEND_S", (1.0, 2.0, 10.0))
    loop = asyncio.get_running_loop()
    moment = [loop.time()]
    monkeypatch.setattr(loop, "time", lambda: moment[0])
    bench = Bench()
    due: list[TaskEffect] = [Stop(task(1), "h1", 5)]
    bench.deliveries.issue(due)
    pauses = []
    for _ in range(5):
        owed = bench.deliveries._owed[task(1)]
        pauses.append(owed.again_at - moment[0])
        moment[0] += pauses[-1] - 0.01
        sent = owed.sent
        bench.deliveries.reconcile(due)
        assert owed.sent == sent, "not before its time"
        moment[0] += 0.02
        bench.deliveries.reconcile(due)
        assert owed.sent == sent + 1
    assert [round(pause) for pause in pauses] == [1, 2, 10, 10, 10]
    monkeypatch.undo()
    await bench.deliveries.close()


async def test_what_is_due_and_was_never_issued_is_sent(bench: Bench) -> None:
    bench.deliveries.reconcile([Start(task(1), "h1", "b")])
    await until(lambda: bench.kinds() == [("Start", task(1))])


async def test_an_overtaken_effect_is_not_delivered_late(bench: Bench) -> None:
    gate = asyncio.Event()
    original = bench.hosts.deliver

    async def slow(node: str, effects: list[TaskEffect]) -> None:
        await gate.wait()
        await original(node, effects)

    bench.hosts.deliver = slow  # type: ignore[method-assign]
    bench.deliveries.issue([Stop(task(9), "h1", 5)])
    await asyncio.sleep(0)  # the courier is under way with the first
    await asyncio.sleep(0)
    bench.deliveries.issue([Start(task(1), "h1", "b")])
    bench.deliveries.issue([Unprepare(task(1), "h1")])
    gate.set()
    await until(lambda: len(bench.kinds()) == 2)
    assert bench.kinds() == [("Stop", task(9)), ("Unprepare", task(1))]


async def test_a_slow_node_holds_up_nobody_else(bench: Bench) -> None:
    original = bench.hosts.deliver

    async def deliver(node: str, effects: list[TaskEffect]) -> None:
        if node == "n1":
            await asyncio.Event().wait()
        await original(node, effects)

    bench.hosts.deliver = deliver  # type: ignore[method-assign]
    bench.deliveries.issue([Stop(task(1), "h1", 5), Stop(task(2), "h2", 5), Stop(task(3), "h3", 5)])
    await until(lambda: bench.kinds() == [("Stop", task(3))])


async def test_what_came_together_goes_together(bench: Bench) -> None:
    bench.deliveries.issue([Stop(task(n), "h1", 5) for n in range(64)])
    await until(lambda: len(bench.hosts.delivered) == 64)
    assert bench.hosts.attempts == 1
    assert [effect.task.index for effect in bench.hosts.delivered] == list(range(64))


async def test_a_fault_in_the_way_to_a_node_does_not_end_its_courier(bench: Bench) -> None:
    original = bench.hosts.deliver

    async def broken(node: str, effects: list[TaskEffect]) -> None:
        bench.hosts.deliver = original  # type: ignore[method-assign]
        raise RuntimeError("a fault")

    bench.hosts.deliver = broken  # type: ignore[method-assign]
    due: list[TaskEffect] = [Stop(task(1), "h1", 5)]
    bench.deliveries.issue(due)
    await until(lambda: bench.hosts.deliver == original)
    bench.deliveries.reconcile(due)
    await until(lambda: bench.kinds() == [("Stop", task(1))])


async def test_an_agent_that_knows_a_later_journal_is_heard(bench: Bench) -> None:
    bench.hosts.objection = "the journal ends at 7, but this agent has seen 9"
    bench.deliveries.issue([Stop(task(1), "h1", 5)])
    await until(lambda: bench.refusals)
    assert "seen 9" in bench.refusals[0].message
    assert bench.hosts.delivered == []


async def test_a_node_that_comes_back_gets_what_is_owed_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "RESEND_S", (3_600.0,))
    bench = Bench()
    due: list[TaskEffect] = [Stop(task(1), "h1", 5), Stop(task(3), "h3", 5)]
    bench.hosts.lose = 2
    bench.deliveries.issue(due)
    await until(lambda: bench.hosts.attempts == 2)
    bench.deliveries.reconcile(due)
    bench.deliveries.hurry("n1")
    bench.deliveries.reconcile(due)
    await until(lambda: bench.kinds() == [("Stop", task(1))])
    await bench.deliveries.close()
