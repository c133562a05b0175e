"""Scenario 84: injected faults of controller and coordinator are counted, and so are the members that were restarted: none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from gangflow.channel import ELIGIBLE, HEAD, Eligible, Head, WeightsId
from gangflow.coordinators import shell as coordinator_shell
from gangflow.coordinators.shell import Coordinator
from gangflow.specs.coordinator import RLCoordinator
from gangflow.xce.controller import delivery, shell
from gangflow.xce.core.effects import Prepare, Start, Stop, Unprepare
from gangflow.xce.core.events import GroupChanged, SlotChanged, SlotExited, SlotPlaced
from gangflow.xce.core.state import GroupState
from gangflow.xce.journal.recovery import recover
from gangflow.xce.rest.aclient import AsyncClient
from gangflow.xce.rest.server import create_app, end_streams
from gangflow.xce.rest.streams import Streams
from tests.inprocess import InProcess
from tests.unit.coordinators.test_shell import Connection, FakeEngine
from tests.unit.xce.controller.fakes import until
from tests.unit.xce.controller.worlds import PLAN, World

FAULTS = 219
"""As many as were injected where workers were restarted by some of them."""


class Line(httpx.AsyncBaseTransport):
    """The way to a controller that may die at any moment: what is on its way then is never answered."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._inner = InProcess(self._serve)
        self._unanswered: set[asyncio.Task[object]] = set()
        self.cut = asyncio.Event()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.cut.is_set():
            return
        task = asyncio.current_task()
        assert task is not None
        self._unanswered.add(task)

        async def sent(message: Message) -> None:
            self._unanswered.discard(task)
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            self._unanswered.discard(task)

    def break_off(self) -> None:
        """The controller is dead: handlers that wait for it die with it."""
        self.cut.set()
        for task in self._unanswered:
            task.cancel()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.cut.is_set():
            raise httpx.ConnectError("nobody listens", request=request)
        answer = asyncio.ensure_future(self._inner.handle_async_request(request))
        cut = asyncio.ensure_future(self.cut.wait())
        await asyncio.wait([answer, cut], return_when=asyncio.FIRST_COMPLETED)
        cut.cancel()
        if self.cut.is_set():
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)
            raise httpx.ReadError("the connection broke", request=request)
        return answer.result()


class Cluster:
    """The real controller, journal, REST and coordinator in one process, over agents and engines of a few lines."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.world = World(folder)
        self.app = create_app(None, admin_token="admin")  # type: ignore[arg-type]  # each controller takes its place in it
        self.line = Line(self.app)
        self.verbs: list[str] = []
        self.engines: dict[str, FakeEngine] = {}
        self.coordinator: asyncio.Task[str] | None = None
        self.version = 0
        self.fired = {"controller": 0, "coordinator": 0}

    async def start(self, *, stop_at: int = 0) -> None:
        """A controller, or its successor, and the agents' registration with it."""
        await self.world.start()
        self.world.journal.appends, self.world.journal.stop_at = 0, stop_at
        self.app.state.service = replace(self.app.state.service, controller=self.world.controller, streams=Streams())
        self.line.cut.clear()

    async def kill_controller(self) -> None:
        """As SIGKILL: at once, whatever it is doing."""
        self.line.break_off()
        end_streams(self.app)
        await self.world.kill()
        self.fired["controller"] += 1

    async def coordinate(self) -> None:
        """A coordinator, or its successor."""

        async def drive() -> str:
            hour = {f"{name}_timeout": "1h" for name in ("quorum", "hang", "unhealthy", "sync")}
            config = RLCoordinator(**hour, no_progress_timeout="2h")
            async with AsyncClient("http://xce", "admin", transport=self.line, patience=0.05) as client:
                return await Coordinator(client, "g1", config, self._connect).run()

        self.coordinator = asyncio.create_task(drive())

    async def kill_coordinator(self) -> None:
        assert self.coordinator is not None
        assert not self.coordinator.done(), self.coordinator
        self.coordinator.cancel()
        await asyncio.wait([self.coordinator])
        self.fired["coordinator"] += 1

    def _connect(self, url: str, incarnation: int, term: int) -> Connection:
        return Connection(self.engines.setdefault(url, FakeEngine(self.verbs, url)), term)

    async def publish(self) -> None:
        """The actor publishes; asked again until it is acknowledged, which is when it counts."""
        self.version += 1
        text = Head(WeightsId(1, self.version, f"{self.version}".ljust(64, "0")), f"/w/{self.version}").render()
        async with AsyncClient("http://xce", "admin", transport=self.line, patience=20.0) as client:
            await client.kv_put("g1", HEAD, text)

    def serving(self) -> dict[int, int]:
        """Who is eligible, as the durable value says: index → version of its weights."""
        value = self.world.state.values.get(("g1", ELIGIBLE))
        return {one.index: one.weights.version for one in Eligible.parse(value.value).rollouts} if value else {}


