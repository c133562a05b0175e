"""A controller of a few lines: enough of the machine's answers to hold the server to its contract, one call at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gangflow.errors import GangflowError, Gone, NotFound
from gangflow.xce.core.events import Event, GroupChanged, GroupSubmitted, ValueWritten
from gangflow.xce.core.inputs import Command, EndGroup, PutValue, Reply, SubmitGroup, TakeCoordination
from gangflow.xce.core.plan import ClaimPlan, GroupPlan, MemberKind, MemberPlan, TaskTerm, Use
from gangflow.xce.core.state import (
    Claim,
    ClaimState,
    Exit,
    Group,
    GroupState,
    Host,
    HostFacts,
    KeyValue,
    PendCode,
    Reason,
    Slot,
    SlotState,
    State,
    Task,
    TaskKey,
    TaskPhase,
)
from gangflow.xce.ports import LogChunk
from gangflow.xce.providers.rules import BuiltIn

TERM = TaskTerm(uses=(Use("cpu", 1_000), Use("mem", 512), Use("gpus", 500)))
ACTOR = MemberPlan("actor", MemberKind.JOB, ("train",), terms=(TERM,), ports=("http",))
ROLLOUT = MemberPlan(
    "rollout", MemberKind.REPLICA_SET, ("serve",), terms=(TERM,), ports=("http",),
    replicas=2, min_replicas=1, max_replicas=4, primary=False,
)  # fmt: skip
PLAN = GroupPlan(
    "grpo",
    (ACTOR, ROLLOUT),
    claims=(ClaimPlan("ckpt", parameters=(("password", "hunter2"),)),),
    environment=(("API_KEY", "hunter2"),),
    document='{"name": "grpo"}',
)


def host(name: str, **changes: Any) -> Host:
    """A host with 4 CPU, 8 GiB, 2 GPUs and 32 ports, in switch s0."""
    counters = (("cpu", 4_000), ("mem", 8_192))
    facts = HostFacts(name, path=("s0",), counters=counters, gpus=2, port_first=20_000, port_count=32)
    return replace(Host(facts, boot="secret-boot"), **changes)


def task(on: str, port: int = 20_000, phase: TaskPhase = TaskPhase.READY) -> Task:
    """Task 0 of a slot, placed as `TERM` asks."""
    counters = (("cpu", 1_000), ("mem", 512))
    return Task(0, on, counters, ((0, 500),), (("http", port),), phase, token="secret-boot", pid=77, started_ms=1_500)


def running(group: str = "g1", name: str = "grpo", **changes: Any) -> Group:
    """A RUNNING group: the actor and rollout 0 are READY, rollout 1 waits for a place."""
    slots = {
        ("actor", 0): Slot("actor", 0, SlotState.READY, 1, 1, (task("h0"),), 1_500),
        ("rollout", 0): Slot("rollout", 0, SlotState.READY, 3, 1, (task("h1", 20_001),), 1_600, restarts=2),
        ("rollout", 1): Slot(
            "rollout", 1, reason=Reason(PendCode.WAITING_CAPACITY, "1 GPU short", (("gpus", 1_000),), "s0", "g2")
        ),
    }
    made = Group(
        group, replace(PLAN, name=name), GroupState.RUNNING, 1, submitted_ms=1_000, since_ms=1_500, slots=slots,
        targets=(("actor", 1), ("rollout", 2)), first_running_ms=1_500,
    )  # fmt: skip
    return replace(made, **changes)


def pending(group: str, name: str, submitted_ms: int = 2_000, priority: int = 50) -> Group:
    """A PENDING group with a reason."""
    slots = {key: Slot(*key) for key in (("actor", 0), ("rollout", 0), ("rollout", 1))}
    plan = replace(PLAN, name=name, priority=priority)
    reason = Reason(PendCode.WAITING_CAPACITY, "8 CPU short", (("cpu", 8_000),), "s0", "g1", (("select", 1),))
    return Group(group, plan, submitted_ms=submitted_ms, slots=slots, reason=reason)


def state_of(*groups: Group) -> State:
    """A cluster of two hosts with these groups, and a claim of the first."""
    claim = Claim("c1", "g1", ClaimPlan("ckpt", parameters=(("password", "hunter2"),)), ClaimState.READY, path="/claims/c1")
    return State(
        cluster_id="test", term=1, now_ms=2_000, next_group=10, levels=("switch",),
        hosts={"h0": host("h0"), "h1": host("h1")}, groups={group.id: group for group in groups}, claims={"c1": claim},
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stamped:
    seq: int
    at_ms: int
    event: Event


@dataclass(frozen=True, slots=True)
class Beat:
    member: str
    index: int
    incarnation: int
    at_ms: int
    body: Mapping[str, Any]


class FakeController:
    """Answers commands at once, keeps every event, and lets a test say what its hosts do."""

    def __init__(self, state: State | None = None) -> None:
        self.state = state or state_of(running())
        self.seq = 100
        self.horizon = 50
        self.trouble: GangflowError | None = None
        self.unknown_until_ms = 5_000
        self.catalog = BuiltIn()
        self.commands: list[Command] = []
        self.signals: list[tuple[TaskKey, int]] = []
        self.logs: dict[TaskKey, bytes] = {}
        self.ended: set[TaskKey] = set()
        self._events: list[Stamped] = []
        self._beats: dict[tuple[str, str, int], Beat] = {}
        self._changed = asyncio.Event()

    def now_ms(self) -> int:
        return 7_000

    def publish(self, *events: Event) -> None:
        for event in events:
            self.seq += 1
            self._events.append(Stamped(self.seq, self.now_ms(), event))
        self._wake()

    async def command(self, command: Command) -> Reply:
        if self.trouble is not None:
            raise self.trouble
        self.commands.append(command)
        match command:
            case SubmitGroup(plan):
                group = f"g{self.state.next_group}"
                groups = {**self.state.groups, group: Group(group, plan)}
                self.state = replace(self.state, next_group=self.state.next_group + 1, groups=groups)
                self.publish(GroupSubmitted(group, plan))
                return Reply(201, fields=(("id", group),))
            case PutValue(group, name, value, expect):
                before = self.state.values.get((group, name), KeyValue("", 0))
                if expect not in (-1, before.version):
                    return Reply(409, "conflict", f"{name} is at version {before.version}")
                after = KeyValue(value, before.version + 1)
                self.state = replace(self.state, values={**self.state.values, (group, name): after})
                self.publish(ValueWritten(group, name, value, after.version))
                return Reply(fields=(("version", after.version),))
            case TakeCoordination(group):
                found = self.state.groups[group]
                found = replace(found, coordinator_term=found.coordinator_term + 1)
                self.state = replace(self.state, groups={**self.state.groups, group: found})
                return Reply(fields=(("term", found.coordinator_term),))
            case EndGroup(group, goal):
                self.publish(GroupChanged(group, self.state.groups[group].state, GroupState.STOPPING, goal=goal))
        return Reply()

    async def events(self, after: int) -> AsyncIterator[Stamped]:
        if after < self.horizon:
            raise Gone("too old", seq=self.seq)
        position = after
        while True:
            changed = self._changed
            for stamped in [each for each in self._events if each.seq > position]:
                position = stamped.seq
                yield stamped
            await changed.wait()

    async def beat(self, key: TaskKey, body: Mapping[str, Any]) -> None:
        self._beats[key.group, key.member, key.index] = Beat(key.member, key.index, key.incarnation, self.now_ms(), body)
        self._wake()

    def beats(self, group: str) -> dict[tuple[str, int], Beat]:
        return {(member, index): beat for (owner, member, index), beat in self._beats.items() if owner == group}

    async def watch_beats(self, group: str) -> AsyncIterator[Beat]:
        shown: dict[tuple[str, int], Beat] = {}
        while True:
            changed = self._changed
            for key, beat in self.beats(group).items():
                if shown.get(key) is not beat:
                    shown[key] = beat
                    yield beat
            await changed.wait()

    async def read_log(self, task: TaskKey, stream: str, offset: int, limit: int) -> LogChunk:
        if task not in self.logs or stream != "stdout":
            raise NotFound(f"no {stream} of {task}", status=404)
        raw = self.logs[task]
        start = max(len(raw) + offset, 0) if offset < 0 else min(offset, len(raw))
        end = min(start + limit, len(raw))
        return LogChunk(raw[start:end].decode(), start, end, task in self.ended and end == len(raw))

    async def signal(self, task: TaskKey, number: int) -> None:
        self.signals.append((task, number))

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def ended(cause: str = "app_exit") -> Exit:
    """An exit with a tail of stderr."""
    from gangflow.xce.core.plan import Cause

    return Exit(Cause(cause), 1, 1_900, 3, stderr_tail="boom")
