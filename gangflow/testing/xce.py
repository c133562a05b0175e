"""`FakeXCE`: the production core, placement included, in this process: with a clock that a test moves, and hosts that obey.

It is a controller as the REST service knows one (`ControllerPort`). Nothing in it waits: an input is decided, its effects are
answered by the hosts, and so on until nothing is owed any more; then the call returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from gangflow.errors import GangflowError, Gone, NotFound, Superseded
from gangflow.testing.machines import Machines
from gangflow.testing.standin import StandIn
from gangflow.xce.controller.beats import Beat, Beats, SlotKey
from gangflow.xce.core.events import Event
from gangflow.xce.core.inputs import Command, Input, Reply, Report, StartTerm, TaskExited, Tick
from gangflow.xce.core.plan import Cause
from gangflow.xce.core.state import Group, State, TaskKey
from gangflow.xce.journal.store import Stamped
from gangflow.xce.machine import Machine, effects_due
from gangflow.xce.ports import LogChunk
from gangflow.xce.providers.rules import BuiltIn, Catalog

ROUNDS = 10_000
"""Of answers to one input: what is not at rest then never will be."""
DEADLY = {2: "SIGINT", 6: "SIGABRT", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
"""Signals that end a process that does nothing about them."""


class Restless(GangflowError):
    """The machine and the hosts answer each other for ever: a fault of gangflow, please report it."""

    code = "restless"


class FakeXCE:
    """One controller. Everything happens in the loop that calls it; none of it takes time but `advance`."""

    trouble: GangflowError | None = None
    unknown_until_ms = 0
    catalog: Catalog = BuiltIn()

    def __init__(self, machines: Machines, levels: tuple[str, ...] = (), *, now_ms: int = 1_700_000_000_000) -> None:
        self.machines = machines
        self.records: list[Stamped] = []
        self.horizon = 0
        self.watched = 0
        """Streams of events that are open now."""
        self.standin = StandIn()
        self.logs: dict[tuple[TaskKey, str], str] = {}
        self._now_ms = now_ms
        self._machine = Machine(State())
        self._beats = Beats()
        self._more = asyncio.Event()
        self.feed(StartTerm("testing", levels))
        for machine in machines.by_name.values():
            self.feed(machine.registration())

    # --- for a test

    def feed(self, *inputs: Input) -> tuple[Reply | None, ...]:
        """Inputs as one batch, and all that follows from them; returns the replies to the commands."""
        replies = self._decide(inputs)
        self._settle()
        return replies

    def advance(self, milliseconds: int) -> None:
        """Time passes; every deadline on the way is met at its own moment."""
        until = self._now_ms + milliseconds
        while (deadline := self._machine.next_deadline()) is not None and deadline <= until:
            before, moment = len(self.records), max(self._now_ms, deadline)
            stuck = moment == self._now_ms
            self._now_ms = moment
            self.feed(Tick())
            if stuck and len(self.records) == before:
                break  # A deadline that waits for something else than time.
        self._now_ms = until
        self.feed(Tick())

    def next_deadline(self) -> int | None:
        """When something will happen by time alone, if ever."""
        return self._machine.next_deadline()

    def forget_records(self) -> None:
        """As retention does: nobody can watch from before now any more."""
        self.horizon = self.seq

    def group(self, name: str) -> Group:
        """By id, or by name (the newest). NotFound."""
        groups = self.state.groups
        found = groups.get(name) or next((each for each in reversed(list(groups.values())) if each.plan.name == name), None)
        if found is None:
            raise NotFound(f"there is no group {name!r}; there are: {', '.join(groups) or 'none'}", status=404)
        return found

    # --- a controller, as the REST service needs one

    @property
    def state(self) -> State:
        return self._machine.state

    @property
    def seq(self) -> int:
        return len(self.records)

    def now_ms(self) -> int:
        return self._now_ms

    async def command(self, command: Command) -> Reply:
        reply = self.feed(command)[0]
        assert reply is not None
        return reply

    async def events(self, after: int) -> AsyncIterator[Stamped]:
        if after > self.seq:
            raise Gone(f"seq {after} is beyond this journal, which ends at {self.seq}", seq=self.seq)
        self.watched += 1
        try:
            while True:
                if after < self.horizon:
                    raise Gone(f"events up to {self.horizon} are not kept any more", seq=self.seq)
                more = self._more
                for stamped in self.records[after : after + 256]:
                    yield stamped
                    after = stamped.seq
                if after >= self.seq:
                    await more.wait()
        finally:
            self.watched -= 1

    async def beat(self, key: TaskKey, body: Mapping[str, Any]) -> None:
        group = self.state.groups.get(key.group)
        slot = group.slots.get((key.member, key.index)) if group else None
        if slot is None:
            raise NotFound(f"there is no {key.member}[{key.index}] in {key.group}", status=404)
        if (slot.incarnation, slot.epoch) != (key.incarnation, key.epoch):
            raise Superseded(f"{key.member}[{key.index}] is at incarnation {slot.incarnation}", status=409)
        self._beats.put(key, self._now_ms, body)

    def beats(self, group: str) -> dict[SlotKey, Beat]:
        return self._beats.of(group)

    def watch_beats(self, group: str) -> AsyncIterator[Beat]:
        return self._beats.watch(group)

    async def read_log(self, task: TaskKey, stream: str, offset: int, limit: int) -> LogChunk:
        if task not in self.machines.launches:
            raise FileNotFoundError(f"nobody keeps {stream} of {task}")
        raw = self.logs.get((task, stream), "").encode()
        start = max(0, len(raw) + offset) if offset < 0 else min(offset, len(raw))
        piece = raw[start : start + limit].decode(errors="ignore")
        following = start + len(piece.encode())
        return LogChunk(piece, start, following, self.machines.find(task) is None and following == len(raw))

    async def signal(self, task: TaskKey, number: int) -> None:
        held = self.machines.find(task)
        if held is None or not held.pid:
            raise ProcessLookupError(f"{task} does not run")
        self.machines.signals.append((task, number))
        if number in DEADLY:
            message = f"killed by {DEADLY[number]}"
            self.report(self.machines.end(task, TaskExited(task, held.host, Cause.SIGNAL, None, number, message)))

    # --- inside

    def report(self, reports: list[Report]) -> None:
        """What hosts say by themselves."""
        if reports:
            self.feed(*reports)

    def _decide(self, inputs: tuple[Input, ...]) -> tuple[Reply | None, ...]:
        decision = self._machine.handle(inputs, self._now_ms)
        if decision.events:
            self._record(decision.events)
        return decision.replies

    def _record(self, events: tuple[Event, ...]) -> None:
        self.records += [Stamped(seq, self._now_ms, event) for seq, event in enumerate(events, self.seq + 1)]
        self._more.set()
        self._more = asyncio.Event()

    def _settle(self) -> None:
        """Answer what is owed until nothing is that anybody answers."""
        for _ in range(ROUNDS):
            reports = [report for effect in effects_due(self.state) for report in self.machines.answer(effect)]
            follows: list[Input] = [*reports, *(() if reports else self.standin.commands(self.state))]
            if not follows:
                return
            self._decide(tuple(follows))
        raise Restless("the hosts' answers never came to an end")
