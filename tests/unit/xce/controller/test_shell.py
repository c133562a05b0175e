"""The controller as a whole, on the real machine: life, death and return, refusals, what it shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gangflow.errors import JournalFull, JournalRegressed, NotFound, Superseded
from gangflow.xce.controller import claims, delivery, shell
from gangflow.xce.core.due import effects_due
from gangflow.xce.core.effects import Effect, Prepare, Provision, Release, Start, Stop, TaskEffect
from gangflow.xce.core.events import HostChanged
from gangflow.xce.core.inputs import PutValue, Request, TaskExited
from gangflow.xce.core.plan import BarrierPlan, Cause, ClaimPlan
from gangflow.xce.core.state import ClaimState, GroupState, HostState, State, TaskKey
from gangflow.xce.journal.recovery import recover
from tests.unit.xce.controller.fakes import until
from tests.unit.xce.controller.worlds import PLAN, World, member, world

RUNNING, CANCELLED = GroupState.RUNNING, GroupState.CANCELLED


@pytest.fixture(autouse=True)
def _quick_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "SWEEP_S", 0.005)
    monkeypatch.setattr(delivery, "RESEND_S", (0.005, 0.01))


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as made:
        await made.start()
        yield made


async def test_a_group_starts_runs_and_ends(here: World) -> None:
    await here.running()
    assert {(key.member, key.index, key.task) for key in here.hosts.starts} == {
        ("actor", 0, 0),
        ("actor", 0, 1),
        ("rollout", 0, 0),
        ("rollout", 1, 0),
    }
    assert [request.name for request in here.provider.provisioned] == ["ckpt"]
    await here.cancel()
    await until(lambda: here.is_in(CANCELLED) and here.provider.released)
    assert here.hosts.running == set()
    await until(lambda: all(claim.state is ClaimState.GONE for claim in here.state.claims.values()))
    assert effects_due(here.state) == ()


async def test_a_task_is_told_where_xce_is_and_who_it_is(here: World) -> None:
    await here.running()
    prepared = [effect for effect in here.hosts.delivered if isinstance(effect, Prepare)]
    for effect in prepared:
        environment = dict(effect.launch.environment)
        assert environment["XCE_URL"] == "http://xce"
        assert environment["XCE_TOKEN"] == str(effect.task)
        assert environment["TRACEPARENT"] == f"00-{effect.task}"
        assert environment["XCE_MEMBER"] == effect.task.member
    journal = here.path.read_bytes() + here.path.with_name("journal.db-wal").read_bytes()
    assert b"XCE_TOKEN" not in journal, "tokens are never written down"


async def test_every_start_is_a_new_term(here: World) -> None:
    terms, name = [here.controller.term], here.controller.cluster_id
    for _ in range(3):
        await here.kill()
        await here.start()
        terms.append(here.controller.term)
    assert terms == [1, 2, 3, 4]
    assert here.controller.position == (name, 4, here.journal.seq)


async def test_an_obligation_is_durable_before_it_is_attempted(here: World) -> None:
    """Scenario 14: whoever takes over at that moment finds it in the journal."""
    missing: list[TaskEffect] = []
    seen: set[tuple[type, TaskKey]] = set()
    original = here.hosts.deliver

    async def checked(node: str, effects: Sequence[TaskEffect]) -> None:
        due = effects_due(recover(here.journal).state)
        owed = {(type(effect), effect.task) for effect in due if not isinstance(effect, Provision | Release)}
        first = [effect for effect in effects if (type(effect), effect.task) not in seen]
        seen.update((type(effect), effect.task) for effect in first)
        missing.extend(effect for effect in first if (type(effect), effect.task) not in owed)
        await original(node, effects)

    here.hosts.deliver = checked  # type: ignore[method-assign]
    await here.running()
    await here.cancel()
    await until(lambda: here.is_in(CANCELLED))
    assert {kind for kind, _ in seen} == {Prepare, Start, Stop}
    assert missing == []


async def test_lost_and_refused_deliveries_cost_time_and_nothing_else(here: World) -> None:
    """Scenario 13: five failures do not drop an obligation, whichever it is."""
    here.hosts.lose = 6
    await here.submit()
    await until(lambda: here.is_in(RUNNING))
    here.hosts.unreachable = True
    await here.cancel()
    attempts = here.hosts.attempts
    await until(lambda: here.hosts.attempts > attempts + 5)
    assert here.is_in(GroupState.STOPPING), "capacity is not free while nobody confirmed"
    here.hosts.unreachable = False
    await until(lambda: here.is_in(CANCELLED))
    assert here.hosts.running == set()


async def test_a_provider_that_hangs_costs_its_group_the_try_and_nobody_the_obligation(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 13: it neither makes the claim nor lets go of it, nor notices that it is cancelled: the group fails in bounded
    time with that reason, holds nothing, and the release is asked for until it is confirmed."""
    monkeypatch.setattr(claims, "CANCEL_S", 0.01)
    monkeypatch.setattr(claims, "RELEASE_S", 0.01)
    monkeypatch.setattr(claims, "RESEND_S", (0.005,))
    here.provider.hang = here.provider.stubborn = True
    here.provider.hang_releases = 6
    barrier = BarrierPlan(timeout_ms=50, max_attempts=1)
    await here.submit(replace(PLAN, barrier=barrier, claims=(ClaimPlan("ckpt", "fake", timeout_ms=20),)))
    await until(lambda: here.provider.provisioned)
    here.clock.value += 50
    here.controller.wake()
    await until(lambda: here.is_in(GroupState.FAILED))
    assert here.group().cause == "barrier_timeout"
    assert "claim ckpt" in here.group().message
    assert not any(slot.tasks for slot in here.group().slots.values())
    assert here.hosts.starts == []
    await until(lambda: here.provider.released)
    assert here.provider.release_tries == 7
    await until(lambda: all(claim.state is ClaimState.GONE for claim in here.state.claims.values()))
    here.provider.left_behind.set()


