"""The coordinator's shell against an XCE in memory and engines in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gangflow.channel import ELIGIBLE, FAILURE, HEAD, Eligible, Head, Probe, WeightsId
from gangflow.coordinators import shell
from gangflow.coordinators.engine import EngineFenced, EngineRefused, EngineSilent, PauseMode
from gangflow.coordinators.shell import Coordinator
from gangflow.errors import Fenced, GangflowError, JournalFull, JournalLocked, SetupError, XceError
from gangflow.specs.coordinator import RLCoordinator
from gangflow.xce.rest.messages import VersionView
from tests.unit.member.fake_xce import AsyncFakeXce, FakeXce

DEADLINE_S = 10.0


class FakeEngine:
    """One engine process; `factory` hands out connections to it. `journal` is shared with the fake XCE's calls."""

    def __init__(self, journal: list[str], name: str) -> None:
        self.journal = journal
        self.name = name
        self.weights: WeightsId | None = None
        self.admitting = False
        self.alive = True
        self.refuse_load = ""
        self.term = 0
        self.mute = False
        self.load_waits: asyncio.Event | None = None
        self.scores: Any = None
        """What it says of a probe."""


class Connection:
    def __init__(self, engine: FakeEngine, term: int) -> None:
        self._engine = engine
        self._term = term

    async def _reach(self, verb: str) -> FakeEngine:
        engine = self._engine
        if not engine.alive:
            raise EngineSilent(f"{verb}: refused connection")
        if engine.mute:
            await asyncio.Event().wait()
        if self._term < engine.term:
            raise EngineFenced(f"term {self._term} is over")
        engine.term = self._term
        if verb != "health":
            engine.journal.append(f"{verb} {engine.name}")
        return engine

    async def health(self, timeout_s: float) -> None:
        await self._reach("health")

    async def generate(self, prompts: Sequence[Any], params: Mapping[str, Any], timeout_s: float) -> list[Any]:
        engine = await self._reach("generate")
        assert params == {"score": True}
        return [{"logprobs": engine.scores}] if prompts == [[5, 6, 7]] else []

    async def pause(self, mode: PauseMode, timeout_s: float) -> None:
        (await self._reach("pause")).admitting = False

    async def resume(self, timeout_s: float) -> None:
        (await self._reach("resume")).admitting = True

    async def abort(self, timeout_s: float) -> None:
        await self._reach("abort")

    async def load(self, head: Head, timeout_s: float, membership_version: int) -> WeightsId:
        engine = await self._reach("load")
        if engine.load_waits is not None:
            await engine.load_waits.wait()
        if engine.refuse_load:
            raise EngineRefused(engine.refuse_load, engine.weights)
        engine.weights = head.weights
        return head.weights

    async def version(self, timeout_s: float) -> WeightsId | None:
        return (await self._reach("version")).weights

    async def release(self, timeout_s: float) -> None:
        await self._reach("release")

    async def close(self) -> None:
        pass