@asynccontextmanager
async def cluster(folder: Path, seed: int) -> AsyncIterator[Cluster]:
    made = Cluster(folder, seed)
    try:
        yield made
    finally:
        await made.kill_controller()  # first: whatever waits for its answer gets none
        if made.coordinator is not None:
            made.coordinator.cancel()
            await asyncio.wait([made.coordinator])


async def _let_go(here: Cluster) -> None:
    """No record is stopped at any more, and the controller that stood still goes on."""
    journal = here.world.journal
    journal.stop_at = 0
    journal.go_on.set()
    await until(lambda: journal.passed.is_set() or not journal.reached.is_set())


async def _fault(here: Cluster) -> None:
    """One fault at a random record: the controller dies when some record is durable and nobody knows it, the coordinator
    when it has written something or is about to; or both."""
    journal = here.world.journal
    await _let_go(here)
    for event in (journal.reached, journal.go_on, journal.passed):
        event.clear()
    journal.appends, journal.stop_at = 0, here.random.randint(1, 4)
    publishing = asyncio.create_task(here.publish())
    await until(
        lambda: journal.reached.is_set() or (publishing.done() and here.serving() == {0: here.version, 1: here.version})
    )
    victims = here.random.choice(["controller", "coordinator", "both"]) if journal.reached.is_set() else "coordinator"
    if victims != "controller":
        await here.kill_coordinator()
        await here.coordinate()
    if journal.reached.is_set():
        # It stands still in the middle of its step; let it go on unless it is the one that dies.
        if victims == "coordinator":
            await _let_go(here)
        else:
            await here.kill_controller()
            await here.start()
    await publishing


@pytest.mark.timeout(300)
async def test_219_faults_of_controller_and_coordinator_restart_no_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenarios 77 and 84: the count of faults with zero member restarts is the acceptance test."""
    monkeypatch.setattr(shell, "SWEEP_S", 0.05)
    monkeypatch.setattr(delivery, "RESEND_S", (0.02,))
    monkeypatch.setattr(coordinator_shell, "AWAY_S", 0.01)
    async with cluster(tmp_path, seed=84) as here:
        await here.start()
        actor, rollout = PLAN.members
        await here.world.submit(replace(PLAN, members=(actor, replace(rollout, ports=("http",)))))
        await until(lambda: here.world.is_in(GroupState.RUNNING))
        await here.coordinate()
        await here.publish()
        await until(lambda: here.serving() == {0: 1, 1: 1})
        begun = here.world.group()
        starts, since = list(here.world.hosts.starts), here.world.journal.seq
        here.world.hosts.delivered.clear()

        while sum(here.fired.values()) < FAULTS:
            await _fault(here)
        await _let_go(here)

        await here.publish()
        await until(lambda: here.serving() == {0: here.version, 1: here.version})
        assert min(here.fired.values()) > FAULTS // 4, here.fired
        after = here.world.group()
        assert after.slots == begun.slots, "no member was touched: incarnations, places, states, since when"
        assert (after.state, after.epoch, after.since_ms) == (GroupState.RUNNING, 1, begun.since_ms)
        assert here.world.hosts.starts == starts
        assert not [one for one in here.world.hosts.delivered if isinstance(one, Prepare | Start | Stop | Unprepare)]
        events = [event for batch in here.world.journal.batches(after=since) for event in batch.events]
        assert not [one for one in events if isinstance(one, SlotChanged | SlotExited | SlotPlaced | GroupChanged)]
        head = here.world.state.values["g1", HEAD]
        assert Head.parse(head.value).weights.version == here.version, "nothing that was acknowledged is lost"
        assert recover(here.world.journal).state == here.world.state
