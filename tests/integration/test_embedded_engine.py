"""The embedded engine as a real process: its verbs, and what a kill in the middle of a generation costs."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from gangflow.channel import ELIGIBLE, Eligible, Head, WeightsId
from gangflow.coordinators.engine import EngineFenced, EngineRefused, EngineSilent
from gangflow.coordinators.shell import Coordinator
from gangflow.engines import kind
from gangflow.integrations.embedded.adapter import EmbeddedEngine
from gangflow.member.digest import digest
from gangflow.member.follow import Follower
from gangflow.member.io import IoThread
from gangflow.member.ledger import Ledger
from gangflow.member.rollouts import Rollouts
from gangflow.member.samples import Published
from gangflow.member.weights import Weights
from gangflow.specs.coordinator import RLCoordinator
from tests.unit.member.fake_xce import AsyncFakeXce, FakeXce

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 30.0


class Process:
    """One incarnation of one rollout."""

    def __init__(self, folder: Path, index: int = 0, incarnation: int = 1) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.url = f"http://{self.address}"
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HOLD": str(folder),
            "XCE_URL": "http://127.0.0.1:1",
            "XCE_GROUP": "g1",
            "XCE_MEMBER": "rollout",
            "XCE_SLOT": str(index),
            "XCE_INCARNATION": str(incarnation),
            "XCE_PORT_HTTP": self.address.rpartition(":")[2],
            "XCE_ADDRS_ROLLOUT_HTTP": ",".join([self.address] * (index + 1)),
        }
        self.process = subprocess.Popen([sys.executable, "-m", "tests.integration.embedded_program"], env=environment, cwd=ROOT)

    @property
    def pid(self) -> int:
        return self.process.pid

    async def healthy(self) -> None:
        engine = EmbeddedEngine(self.url, 1, 0)
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    await engine.health(1)
                    break
                except EngineSilent:
                    assert self.process.poll() is None
                    await asyncio.sleep(0.05)
        await engine.close()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(DEADLINE_S)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(DEADLINE_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def begin(index: int = 0, incarnation: int = 1) -> Process:
        started.append(Process(tmp_path, index, incarnation))
        return started[-1]

    yield begin
    (tmp_path / "hold").unlink(missing_ok=True)
    for process in started:
        process.stop()


def policy(folder: Path, number: int) -> Head:
    path = folder / f"w{number}"
    path.write_text(str(number))
    return Head(WeightsId(1, number, digest(path)), str(path))


def spoiled(head: Head, fault: str) -> Head:
    """Weights that cannot be loaded."""
    path = Path(head.path)
    if fault == "wrong sha":
        return Head(WeightsId(1, head.weights.version, "0" * 64), head.path)
    if fault == "changed file":
        path.write_text("3")
    elif fault == "missing":
        path.unlink()
    else:
        path.write_text("not a number")
        return Head(WeightsId(1, head.weights.version, digest(path)), head.path)
    return head


async def admitting(url: str) -> bool:
    async with httpx.AsyncClient(trust_env=False) as http:
        return bool((await http.get(f"{url}/version")).json()["admitting"])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
async def engine(start: Callable[..., Process]) -> AsyncIterator[EmbeddedEngine]:
    process = start()
    await process.healthy()
    made = EmbeddedEngine(process.url, 1, 1)
    yield made
    await made.close()


async def test_it_serves_nothing_before_it_has_weights_and_was_resumed(engine: EmbeddedEngine, tmp_path: Path) -> None:
    """Scenario 45: alive and healthy, and it refuses until weights are there and admission is on."""
    await engine.health(5)
    assert await engine.version(5) is None
    with pytest.raises(EngineRefused, match="no weights"):
        await engine.resume(5)
    with pytest.raises(EngineRefused, match="no weights"):
        await engine.generate(["a"], {}, 5)
    head = policy(tmp_path, 7)
    assert await engine.load(head, 5, 1) == head.weights
    with pytest.raises(EngineRefused, match="paused"):
        await engine.generate(["a"], {}, 5)
    await engine.resume(5)
    ((prompt, used, _),) = await engine.generate(["a"], {}, 5)
    assert (prompt, used) == ("a", 7)


@pytest.mark.parametrize("fault", ["wrong sha", "changed file", "missing", "loader fails"])
async def test_a_load_that_fails_leaves_the_old_policy_and_says_so(engine: EmbeddedEngine, tmp_path: Path, fault: str) -> None:
    """Never half-updated with /health 200: the old weights, whole, or the new ones."""
    old, new = policy(tmp_path, 1), policy(tmp_path, 2)
    await engine.load(old, 5, 1)
    await engine.resume(5)
    new = spoiled(new, fault)
    with pytest.raises(EngineRefused) as refused:
        await engine.load(new, 5, 1)
    assert refused.value.weights == old.weights
    assert await engine.version(5) == old.weights
    await engine.health(5)
    ((_, used, _),) = await engine.generate(["a"], {}, 5)
    assert used == 1


async def test_pause_lets_running_work_end_and_admits_nothing_more(engine: EmbeddedEngine, tmp_path: Path) -> None:
    """Scenario 46: pausing for a sync is not killing what runs."""
    await engine.load(policy(tmp_path, 1), 5, 1)
    await engine.resume(5)
    (tmp_path / "hold").touch()
    running = asyncio.create_task(engine.generate(["a"], {}, DEADLINE_S))
    await until(lambda: any(tmp_path.glob("began-*")))
    pausing = asyncio.create_task(engine.pause("wait", DEADLINE_S))
    while await admitting(engine.url):
        await asyncio.sleep(0.01)
    with pytest.raises(EngineRefused, match="paused"):
        await engine.generate(["b"], {}, 5)
    assert not pausing.done()
    (tmp_path / "hold").unlink()
    ((_, used, _),) = await running
    await pausing
    assert used == 1
    await engine.load(policy(tmp_path, 2), 5, 1)
    await engine.resume(5)
    ((_, used, _),) = await engine.generate(["a"], {}, 5)
    assert used == 2


async def test_abort_ends_running_work_unanswered(engine: EmbeddedEngine, tmp_path: Path) -> None:
    await engine.load(policy(tmp_path, 1), 5, 1)
    await engine.resume(5)
    (tmp_path / "hold").touch()
    running = asyncio.create_task(engine.generate(["a"], {}, DEADLINE_S))
    await until(lambda: any(tmp_path.glob("began-*")))
    await engine.abort(5)
    with pytest.raises(EngineRefused, match="aborted"):
        await running
    await engine.pause("wait", 5)
    await engine.release(5)
    assert await engine.version(5) is None


async def test_a_pause_that_takes_too_long_is_said_within_its_deadline(engine: EmbeddedEngine, tmp_path: Path) -> None:
    await engine.load(policy(tmp_path, 1), 5, 1)
    await engine.resume(5)
    (tmp_path / "hold").touch()
    running = asyncio.create_task(engine.generate(["a"], {}, DEADLINE_S))
    await until(lambda: any(tmp_path.glob("began-*")))
    with pytest.raises(EngineSilent, match="no answer within"):
        await engine.pause("wait", 0.2)
    (tmp_path / "hold").unlink()
    await running


async def test_an_older_term_and_another_incarnation_command_nothing(engine: EmbeddedEngine, tmp_path: Path) -> None:
    """Scenario 80: the engine itself refuses the older of two coordinators."""
    newer, stranger = EmbeddedEngine(engine.url, 1, 2), EmbeddedEngine(engine.url, 2, 3)
    await newer.load(policy(tmp_path, 1), 5, 1)
    with pytest.raises(EngineFenced, match="term 1 is over"):
        await engine.resume(5)
    with pytest.raises(EngineRefused, match="this is incarnation 1, not 2"):
        await stranger.load(policy(tmp_path, 2), 5, 1)
    with pytest.raises(EngineRefused, match="this is incarnation 1, not 2"):
        await stranger.generate(["a"], {}, 5)
    await newer.resume(5)
    for other in (newer, stranger):
        await other.close()


class Group:
    """Two real rollouts, a real coordinator in a thread, the SDK's rollouts client, and an XCE in memory."""

    def __init__(self, start: Callable[..., Process], folder: Path) -> None:
        config = RLCoordinator(quorum_timeout="20s")  # type: ignore[arg-type]
        self.folder = folder
        self.start = start
        self.xce = FakeXce({"actor": 1, "rollout": 2}, coordinator=config.model_dump(mode="json"))
        self.xce.ready("actor", 0)
        self.processes = [start(0), start(1)]
        self.follower = Follower(self.xce, "g1")
        published = Published(1)
        self.weights = Weights(self.xce, "g1", 1, published, self.follower)
        self.rollouts = Rollouts(self.follower, published, Ledger("g1"), IoThread())
        self.coordinator = Coordinator(AsyncFakeXce(self.xce), "g1", config, kind("embedded").adapter)
        self.pool = ThreadPoolExecutor(2)

    async def up(self, index: int) -> None:
        process = self.processes[index]
        await process.healthy()
        self.xce.ready("rollout", index, process.address)

    async def revive(self, index: int) -> None:
        self.processes[index] = self.start(index, self.xce.slots["rollout", index].incarnation + 1)
        await self.up(index)

    def eligible(self) -> list[tuple[int, int]]:
        value = self.xce.values.get(ELIGIBLE)
        return [serving.key for serving in Eligible.parse(value.value or "").rollouts] if value else []

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.pool, lambda: function(*args, **kwargs))


