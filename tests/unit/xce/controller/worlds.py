"""A controller with a real journal and the real machine, over fake neighbours; it can be killed and started again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gangflow.xce.controller import Controller, Options
from gangflow.xce.core.inputs import EndGroup, HostUp, SubmitGroup
from gangflow.xce.core.plan import Action, ClaimPlan, GroupPlan, MemberKind, MemberPlan, RulePlan, TaskTerm, Use
from gangflow.xce.core.state import Group, GroupState, HostFacts, State
from gangflow.xce.journal.record import Batch
from gangflow.xce.journal.sqlite import SqliteJournal
from tests.unit.xce.controller.fakes import FakeHosts, FakeProvider, ManualClock, until

HOSTS = tuple(
    HostFacts(f"h{n}", node=f"n{n}", counters=(("cpu", 4_000), ("mem", 8_000)), port_first=21_000 + 100 * n, port_count=32)
    for n in range(2)
)


def member(name: str, *, tasks: int = 1, replicas: int = 0, cpu: int = 1_000) -> MemberPlan:
    """A job of so many tasks, or (with `replicas`) a replica set."""
    terms = (TaskTerm(count=tasks, uses=(Use("cpu", cpu),)),)
    if not replicas:
        return MemberPlan(name, MemberKind.JOB, ("run", name), terms=terms)
    return MemberPlan(
        name,
        MemberKind.REPLICA_SET,
        ("serve", name),
        terms=terms,
        replicas=replicas,
        min_replicas=replicas,
        max_replicas=replicas,
        primary=False,
    )


PLAN = GroupPlan(
    "demo",
    (member("actor", tasks=2), member("rollout", replicas=2)),
    claims=(ClaimPlan("ckpt", "fake"),),
    rules=(RulePlan(Action.RESTART_MEMBER, member="rollout", max_restarts=5),),
)


class PausableJournal(SqliteJournal):
    """A journal that can stop right after a batch became durable: the moment at which a controller dies."""

    stop_at = 0
    """The n-th append of this journal from now on; 0: never."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.appends = 0
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.passed = threading.Event()

    def append(self, batch: Batch) -> Batch:
        done = super().append(batch)
        self.appends += 1
        if self.appends == self.stop_at:
            self.reached.set()
            assert self.go_on.wait(20)
            self.passed.set()
        return done


class World:
    """What outlives a controller: its journal's file, the agents, the provider."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.db"
        self.clock = ManualClock()
        self.hosts = FakeHosts(boot="boot-1")
        self.provider = FakeProvider()
        self.options = Options(url="http://xce", token="admin", task_token=str, traceparent=lambda cluster, task: f"00-{task}")
        self.controller: Controller
        self.journal: PausableJournal

    async def start(self, *, stop_at: int = 0, register: bool = True) -> Controller:
        """A controller on the journal, and (unless it dies at once) the agents' registration with it."""
        self.journal = PausableJournal(self.path)
        self.journal.stop_at = stop_at
        self.controller = Controller(self.journal, self.hosts, {"fake": self.provider}, self.options, self.clock)
        self.hosts.report = self.controller.report
        starting = asyncio.create_task(self.controller.start())
        await until(lambda: starting.done() or self.journal.reached.is_set())
        if self.journal.reached.is_set():
            starting.cancel()
            return self.controller
        await starting
        if register:
            await self.register()
        return self.controller

    async def register(self) -> None:
        """Both agents say what they have and what runs there."""
        where = {task: host for task, host in self.hosts.places.items() if task in self.hosts.running}
        for facts in HOSTS:
            inventory = tuple(task for task, host in where.items() if host == facts.name)
            asking = asyncio.create_task(self.controller.report([HostUp(facts, self.hosts.boot, inventory)]))
            await until(lambda asking=asking: asking.done() or self.journal.reached.is_set())
            if not asking.done():
                asking.cancel()
                return
            await asking

    async def kill(self) -> None:
        """As SIGKILL: nothing of it acts any more, nothing is put in order."""
        self.hosts.report = None
        controller = self.controller
        tasks = [*controller._tasks, *(courier.task for courier in controller._deliveries._couriers.values())]
        tasks += [task for _, task in controller._claims._work.values()]
        if hasattr(controller, "_writer") and controller._writer._task is not None:
            tasks.append(controller._writer._task)
        for task in tasks:
            task.cancel()
        self.journal.go_on.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(controller._writer._disk.shutdown)
        self.journal.close()

    @property
    def state(self) -> State:
        return self.controller.state

    def group(self, group_id: str = "g1") -> Group:
        return self.state.groups[group_id]

    def is_in(self, *states: GroupState, group_id: str = "g1") -> bool:
        return group_id in self.state.groups and self.group(group_id).state in states

    async def submit(self, plan: GroupPlan = PLAN) -> str:
        reply = await self.controller.command(SubmitGroup(plan))
        assert reply.ok, reply
        return str(dict(reply.fields)["id"])

    async def cancel(self, group_id: str = "g1") -> None:
        reply = await self.controller.command(EndGroup(group_id, GroupState.CANCELLED, "user"))
        assert reply.ok, reply

    async def running(self) -> str:
        """Submit the group and wait until it runs."""
        group_id = await self.submit()
        await until(lambda: self.is_in(GroupState.RUNNING, group_id=group_id))
        return group_id


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    made = World(folder)
    try:
        yield made
    finally:
        await made.kill()
