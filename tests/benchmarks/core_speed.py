"""Speed of the core: inputs a second through `Machine.handle` with 1,000 groups alive, on one core.

    python tests/benchmarks/core_speed.py [--repeats 7] [--groups 1000] [--profile edges]

Four streams of inputs, each in batches of 1, 8 and 64; nothing is journalled, and the encoding of the records is timed apart.

- `edges`: what agents report of running tasks all the time: ready probes that fail and, some time later, succeed again.
- `breaks`: the same where each failing probe breaks a minimum: its group is DEGRADED, and RUNNING again.
- `values`: compare-and-set of small durable values, as coordinators write them, each with an idempotency key.
- `lives`: whole lives. Groups end and others come: commands, placement on 1,024 hosts, prepared, started, ready, exited; 13
  inputs a life, one of which holds a scheduler session.

Groups have a job of one task and three replicas, two of which are the minimum. Goal: at least 20,000 inputs a second for the
mix (edges 7 : breaks 1 : values 1 : lives 1, by the number of inputs). CPU seconds count: the machine is shared, and `handle`
does nothing but compute.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import itertools
import pstats
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Side, publish

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.effects import Effect, Prepare, Start, Stop, Unprepare
from gangflow.xce.core.inputs import Input
from gangflow.xce.core.plan import (
    Action,
    GroupPlan,
    MemberKind,
    MemberPlan,
    ProbeKind,
    ProbePlan,
    RulePlan,
    TaskTerm,
    Use,
)
from gangflow.xce.core.state import GroupState, HostFacts, State, TaskKey
from gangflow.xce.journal.record import Batch, encode
from gangflow.xce.machine import Decision, Machine

BATCHES = (1, 8, 64)
STREAMS = ("edges", "breaks", "values", "lives")
SHARES = {"edges": 7, "breaks": 1, "values": 1, "lives": 1}
LAG = 128
"""Probes that fail at a time."""
GOAL = 20_000
SAMPLE = 4_096
"""Inputs of one sample."""
HOSTS = 1_024
NOW = 1_000_000_000_000


def plan(name: str) -> GroupPlan:
    terms = (TaskTerm(uses=(Use("cpu", 500), Use("mem", 512))),)
    probe = ProbePlan(ProbeKind.HTTP, "http", "/health")
    job = MemberPlan("actor", MemberKind.JOB, ("run",), terms=terms)
    service = MemberPlan(
        "rollout", MemberKind.REPLICA_SET, ("serve",), terms=terms, ports=("http",), ready=probe,
        replicas=3, min_replicas=2, max_replicas=3, primary=False,
    )  # fmt: skip
    rules = (RulePlan(Action.FAIL_GROUP, "actor"), RulePlan(Action.RESTART_MEMBER, "rollout", max_restarts=5))
    return GroupPlan(name, (job, service), rules=rules, environment=(("RUN", name),))


def hosts() -> Iterator[inp.HostUp]:
    counters = (("cpu", 64_000), ("mem", 262_144))
    for number in range(HOSTS):
        facts = HostFacts(f"h{number}", f"n{number}", "10.0.0.1", counters=counters, port_first=20_000, port_count=4_096)
        yield inp.HostUp(facts, "b1")


class Bench:
    """A machine with so many groups RUNNING, and neighbours that answer its effects; a second one follows it and is timed.

    What comes next depends on what was decided, so that a stream is recorded with the first machine. The second, in the same
    state, is then given the recorded batches in one go: nothing but `handle` is between the two readings of the clock.
    """

    def __init__(self, groups: int) -> None:
        self.machine = Machine(State())
        self.timed = Machine(State())
        self.now = NOW
        self.names = (f"group-{number}" for number in itertools.count())
        self.keys = (f"key-{number}" for number in itertools.count())
        self.edges: dict[TaskKey, int] = {}
        self.taken: list[tuple[list[Input], int]] = []
        """What the second machine has not been given yet."""
        self.records: list[Batch] = []
        """The same with what was decided, as the journal gets it."""
        self.feed([inp.StartTerm("bench")])
        for up in hosts():
            self.feed([up])
        for _ in range(groups):
            self.settle(self.feed([inp.SubmitGroup(plan(next(self.names)))]))
        alive = [group for group in self.machine.state.groups.values() if group.state is GroupState.RUNNING]
        assert len(alive) == groups, f"{len(alive)} of {groups} run"
        self.catch_up()
        self.records.clear()

    def feed(self, inputs: list[Input]) -> Decision:
        self.now += 1
        decision = self.machine.handle(inputs, self.now)
        self.taken.append((inputs, self.now))
        self.records.append(Batch(1, 1, self.now, tuple(inputs), decision.events))
        return decision

    def settle(self, decision: Decision) -> None:
        """Answer what became due until nothing is."""
        waiting: list[Input] = [report for effect in decision.effects for report in answers(effect)]
        while waiting:
            decision = self.feed([waiting.pop(0)])
            waiting += [report for effect in decision.effects for report in answers(effect)]

    def catch_up(self) -> None:
        """Give the second machine all that the first one had."""
        taken, self.taken = self.taken, []
        for inputs, now in taken:
            self.timed.handle(inputs, now)

    # --- streams ------------------------------------------------------------------------------------------------------

    def record(self, name: str, count: int, batch: int) -> None:
        """Take a stream's batches, made as they are needed."""
        if name == "lives":
            self._lives(count, batch)
            return
        inputs = self._values(count) if name == "values" else self._edges(count, broken=name == "breaks")
        for at in range(0, count, batch):
            self.feed(inputs[at : at + batch])

    def _edges(self, count: int, *, broken: bool) -> list[Input]:
        """Probes of one replica of each group in turn; `broken`: while another one of the same group is down for good."""
        if broken:
            self._down(1)
        inputs: list[Input] = []
        failing: deque[tuple[TaskKey, str]] = deque()
        for key, host in itertools.islice(itertools.cycle(self._tasks(0)), count // 2):
            inputs.append(self._edge(key, host, ready=False))
            failing.append((key, host))
            if len(failing) > LAG:
                inputs.append(self._edge(*failing.popleft(), ready=True))
        inputs += [self._edge(*one, ready=True) for one in failing]
        if broken:
            self.rest += [self._edge(*one, ready=True) for one in self._tasks(1)]
        return inputs

    def _down(self, index: int) -> None:
        self.feed([self._edge(*one, ready=False) for one in self._tasks(index)])
        self.catch_up()

    def _tasks(self, index: int) -> list[tuple[TaskKey, str]]:
        return [
            (TaskKey(group.id, slot.epoch, slot.member, slot.index, slot.incarnation, 0), slot.tasks[0].host)
            for group in self.machine.state.groups.values()
            for slot in group.slots.values()
            if (slot.member, slot.index) == ("rollout", index) and not group.state.terminal and slot.tasks
        ]

    def _edge(self, key: TaskKey, host: str, *, ready: bool) -> Input:
        edge = self.edges[key] = self.edges.get(key, 1) + 1
        return inp.TaskReady(key, host, edge) if ready else inp.TaskUnready(key, host, "503", edge)

    def _values(self, count: int) -> list[Input]:
        groups = [group.id for group in self.machine.state.groups.values() if not group.state.terminal]
        return [
            inp.PutValue(group, "rollouts/eligible", "x" * 200, request=inp.Request(next(self.keys), "d"))
            for group in itertools.islice(itertools.cycle(groups), count)
        ]

    def _lives(self, count: int, batch: int) -> None:
        """Groups end, and others come; as many at once as a batch has inputs."""
        queue: list[Input] = []
        old = iter([group.id for group in self.machine.state.groups.values() if group.state is GroupState.RUNNING])
        for _ in range(0, count, batch):
            while len(queue) < batch:
                queue.append(inp.EndGroup(next(old), GroupState.CANCELLED, request=inp.Request(next(self.keys), "d")))
                queue.append(inp.SubmitGroup(plan(next(self.names)), inp.Request(next(self.keys), "d")))
            decision = self.feed(queue[:batch])
            queue = [*queue[batch:], *(report for effect in decision.effects for report in answers(effect))]
        self.rest = queue

    def sample(self, name: str, batch: int, side: Side, encoding: Side) -> None:
        """One sample: the time of `handle` for each input, and that of encoding the records."""
        self.rest: list[Input] = []
        self.record(name, SAMPLE, batch)
        self.records = self.records[-len(self.taken) :]
        taken = sum(len(inputs) for inputs, _ in self.taken)
        records, self.records = self.records, []
        wall, cpu = time.perf_counter(), time.process_time()
        for record in records:
            encode(record)
        encoding.add((time.perf_counter() - wall) * 1e6 / taken, (time.process_time() - cpu) * 1e6 / taken)
        del records
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        self.catch_up()
        side.add((time.perf_counter() - wall) * 1e6 / taken, (time.process_time() - cpu) * 1e6 / taken)
        self.settle(self.feed([*self.rest, inp.Tick()]))
        self.catch_up()
        self.records.clear()


def answers(effect: Effect) -> Iterator[Input]:
    match effect:
        case Prepare(task, host):
            yield inp.TaskPrepared(task, host, "b1")
        case Start(task, host):
            yield inp.TaskStarted(task, host, 4_242)
            if task.member == "rollout":
                yield inp.TaskReady(task, host, 1)
        case Stop(task, host):
            yield inp.TaskExited(task, host, signal=15)
        case Unprepare(task, host):
            yield inp.TaskUnprepared(task, host)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--profile", choices=STREAMS, help="profile this stream, one by one, instead")
    options = parser.parse_args()
    bench = Bench(options.groups)
    if options.profile:
        bench.record(options.profile, SAMPLE, 1)
        with cProfile.Profile() as profile:
            bench.catch_up()
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
        return
    sides, encodings, lines = [], [], []
    rates: dict[str, dict[str, float]] = {}
    for batch in BATCHES:
        cost = 0.0
        for name in STREAMS:
            side, encoding = Side(f"{name}, batches of {batch}"), Side(f"{name}, batches of {batch}: encoding")
            for _ in range(options.repeats):
                bench.sample(name, batch, side, encoding)
            sides.append(side)
            encodings.append(encoding)
            cost += SHARES[name] * sorted(side.cpu_ms)[len(side.cpu_ms) // 2]
            rates.setdefault(str(batch), {})[name] = 1e6 / sorted(side.cpu_ms)[len(side.cpu_ms) // 2]
        mix = 1e6 * sum(SHARES.values()) / cost
        rates[str(batch)]["mix"] = mix
        told = ", ".join(f"{name} {rates[str(batch)][name]:,.0f}" for name in STREAMS)
        lines.append(f"batches of {batch}: {mix:,.0f} inputs a CPU second for the mix (goal: ≥ {GOAL:,}); {told}")
    alive = sum(not group.state.terminal for group in bench.machine.state.groups.values())
    lines.append(f"{alive} groups alive, {len(bench.machine.state.groups)} in the state")
    title = "core speed: µs an input through Machine.handle (columns are µs)"
    publish("core_speed", title, [*sides, *encodings], lines, {"rates": rates, "groups": options.groups})


if __name__ == "__main__":
    main()