@pytest.mark.parametrize("xce_notices", ["first", "later"])
async def test_a_kill_in_the_middle_of_a_generation_loses_and_doubles_nothing(
    start: Callable[..., Process], tmp_path: Path, xce_notices: str
) -> None:
    """Scenario 53: SIGKILL of one of two rollouts that generate: re-dispatched, 0 lost, 0 twice; then re-admitted."""
    group = Group(start, tmp_path)
    driving = asyncio.create_task(group.coordinator.run())
    try:
        for index in (0, 1):
            await group.up(index)
        await group.call(group.weights.publish, 0, tmp_path / "p0", b"40")
        await until(lambda: group.eligible() == [(0, 1), (1, 1)])
        (tmp_path / "hold").touch()
        prompts = [f"q{number}" for number in range(8)]
        asking = asyncio.create_task(group.call(group.rollouts.generate, prompts, 4, step=0))
        await until(lambda: len(list(tmp_path.glob("began-*"))) == 2)
        victim = group.processes[0]
        victim.kill()
        if xce_notices == "first":
            group.xce.slot("rollout", 0, "EXIT")
            await until(lambda: group.eligible() == [(1, 1)])
        (tmp_path / "hold").unlink()
        answers = await asking
        counters = group.rollouts.counters
        assert [len(answer.samples) for answer in answers] == [4] * 8
        assert {str(sample.id) for answer in answers for sample in answer.samples} == {
            f"g1/0/{prompt}/{index}" for prompt in range(8) for index in range(4)
        }
        assert {sample.output[2] for answer in answers for sample in answer.samples} == {group.processes[1].pid}
        assert (counters.committed, counters.lost, counters.duplicates) == (32, 0, 0)
        assert counters.redispatched >= 16
        if xce_notices == "later":
            group.xce.slot("rollout", 0, "EXIT")
        await group.revive(0)
        await until(lambda: group.eligible() == [(0, 2), (1, 1)])
        head = await group.call(group.weights.publish, 1, tmp_path / "p1", b"41")
        answers = await group.call(group.rollouts.generate, prompts, 4, step=1)
        assert {sample.output[1] for answer in answers for sample in answer.samples} == {41}
        assert {sample.weights for answer in answers for sample in answer.samples} == {head}
    finally:
        driving.cancel()
        await asyncio.gather(driving, return_exceptions=True)
        group.follower.close()
        group.rollouts.close()
        group.pool.shutdown(wait=False)


async def test_a_bad_prompt_is_skipped_by_itself(start: Callable[..., Process], tmp_path: Path) -> None:
    """Scenario 51: an exception in the program is a failure of that prompt, told as one, and its neighbours have samples."""
    group = Group(start, tmp_path)
    driving = asyncio.create_task(group.coordinator.run())
    try:
        await group.up(1)
        await group.call(group.weights.publish, 0, tmp_path / "p0", b"1")
        prompts = [*[f"q{number}" for number in range(38)], "crash", "long"]
        answers = await group.call(group.rollouts.generate, prompts, 2, step=0)
        assert [answer.prompt for answer in answers if answer.skipped] == ["crash", "long"]
        assert answers[38].skipped == "HTTP 500: ZeroDivisionError: a bad prompt"
        assert answers[39].skipped == "too long"
        assert group.rollouts.counters.committed == 76
    finally:
        driving.cancel()
        await asyncio.gather(driving, return_exceptions=True)
        group.follower.close()
        group.rollouts.close()
        group.pool.shutdown(wait=False)


def test_threads_left_behind_are_daemons() -> None:
    """A hanging request never keeps a member's process alive."""
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("gangflow") and not thread.daemon] == []
