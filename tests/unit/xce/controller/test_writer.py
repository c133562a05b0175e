"""The writer: one batch at a time, durable before it is believed, and no single bad input takes others with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from gangflow.errors import JournalCorrupt, JournalError, JournalFull, JournalLocked, JournalRegressed, Unreachable, XceError
from gangflow.xce.controller import writer as writer_module
from gangflow.xce.controller.writer import Writer
from gangflow.xce.core.events import CommandAnswered, Event, TermStarted
from gangflow.xce.core.evolve import apply_all
from gangflow.xce.core.inputs import ClaimReleased, Input, PutValue, Reply, StartTerm, Tick
from gangflow.xce.core.state import Answer, State
from gangflow.xce.journal.record import Batch
from gangflow.xce.journal.sqlite import SqliteJournal
from gangflow.xce.machine import Decision
from tests.unit.xce.controller.fakes import ManualClock, until


class Scripted:
    """A machine of a few lines: every named input is remembered by an event; some names make it fail or decide nothing."""

    deadline: int | None = None

    def __init__(self, state: State) -> None:
        self.state = state

    def handle(self, inputs: Sequence[Input], now_ms: int) -> Decision:
        events: list[Event] = []
        replies: list[Reply | None] = []
        for each in inputs:
            reply = None
            match each:
                case StartTerm(cluster_id):
                    events.append(TermStarted(cluster_id, self.state.term + 1))
                case PutValue(name=name):
                    if "poison" in name:
                        raise RuntimeError(f"no way with {name}")
                    reply = Reply(fields=(("name", name),))
                    if "nothing" not in name:
                        events.append(CommandAnswered(name, Answer("", now_ms, 200, "")))
                case ClaimReleased(claim):
                    if "poison" in claim:
                        raise RuntimeError(f"no way with {claim}")
                    events.append(CommandAnswered(claim, Answer("", now_ms, 200, "")))
                case Tick() if self.deadline == now_ms:
                    events.append(TermStarted(self.state.cluster_id, self.state.term, ("passed",)))
            replies.append(reply)
        self.state = apply_all(self.state, events, now_ms)
        return Decision(self.state, tuple(events), (), tuple(replies), now_ms)

    def next_deadline(self) -> int | None:
        return self.deadline if self.state.levels != ("passed",) else None


class FaultyJournal(SqliteJournal):
    """A real journal whose appends can be made to fail, or to wait."""

    fault: JournalError | None = None
    gate: threading.Event | None = None
    faults: Callable[[], JournalError | None] = staticmethod(lambda: None)
    attempts = 0

    def append(self, batch: Batch) -> Batch:
        self.attempts += 1
        if self.gate is not None:
            assert self.gate.wait(20)
        if fault := self.fault or self.faults():
            raise fault
        return super().append(batch)


class Bench:
    def __init__(self, path: Path) -> None:
        self.journal = FaultyJournal(path)
        self.clock = ManualClock()
        self.adopted: list[Batch] = []
        self.writer = Writer(
            self.journal, State(), self.clock, lambda inputs, decision, batch: self.adopted.append(batch), Scripted
        )

    async def close(self) -> None:
        if self.journal.gate is not None:
            self.journal.gate.set()
        await self.writer.close()
        self.journal.close()

    def names(self) -> list[list[str]]:
        """The keys that each batch after the first made durable."""
        return [
            [event.key for event in batch.events if isinstance(event, CommandAnswered)]
            for batch in self.journal.batches(after=1)
        ]


def put(name: str) -> PutValue:
    return PutValue("g1", name, "1")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path / "journal.db")
    await made.writer.begin(StartTerm(made.journal.cluster_id))
    yield made
    await made.close()


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "FULL_RETRY_S", 0.005)
    monkeypatch.setattr(writer_module, "TICK_RETRY_S", 0.005)


async def test_a_reply_is_given_when_it_is_durable(bench: Bench) -> None:
    bench.journal.gate = threading.Event()
    asked = asyncio.create_task(bench.writer.command(put("a")))
    await until(lambda: bench.journal.attempts == 2)
    assert not asked.done()
    assert "a" not in bench.writer.state.answers, "not believed before it is durable"
    bench.journal.gate.set()
    assert dict((await asked).fields) == {"name": "a"}
    assert "a" in bench.writer.state.answers
    assert bench.journal.seq == 2


async def test_what_waits_becomes_one_batch(bench: Bench) -> None:
    """Group commit: one transaction for all that came while the last one was written."""
    bench.journal.gate = threading.Event()
    asked = [asyncio.create_task(bench.writer.command(put("first")))]
    await until(lambda: bench.journal.attempts == 2)
    asked += [asyncio.create_task(bench.writer.command(put(f"k{n}"))) for n in range(20)]
    asked.append(asyncio.create_task(bench.writer.report([ClaimReleased("c1"), ClaimReleased("c2")])))
    await asyncio.sleep(0)
    bench.journal.gate.set()
    replies = await asyncio.gather(*asked)
    assert [dict(reply.fields)["name"] for reply in replies[:-1]] == ["first", *(f"k{n}" for n in range(20))]
    assert bench.names() == [["first"], [*(f"k{n}" for n in range(20)), "c1", "c2"]]


async def test_a_turn_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "TURN_LIMIT", 4)
    await asyncio.gather(*(bench.writer.command(put(f"k{n}")) for n in range(10)))
    assert [len(batch) for batch in bench.names()] == [4, 4, 2]


async def test_what_decides_nothing_is_answered_and_not_journalled(bench: Bench) -> None:
    reply = await bench.writer.command(put("nothing"))
    assert (reply.ok, bench.journal.seq) == (True, 1)


async def test_a_caller_that_went_away_does_not_undo_what_it_asked_for(bench: Bench) -> None:
    bench.journal.gate = threading.Event()
    asked = asyncio.create_task(bench.writer.command(put("a")))
    await until(lambda: bench.journal.attempts == 2)
    asked.cancel()
    bench.journal.gate.set()
    await bench.writer.command(put("b"))
    assert set(bench.writer.state.answers) == {"a", "b"}


async def test_a_full_disk_refuses_commands_and_keeps_reports(bench: Bench, quick_retries: None) -> None:
    bench.journal.fault = JournalFull("disk full")
    before = bench.writer.state
    report = asyncio.create_task(bench.writer.report([ClaimReleased("c1")]))
    with pytest.raises(JournalFull):
        await bench.writer.command(put("a"))
    assert bench.writer.state is before, "what was not durable was never true"
    assert isinstance(bench.writer.trouble, JournalFull)
    tries = bench.journal.attempts
    await until(lambda: bench.journal.attempts > tries + 2)
    assert not report.done(), "tried again and again, never dropped"
    with pytest.raises(JournalFull):
        await bench.writer.command(put("b"))
    bench.journal.fault = None
    await report
    assert bench.writer.trouble is None
    assert (await bench.writer.command(put("c"))).ok
    assert set(bench.writer.state.answers) == {"c1", "c"}, "refused commands left nothing behind"
    assert bench.names() == [["c1"], ["c"]]


async def test_a_foreign_lock_passes_like_a_full_disk(bench: Bench, quick_retries: None) -> None:
    bench.journal.fault = JournalLocked("somebody looks at it")
    with pytest.raises(JournalLocked):
        await bench.writer.command(put("a"))
    bench.journal.fault = None
    assert (await bench.writer.command(put("b"))).ok
    assert bench.writer.trouble is None


@pytest.mark.parametrize("fault", [JournalError("fsync failed"), JournalCorrupt("malformed", seq=7)])
async def test_a_journal_that_cannot_be_relied_on_ends_the_controller(bench: Bench, fault: JournalError) -> None:
    bench.journal.fault = fault
    with pytest.raises(type(fault)):
        await bench.writer.command(put("a"))
    assert bench.writer.finished is not None
    await asyncio.wait_for(bench.writer.finished, 20)
    assert bench.writer.trouble is fault
    bench.journal.fault = None
    with pytest.raises(type(fault)):
        await bench.writer.command(put("b"))
    with pytest.raises(type(fault)):
        await bench.writer.report([ClaimReleased("c1")])


async def test_a_command_that_the_machine_cannot_take_fails_alone(bench: Bench) -> None:
    names = ["a", "poison", "b"]
    outcome = await asyncio.gather(*(bench.writer.command(put(name)) for name in names), return_exceptions=True)
    assert [type(each) for each in outcome] == [Reply, RuntimeError, Reply]
    assert set(bench.writer.state.answers) == {"a", "b"}


async def test_a_report_that_the_machine_cannot_take_is_passed_over_alone(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.writer.report([ClaimReleased("c1"), ClaimReleased("poison"), ClaimReleased("c2")])
    assert list(bench.writer.state.answers) == ["c1", "c2"]
    assert bench.writer.rejected == 1
    assert "no way with poison" in caplog.text


async def test_reports_taken_one_by_one_keep_their_order_over_a_full_disk(bench: Bench, quick_retries: None) -> None:
    """A bad report makes its batch fall apart, and then the disk is full: nothing is acknowledged before it is durable."""
    appended = 0

    def fault() -> JournalError | None:
        nonlocal appended
        appended += 1
        return JournalFull("disk full") if 2 <= appended <= 4 else None

    bench.journal.faults = fault
    names = ["c1", "c2", "poison", "c3"]
    report = asyncio.create_task(bench.writer.report([ClaimReleased(name) for name in names]))
    await until(lambda: appended == 2)
    await asyncio.sleep(0)
    assert not report.done()
    await report
    assert list(bench.writer.state.answers) == ["c1", "c2", "c3"]
    assert bench.writer.rejected == 1


async def test_a_text_that_cannot_be_stored_fails_alone(bench: Bench) -> None:
    outcome = await asyncio.gather(
        bench.writer.command(put("\udc80")), bench.writer.command(put("fine")), return_exceptions=True
    )
    assert isinstance(outcome[0], ValueError)
    assert isinstance(outcome[1], Reply)
    assert bench.names() == [["fine"]]


async def test_a_tick_comes_when_a_deadline_has_passed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    due = bench.clock.now_ms() + 60_000
    monkeypatch.setattr(Scripted, "deadline", due)
    bench.writer.wake()
    await asyncio.sleep(0.01)
    assert bench.journal.seq == 1, "not before its time"
    bench.clock.value = due
    bench.writer.wake()
    await until(lambda: bench.journal.seq == 2)
    last = next(bench.journal.batches(after=1))
    assert (last.inputs, last.now_ms) == ((Tick(),), due)


async def test_a_deadline_that_nothing_comes_of_does_not_spin(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[int] = []
    handle = Scripted.handle

    def counted(self: Scripted, inputs: Sequence[Input], now_ms: int) -> Decision:
        ticks.extend(now_ms for each in inputs if isinstance(each, Tick))
        return handle(self, inputs, now_ms)

    monkeypatch.setattr(Scripted, "handle", counted)
    monkeypatch.setattr(Scripted, "deadline", 1)
    bench.writer.wake()
    await until(lambda: ticks)
    for _ in range(50):
        bench.writer.wake()
        await asyncio.sleep(0)
    assert len(ticks) == 1
    assert bench.journal.seq == 1, "a tick that changes nothing is not journalled"


async def test_the_clock_of_the_state_never_runs_back(bench: Bench) -> None:
    await bench.writer.command(put("a"))
    bench.clock.value -= 500_000
    await bench.writer.command(put("b"))
    times = [batch.now_ms for batch in bench.journal.batches()]
    assert times == sorted(times)


async def test_too_much_that_waits_is_refused_and_reports_wait_outside(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "QUEUE_LIMIT", 3)
    bench.journal.gate = threading.Event()
    asked = [asyncio.create_task(bench.writer.command(put("first")))]
    await until(lambda: bench.journal.attempts == 2)
    asked += [asyncio.create_task(bench.writer.command(put(f"k{n}"))) for n in range(3)]
    await asyncio.sleep(0)
    report = asyncio.create_task(bench.writer.report([ClaimReleased("c1")]))
    with pytest.raises(XceError) as caught:
        await bench.writer.command(put("one too many"))
    assert (caught.value.status, caught.value.problem) == (503, "busy")
    bench.journal.gate.set()
    await asyncio.gather(*asked, report)
    assert set(bench.writer.state.answers) == {"first", "k0", "k1", "k2", "c1"}


async def test_halting_refuses_what_waits_and_what_comes(bench: Bench) -> None:
    bench.journal.gate = threading.Event()
    first = asyncio.create_task(bench.writer.command(put("first")))
    await until(lambda: bench.journal.attempts == 2)
    waiting = asyncio.create_task(bench.writer.command(put("waiting")))
    await asyncio.sleep(0)
    bench.writer.halt(JournalRegressed("an agent has seen more"))
    bench.journal.gate.set()
    with pytest.raises(JournalRegressed):
        await waiting
    with pytest.raises(JournalRegressed):
        await bench.writer.command(put("late"))
    assert (await first).ok, "what was being written is durable, and said so"


async def test_closing_finishes_the_batch_under_way(bench: Bench) -> None:
    bench.journal.gate = threading.Event()
    first = asyncio.create_task(bench.writer.command(put("first")))
    await until(lambda: bench.journal.attempts == 2)
    behind = asyncio.create_task(bench.writer.command(put("behind")))
    await asyncio.sleep(0)
    closing = asyncio.create_task(bench.writer.close())
    await asyncio.sleep(0)
    bench.journal.gate.set()
    await closing
    assert (await first).ok
    with pytest.raises(Unreachable):
        await behind
    assert bench.names() == [["first"]]


async def test_a_start_that_cannot_be_made_durable_fails(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "journal.db")
    bench.journal.fault = JournalFull("disk full")
    with pytest.raises(JournalFull):
        await bench.writer.begin(StartTerm(bench.journal.cluster_id))
    await bench.close()