async def test_a_sweep_that_fails_is_not_the_last_one(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    due, failures = shell.effects_due, 0

    def broken(state: State) -> tuple[Effect, ...]:
        nonlocal failures
        failures += 1
        if failures <= 2:
            raise RuntimeError("a fault")
        return due(state)

    monkeypatch.setattr(shell, "effects_due", broken)
    here.hosts.lose = 1
    await here.submit()
    await until(lambda: here.is_in(RUNNING))
    assert failures > 2


async def test_a_release_is_owed_over_a_crash_of_the_controller(here: World) -> None:
    """Scenario 14: the controller dies between the end of the group and the release of what it held."""
    await here.running()
    here.provider.failures = 10**6
    await here.cancel()
    await until(lambda: here.is_in(CANCELLED))
    await until(lambda: here.provider.release_tries > 0)
    owed = [effect for effect in effects_due(here.state) if isinstance(effect, Release)]
    assert [effect.name for effect in owed] == ["ckpt"]
    await here.kill()
    assert here.provider.released == []
    here.provider.failures = 0
    await here.start()
    await until(lambda: here.provider.released)
    assert here.provider.released == owed, "the same obligation, by the journal alone"
    await until(lambda: all(claim.state is ClaimState.GONE for claim in here.state.claims.values()))


async def test_a_restart_touches_no_member(here: World) -> None:
    """Scenarios 77 and 84: a controller that comes back starts nothing again and stops nothing, however often."""
    await here.running()
    starts, before = list(here.hosts.starts), here.group()
    for n in range(5):
        await here.kill()
        await here.start()
        await here.submit(replace(PLAN, name=f"waits-{n}", members=(member("a", tasks=9),)))
        assert here.group() == before
    assert here.hosts.starts == starts
    assert not any(isinstance(effect, Stop) for effect in here.hosts.delivered)


async def test_an_exit_during_the_absence_is_taken_up(here: World) -> None:
    await here.running()
    key = next(key for key in here.hosts.starts if key.member == "rollout")
    await here.kill()
    here.hosts.running.discard(key)
    await here.start(register=False)
    await here.controller.report([TaskExited(key, here.hosts.places[key], Cause.APP_EXIT, 3)])
    await here.register()
    assert here.group().slots[key.member, key.index].exit is not None
    here.clock.value += 10_000
    here.controller.wake()
    await until(lambda: here.is_in(RUNNING) and here.group().slots[key.member, key.index].incarnation == key.incarnation + 1)


async def test_a_full_disk_refuses_and_passes(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await here.running()
    state, seq = here.state, here.controller.seq
    original = here.journal.append

    def full(batch: object) -> object:
        raise JournalFull("disk full")

    monkeypatch.setattr(here.journal, "append", full)
    with pytest.raises(JournalFull):
        await here.cancel()
    assert (here.state, here.controller.seq) == (state, seq)
    assert isinstance(here.controller.trouble, JournalFull)
    monkeypatch.setattr(here.journal, "append", original)
    await here.cancel()
    assert here.controller.trouble is None
    await until(lambda: here.is_in(CANCELLED))


async def test_an_agent_that_knows_more_stops_the_controller_and_no_member(here: World) -> None:
    await here.running()
    running = set(here.hosts.running)
    here.hosts.objection = "the journal ends at 7, but this agent has seen 90"
    await here.cancel()
    await until(lambda: here.controller.trouble)
    assert isinstance(here.controller.trouble, JournalRegressed)
    with pytest.raises(JournalRegressed, match="seen 90"):
        await here.submit(replace(PLAN, name="another"))
    attempts = here.hosts.attempts
    here.controller.wake()
    for _ in range(20):
        await asyncio.sleep(0.005)
    assert here.hosts.attempts <= attempts + 1, "it gives no orders any more"
    assert here.hosts.running == running
    assert isinstance(await asyncio.wait_for(here.controller.failed(), 20), JournalRegressed)


async def test_a_silent_node_is_lost_then_fenced_and_its_slots_move(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.options = replace(here.options, lease_ms=3_000, fence_ms=2_000, kill_grace_ms=1_000, grace_ms=5_000)
        await here.start()
        here.clock.value += 5_000
        await here.submit(replace(PLAN, members=(member("a", replicas=2, cpu=2_000), member("b", cpu=100)), claims=()))
        await until(lambda: here.is_in(RUNNING))
        silent = here.hosts.places[next(iter(here.hosts.running))]
        others = {"h0": "n1", "h1": "n0"}[silent]

        def host_state() -> HostState:
            return here.state.hosts[silent].state

        def pass_ms(duration_ms: int) -> None:
            """Time in which only the other node is heard of."""
            here.clock.value += duration_ms
            here.controller.renew(others, here.hosts.boot)
            here.controller.wake()

        assert here.controller.renew(others, here.hosts.boot)
        pass_ms(1_500)
        pass_ms(1_500)
        await until(lambda: host_state() is HostState.LOST)
        lost_at = here.clock.value
        await until(lambda: pass_ms(100) or host_state() is HostState.FENCED)
        fenced = next(
            stamped.at_ms - lost_at
            for stamped in here.journal.events(0, 10_000)
            if stamped.event == HostChanged(silent, HostState.FENCED)
        )
        assert fenced >= 6_000, "not before lease + fence + kill grace"
        assert not here.controller.renew(f"n{silent[1]}", here.hosts.boot), "it has to register again"
        assert here.state.hosts[{"h0": "h1", "h1": "h0"}[silent]].state is HostState.UP


async def test_watching_goes_on_over_a_restart_without_a_gap(here: World) -> None:
    await here.running()
    seen = [stamped.seq async for stamped in _first(here.controller.events(0), here.controller.seq)]
    await here.kill()
    await here.start()
    await here.cancel()
    await until(lambda: here.is_in(CANCELLED))
    seen += [stamped.seq async for stamped in _first(here.controller.events(seen[-1]), here.controller.seq - seen[-1])]
    assert seen == list(range(1, len(seen) + 1))


async def test_images_shorten_recovery_and_change_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.options = replace(here.options, image_every=4)
        await here.start()
        await here.running()
        await until(lambda: here.journal.image_seqs() and not here.controller._saving)
        before = here.state
        await here.kill()
        await here.start(register=False)
        recovered = here.controller.recovered
        assert recovered is not None
        assert recovered.image_seq > 0
        assert recovered.batches < here.journal.seq
        assert recovered.state == before


async def test_heartbeats_of_the_newest_incarnation_only(here: World) -> None:
    await here.running()
    key = next(key for key in here.hosts.starts if key.member == "rollout")
    await here.controller.beat(key, {"step": 3})
    assert here.controller.beats("g1")[key.member, key.index].body == {"step": 3}
    with pytest.raises(Superseded):
        await here.controller.beat(replace(key, incarnation=key.incarnation + 1), {})
    with pytest.raises(Superseded):
        await here.controller.beat(replace(key, epoch=key.epoch + 1), {})
    with pytest.raises(NotFound):
        await here.controller.beat(replace(key, index=77), {})
    with pytest.raises(NotFound):
        await here.controller.beat(replace(key, group="g77"), {})
    stream = here.controller.watch_beats("g1")
    assert (await anext(stream)).body == {"step": 3}


async def test_logs_are_read_where_they_are(here: World) -> None:
    await here.running()
    key = here.hosts.starts[0]
    node = here.state.hosts[here.hosts.places[key]].facts.node
    here.hosts.logs[node, key] = "hello world"
    assert (await here.controller.read_log(key, "stdout", 6, 100)).text == "world"
    former = replace(key, incarnation=99)
    here.hosts.logs["n1", former] = "from before"
    assert (await here.controller.read_log(former, "stdout", 0, 100)).text == "from before", "any node may have kept it"
    with pytest.raises(FileNotFoundError):
        await here.controller.read_log(replace(key, incarnation=98), "stdout", 0, 100)
    here.hosts.unreachable = True
    with pytest.raises(ConnectionRefusedError):
        await here.controller.read_log(key, "stdout", 0, 100)


async def test_a_signal_reaches_the_present_incarnation_only(here: World) -> None:
    await here.running()
    key = here.hosts.starts[0]
    await here.controller.signal(key, 9)
    node = here.state.hosts[here.hosts.places[key]].facts.node
    assert here.hosts.signals == [(node, key, 9)]
    with pytest.raises(ProcessLookupError):
        await here.controller.signal(replace(key, incarnation=77), 9)


async def test_a_repeated_command_gets_the_remembered_answer_over_a_restart(here: World) -> None:
    await here.running()
    put = PutValue("g1", "weights/head", "7", request=Request(key="k1", digest="d1"))
    first = await here.controller.command(put)
    await here.kill()
    await here.start()
    assert await here.controller.command(put) == first
    assert here.state.values["g1", "weights/head"].version == 1
    other = await here.controller.command(replace(put, request=Request(key="k1", digest="another body")))
    assert other.status == 422


@pytest.mark.parametrize("ends", [False, True], ids=["starting", "ending"])
async def test_a_crash_at_any_record_changes_no_member(tmp_path: Path, ends: bool) -> None:
    """Scenarios 77 and 84 (I8): kill the controller right after each of its records became durable, start it again, and the
    group gets where it was going, every task started once, nothing stopped that was not to be stopped."""
    crashes = 0
    for at in range(1, 200):
        folder = tmp_path / f"{ends}-{at}"
        folder.mkdir()
        async with world(folder) as here:
            crashed = await _crash_at(here, at, ends)
            assert list(here.state.groups) == ["g1"]
            started = sorted((key.member, key.index, key.task) for key in here.hosts.starts)
            assert started == [("actor", 0, 0), ("actor", 0, 1), ("rollout", 0, 0), ("rollout", 1, 0)]
            assert {key.incarnation for key in here.hosts.starts} == {1}
            assert ends or not any(isinstance(effect, Stop) for effect in here.hosts.delivered)
            assert here.hosts.running == (set() if ends else set(here.hosts.starts))
            assert recover(here.journal).state == here.state
        if not crashed:
            break
        crashes += 1
    assert crashes >= 2, "a fault test whose fault fired"


async def _crash_at(here: World, at: int, ends: bool) -> bool:
    """Start (or end) the group; the controller dies at its record `at` and comes back. False if there was no such record."""
    goal = CANCELLED if ends else RUNNING

    def arrived() -> bool:
        return here.is_in(goal) and effects_due(here.state) == ()

    await here.start(stop_at=0 if ends else at)
    if ends:
        await here.running()
        here.journal.appends, here.journal.stop_at = 0, at
    command = asyncio.create_task(here.cancel() if ends else here.submit())
    await until(lambda: here.journal.reached.is_set() or (command.done() and arrived()))
    if not here.journal.reached.is_set():
        await command
        return False
    command.cancel()
    await here.kill()
    await asyncio.gather(command, return_exceptions=True)
    await here.start()
    if "g1" not in here.state.groups:
        await here.submit()  # it was never acknowledged: whoever asked asks again
    elif ends and here.is_in(RUNNING):
        await here.cancel()
    await until(arrived)
    return True


async def _first(stream: AsyncIterator[object], count: int) -> AsyncIterator[object]:
    async with asyncio.timeout(20):
        for _ in range(count):
            yield await anext(stream)