class Room:
    """A group of an actor and two rollouts, with one coordinator or more."""

    def __init__(self, **config: Any) -> None:
        self.config = RLCoordinator(**config)
        self.xce = FakeXce({"actor": 1, "rollout": 2}, coordinator=self.config.model_dump(mode="json"))
        self.journal: list[str] = []
        self.engines: dict[str, FakeEngine] = {}
        self.xce.ready("actor", 0)
        for index in (0, 1):
            self.boot(index)

    def boot(self, index: int) -> FakeEngine:
        """The next incarnation of a rollout, at an address of its own."""
        incarnation = self.xce.slots["rollout", index].incarnation + 1
        address = f"10.0.0.{index}:{7000 + incarnation}"
        engine = FakeEngine(self.journal, f"{index}/{incarnation}")
        self.engines[f"http://{address}"] = engine
        self.xce.ready("rollout", index, address)
        return engine

    def engine(self, index: int) -> FakeEngine:
        return next(engine for engine in reversed(self.engines.values()) if engine.name.startswith(f"{index}/"))

    def kill(self, index: int) -> None:
        self.engine(index).alive = False
        self.xce.slot("rollout", index, "EXIT")

    def publish(self, version: int, actor: int = 1, probe: Probe | None = None) -> WeightsId:
        weights = WeightsId(actor, version, f"{actor}{version}".ljust(64, "0"))
        self.xce.write(HEAD, Head(weights, f"/w/{version}", probe).render())
        return weights

    def coordinator(self) -> tuple[Coordinator, AsyncFakeXce]:
        client = AsyncFakeXce(self.xce)
        client.calls = self.journal
        return Coordinator(client, "g1", self.config, self._connect), client

    def _connect(self, url: str, incarnation: int, term: int) -> Connection:
        return Connection(self.engines[url], term)

    @asynccontextmanager
    async def driven(self) -> AsyncIterator[asyncio.Task[str]]:
        task = asyncio.create_task(self.coordinator()[0].run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def eligible(self) -> Eligible:
        value = self.xce.values.get(ELIGIBLE)
        return Eligible.parse(value.value) if value is not None and value.value else Eligible()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; a TimeoutError when it does not come."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.01)

    async def serving(self, weights: WeightsId, *indices: int) -> None:
        await self.until(
            lambda: [(r.index, r.weights) for r in self.eligible().rollouts] == [(index, weights) for index in indices]
        )


async def test_publish_loads_every_rollout_then_admits_it() -> None:
    room = Room()
    async with room.driven():
        await room.serving(room.publish(0), 0, 1)
        assert all(engine.admitting for engine in room.engines.values())
        del room.journal[:]
        await room.serving(room.publish(1), 0, 1)
    first_write = room.journal.index(f"put {ELIGIBLE}")
    assert first_write < room.journal.index("pause 0/1") < room.journal.index("load 0/1") < room.journal.index("resume 0/1")
    assert room.journal[-1] == f"put {ELIGIBLE}"


async def test_an_admission_that_is_long_in_writing_holds_up_no_engine() -> None:
    """The first rollout that is back is written down while the second goes on getting its weights."""
    room = Room()
    coordinator, client = room.coordinator()
    real, begun, end = client.kv_put, asyncio.Event(), asyncio.Event()
    room.engine(1).load_waits = begun

    async def put(group: str, name: str, value: str, expect: int = -1) -> VersionView:
        if name == ELIGIBLE and len(Eligible.parse(value).rollouts) == 1:
            begun.set()
            await end.wait()
        return await real(group, name, value, expect)

    client.kv_put = put  # type: ignore[method-assign]
    task = asyncio.create_task(coordinator.run())
    try:
        head = room.publish(0)
        await room.until(lambda: all(engine.admitting for engine in room.engines.values()))
        assert room.eligible().rollouts == ()
        end.set()
        await room.serving(head, 0, 1)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_killed_rollout_is_deregistered_resynced_and_admitted_again() -> None:
    """Scenario 45: the next incarnation is admitted with the current weights, and not before."""
    room = Room()
    async with room.driven():
        head = room.publish(3)
        await room.serving(head, 0, 1)
        version = room.eligible().membership_version
        room.kill(1)
        await room.serving(head, 0)
        assert room.eligible().membership_version == version + 1
        engine = room.boot(1)
        await room.serving(head, 0, 1)
        assert engine.weights == head
        assert [r.incarnation for r in room.eligible().rollouts] == [1, 2]


async def test_a_load_that_is_refused_is_reported_stale() -> None:
    room = Room(sync_timeout="1s")
    room.engine(0).refuse_load = "sha256 differs"
    async with room.driven():
        await room.serving(room.publish(0), 1)
        await room.until(lambda: bool(room.xce.reports))
    assert room.xce.reports == [("rollout", 0, 1, "stale")]


@pytest.mark.parametrize("scores", [[-1.5, -2.4], [-1.5], None, "no"])
async def test_who_disagrees_with_the_trainer_gets_no_work(scores: Any) -> None:
    """Other log-probabilities, another number of them, or none at all: only the one that says the same is admitted."""
    room = Room(sync_timeout="600ms")
    room.engine(0).scores, room.engine(1).scores = scores, [-1.5, -2.50001]
    async with room.driven():
        await room.serving(room.publish(0, probe=Probe((5, 6, 7), (-1.5, -2.5))), 1)
        await room.until(lambda: bool(room.xce.reports))
        assert [serving.index for serving in room.eligible().rollouts] == [1]
    numbers = isinstance(scores, list)
    assert room.xce.reports == [("rollout", 0, 1, "diverged" if numbers else "stale")]


async def test_an_engine_that_lost_its_weights_is_found_and_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers its health checks, and nobody told it anything."""
    monkeypatch.setattr(shell, "HEALTH_PERIOD_S", 0.02)
    room = Room()
    async with room.driven():
        head = room.publish(0)
        await room.serving(head, 0, 1)
        room.engine(1).weights = None
        await room.until(lambda: room.engine(1).weights == head)
        await room.serving(head, 0, 1)
        await room.until(lambda: room.journal[-20:].count("version 1/1") > 1)
    assert room.xce.reports == []


async def test_an_engine_that_hangs_in_its_load_is_found_by_its_health_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has is asked between two verbs only, and that must not hold up the question whether it is well."""
    monkeypatch.setattr(shell, "HEALTH_PERIOD_S", 0.02)
    monkeypatch.setattr(shell, "VERSION_EVERY", 1)
    room = Room(sync_timeout="1h", unhealthy_timeout="50ms")
    asked: list[str] = []
    real = Connection.health

    async def health(self: Connection, timeout_s: float) -> None:
        asked.append(self._engine.name)
        await real(self, timeout_s)

    monkeypatch.setattr(Connection, "health", health)
    hung = room.engine(1)
    hung.load_waits = asyncio.Event()
    async with room.driven():
        await room.serving(room.publish(0), 0)
        await room.until(lambda: "load 1/1" in room.journal)
        del asked[:]
        await room.until(lambda: asked.count("1/1") >= 3)
        hung.alive = False
        await room.until(lambda: ("rollout", 1, 1, "unhealthy") in room.xce.reports)


async def test_no_quorum_fails_the_group_and_ends_the_coordinator() -> None:
    """Scenario 83: the group gets its terminal state and its reason; the coordinator ends with it."""
    room = Room(quorum_timeout="100ms")
    async with room.driven() as run:
        await room.serving(room.publish(0), 0, 1)
        room.kill(0)
        room.kill(1)
        async with asyncio.timeout(DEADLINE_S):
            assert await run == "FAILED"
    assert "fail no_quorum" in room.journal


async def test_what_the_actor_says_of_its_policy_is_the_groups_cause() -> None:
    room = Room()
    async with room.driven() as run:
        await room.serving(room.publish(0), 0, 1)
        room.xce.write(FAILURE, '{"class": "policy", "incarnation": 1, "message": "differs"}')
        async with asyncio.timeout(DEADLINE_S):
            assert await run == "FAILED"
    assert "fail policy_mismatch" in room.journal


async def test_a_killed_coordinators_successor_changes_nothing() -> None:
    """Scenario 84: killed again and again; no engine gets a verb that changes it, nobody is deregistered."""
    room = Room()
    async with room.driven():
        head = room.publish(0)
        await room.serving(head, 0, 1)
    del room.journal[:]
    before = room.eligible()
    for life in range(2, 12):
        async with room.driven():
            await room.until(lambda: room.eligible().term == life and room.journal.count("version 1/1") == life - 1)  # noqa: B023
            assert room.eligible().rollouts == before.rollouts
    assert set(room.journal) == {f"put {ELIGIBLE}", "version 0/1", "version 1/1"}
    assert room.eligible().membership_version == before.membership_version
    async with room.driven():
        await room.serving(room.publish(1), 0, 1)


async def test_a_newer_coordinator_ends_the_older_one() -> None:
    """Scenario 80: the older one learns it from the stream, from a write, or from an engine, and stops itself."""
    room = Room()
    async with room.driven() as old:
        await room.serving(room.publish(0), 0, 1)
        async with room.driven():
            with pytest.raises(Fenced):
                async with asyncio.timeout(DEADLINE_S):
                    await old
            await room.serving(room.publish(1), 0, 1)
        assert room.eligible().term == 2


async def test_an_xce_that_never_comes_back_ends_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that was deleted, a machine that was switched off: nobody asks for ever."""
    monkeypatch.setattr(shell, "AWAY_LIMIT_S", 0.0)
    room = Room()
    async with room.driven() as task:
        room.xce.away = True
        with pytest.raises(SetupError, match="away"):
            async with asyncio.timeout(DEADLINE_S):
                await task


async def test_an_engines_word_ends_the_older_coordinator_too() -> None:
    """Scenario 80: even when XCE has not told it yet."""
    room = Room()
    async with room.driven() as old:
        await room.serving(room.publish(0), 0, 1)
        room.engine(0).term = 99
        room.publish(1)
        with pytest.raises(Fenced):
            async with asyncio.timeout(DEADLINE_S):
                await old


async def test_an_xce_that_is_away_is_waited_for() -> None:
    """Scenario 80: nobody is judged meanwhile, and the write that was due comes when it is back."""
    room = Room()
    async with room.driven() as run:
        await room.serving(room.publish(0), 0, 1)
        room.xce.away = True
        weights = room.publish(1)
        before = room.xce.unanswered
        await room.until(lambda: room.xce.unanswered >= before + 3)
        assert [r.weights.version for r in room.eligible().rollouts] == [0, 0]
        room.xce.away = False
        await room.serving(weights, 0, 1)
        assert not run.done()
        assert not room.xce.reports


@pytest.mark.parametrize(
    "refusal", [XceError("8192 inputs wait", status=503, problem="busy"), JournalFull("no space"), JournalLocked("backed up")]
)
async def test_what_xce_can_not_take_now_stays_owed(refusal: GangflowError) -> None:
    """A full disk or a full queue loses no write and no verdict: both come when there is room again."""
    room = Room(unhealthy_timeout="200ms")
    async with room.driven() as run:
        await room.serving(room.publish(0), 0, 1)
        room.xce.taking_nothing = refusal
        weights = room.publish(1)
        await room.until(lambda: room.xce.unanswered >= 3)
        room.xce.taking_nothing = None
        await room.serving(weights, 0, 1)
        room.xce.taking_nothing = refusal
        room.engine(0).alive = False
        before = room.xce.unanswered
        await room.until(lambda: room.xce.unanswered >= before + 3)
        room.xce.taking_nothing = None
        await room.until(lambda: [(m, i, c) for m, i, _, c in room.xce.reports] == [("rollout", 0, "unhealthy")])
        assert not run.done()


async def test_a_mute_engine_is_out_by_its_health_checks_and_reported() -> None:
    room = Room(unhealthy_timeout="1s")
    async with room.driven():
        head = room.publish(0)
        await room.serving(head, 0, 1)
        room.engine(0).alive = False  # XCE has not noticed anything.
        await room.serving(head, 1)
        await room.until(lambda: bool(room.xce.reports))
    assert room.xce.reports == [("rollout", 0, 1, "unhealthy")]


async def test_an_actor_that_stops_beating_is_reported_hung() -> None:
    room = Room(hang_timeout="1s")
    room.xce.beat("g1", "actor", 0, {"step": 1})
    async with room.driven():
        room.xce.now_ms += 5_000  # By XCE's clock, the last beat is older than that.
        await room.until(lambda: bool(room.xce.reports))
    assert room.xce.reports == [("actor", 0, 1, "hung")]
