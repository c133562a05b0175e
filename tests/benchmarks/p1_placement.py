"""P1: how long one group decision takes, at clusters of growing size under load. P12: a session while ten thousand wait.

    python tests/benchmarks/p1_placement.py [--hosts 1024,10240,102400] [--repeats 5] [--decisions 200]

A decision is one `Scheduler.decide` of one group of three members (7 to 92 tasks) on a cluster with three topology levels of
which at least 70 % of the GPUs are taken: reading what changed in the state since the last decision, placing, and making the
grant. What the journal and the state machine do with the answer is not in it. Groups come and go, so that the load stays
between 70 and 80 %, and every group brings a plan of its own, as over REST. Then groups that cannot fit are refused, with their
reason, each after another group has come (and gone).

P12 is one session over 10,000 waiting groups of 50 shapes after everything on one host of a full cluster ended, and then the
reason of one of them alone.

What was there before a measurement is frozen for the garbage collector, which stays on: of a process that holds the state of a
large cluster, a full collection takes tens of milliseconds whoever causes it, and that is no part of a decision.

Prints tables (median and spread over the repeats, the thread's CPU time beside wall time) and writes `out/benchmarks/p1.json`.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gangflow.xce.core.asks import Ask, AskKind, Grant, Refusal, SlotAsk
from gangflow.xce.core.plan import GroupPlan, Pack, TaskTerm, Use
from gangflow.xce.core.state import Group, Host, HostFacts, Slot, SlotState, State
from gangflow.xce.placement import Scheduler

LEVELS = ("block", "switch", "rack")
BLOCK, SWITCH, RACK = 512, 64, 16
GPUS_PER_HOST = 8
LOW, HIGH = 70, 80
GOALS = {
    "p50 at 10,240": "≤ 0.3 ms",
    "p99 at 10,240": "≤ 2 ms",
    "p50(10k)/p50(1k)": "≤ 1.5",
    "p50(100k)/p50(1k)": "≤ 3",
    "refused at 10,240": "≤ 1 ms",
    "session of 10,000 waiting": "≤ 20 ms",
    "why of one": "≤ 100 ms",
}
WAITING, SHAPES = 10_000, 50
SESSIONS_UP_TO = 10_240
"""Hosts; to fill a larger cluster to the brim takes minutes."""


def term(count: int, *, cpu: int, mem: int, gpus: int, one_host: bool = False) -> tuple[TaskTerm, ...]:
    uses = [Use("cpu", cpu * 1_000), Use("mem", mem * 1_024)]
    if gpus:
        uses.append(Use("gpus", gpus * 1_000))
    return (TaskTerm(count, tuple(uses), one_host=one_host),)


ACTORS = [term(n, cpu=56, mem=400, gpus=8) for n in (1, 2, 4, 8)]
ROLLOUTS = [term(1, cpu=6, mem=40, gpus=1), term(1, cpu=12, mem=80, gpus=2), term(4, cpu=6, mem=40, gpus=1, one_host=True)]
REWARDS = [term(1, cpu=2, mem=8, gpus=0), term(2, cpu=1, mem=4, gpus=0)]


class Cluster:
    """A state under churn, and the numbers that keep its load where it belongs."""

    def __init__(self, size: int, seed: int) -> None:
        self.random = random.Random(seed)
        hosts = {}
        for i in range(size):
            name = f"h{i}"
            path = (f"b{i // BLOCK}", f"s{i // SWITCH}", f"r{i // RACK}")
            counters = (("cpu", 128_000), ("mem", 1_024 * 1_024))
            hosts[name] = Host(
                HostFacts(name, name, path=path, counters=counters, gpus=GPUS_PER_HOST, port_first=20_000, port_count=64)
            )
        self.total = size * GPUS_PER_HOST
        self.used = 0
        self.held: dict[str, int] = {}
        self.state = State(levels=LEVELS, hosts=hosts)
        self.scheduler = Scheduler()
        self.serial = 0

    @property
    def load(self) -> float:
        return 100 * self.used / self.total

    def ask(self) -> Ask:
        """A group of 7 to 92 tasks."""
        self.serial += 1
        actor, rollout, reward = (self.random.choice(shapes) for shapes in (ACTORS, ROLLOUTS, REWARDS))
        replicas = self.random.randint(4, 80 // rollout[0].count)
        slots = [SlotAsk("actor", 0, actor, ("http",))]
        slots += [SlotAsk("rollout", i, rollout, ("http",)) for i in range(replicas)]
        slots += [SlotAsk("reward", i, reward, ("http",)) for i in range(2)]
        slots = own(slots)
        pack = self.random.choice((None, Pack("switch"), Pack("block", True), Pack("rack")))
        return Ask(f"g{self.serial}", AskKind.MINIMUM, 50, self.serial, tuple(slots), pack)

    def waiting(self) -> list[Ask]:
        """Groups of a few shapes, none of which shares an object with another."""
        shapes = [self.ask() for _ in range(SHAPES)]
        asks = []
        for i in range(WAITING):
            self.serial += 1
            shape = shapes[i % SHAPES]
            renamed = dataclasses.replace(shape, group=f"g{self.serial}", submitted_ms=self.serial)
            asks.append(dataclasses.replace(renamed, slots=tuple(own(shape.slots))))
        return asks

    def end_on_one_host(self) -> None:
        """Whatever has a task on some host gives back the places of the slots that stand there."""
        tasks = [task for group in self.state.groups.values() for slot in group.slots.values() for task in slot.tasks]
        host = self.random.choice(tasks).host
        groups = dict(self.state.groups)
        for gid, group in self.state.groups.items():
            gone = {key for key, slot in group.slots.items() if any(task.host == host for task in slot.tasks)}
            if gone:
                slots = {key: dataclasses.replace(slot, tasks=()) if key in gone else slot for key, slot in group.slots.items()}
                groups[gid] = dataclasses.replace(group, slots=slots)
        self.state = dataclasses.replace(self.state, groups=groups)

    def adopt(self, answers: tuple[Grant | Refusal, ...], high: int = HIGH) -> int:
        """Put the grants into the state; the number of refusals."""
        groups, refused = dict(self.state.groups), 0
        for answer in answers:
            if isinstance(answer, Refusal):
                refused += 1
                continue
            slots = {(m, i): Slot(m, i, SlotState.PLACED, tasks=tasks) for m, i, tasks in answer.slots}
            groups[answer.group] = Group(answer.group, GroupPlan(answer.group, ()), slots=slots)
            gpus = sum(len(task.gpus) for slot in slots.values() for task in slot.tasks)
            self.held[answer.group] = gpus
            self.used += gpus
        while self.load > high:
            gone = self.random.choice(list(self.held)) if len(self.held) < 500 else self.oldest()
            self.used -= self.held.pop(gone)
            del groups[gone]
        self.state = dataclasses.replace(self.state, groups=groups)
        return refused

    def oldest(self) -> str:
        """One of the few hundred oldest groups: choosing among all of a huge cluster's would dominate the run."""
        position = self.random.randrange(300)
        return next(gid for i, gid in enumerate(self.held) if i == position)

    def fill(self) -> None:
        while self.load < LOW + (HIGH - LOW) // 2:
            self.adopt(self.scheduler.decide(self.state, [self.ask() for _ in range(20)]))


def own(slots: Sequence[SlotAsk]) -> list[SlotAsk]:
    """The slots with objects of their own, shared within a member, as they are when a plan was just submitted."""
    terms: dict[str, tuple[TaskTerm, ...]] = {}
    ports: dict[str, tuple[str, ...]] = {}
    for slot in slots:
        if slot.member not in terms:
            fresh = [dataclasses.replace(t, uses=tuple([dataclasses.replace(use) for use in t.uses])) for t in slot.terms]
            terms[slot.member], ports[slot.member] = tuple(fresh), tuple(slot.ports)
    return [dataclasses.replace(slot, terms=terms[slot.member], ports=ports[slot.member]) for slot in slots]


@contextmanager
def settled() -> Iterator[None]:
    """The garbage collector sees what comes from here on only."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def timed(act: Callable[[], tuple[Grant | Refusal, ...]]) -> tuple[tuple[Grant | Refusal, ...], float, float]:
    """(answers, wall ms, CPU ms of this thread)."""
    spent, started = time.thread_time_ns(), time.perf_counter_ns()
    answers = act()
    took = time.perf_counter_ns() - started
    return answers, took / 1e6, (time.thread_time_ns() - spent) / 1e6


def summary(wall: list[float], cpu: list[float]) -> dict[str, float]:
    return {
        "p50_ms": quantile(wall, 0.5),
        "p99_ms": quantile(wall, 0.99),
        "cpu_p50_ms": quantile(cpu, 0.5),
        "cpu_p99_ms": quantile(cpu, 0.99),
    }


def decisions(cluster: Cluster, count: int) -> dict[str, float]:
    """Granted decisions, one group each."""
    wall: list[float] = []
    cpu: list[float] = []
    tasks, refused = 0, 0
    while len(wall) < count:
        ask = cluster.ask()
        answers, took, spent = timed(lambda: cluster.scheduler.decide(cluster.state, [ask]))  # noqa: B023
        refused += cluster.adopt(answers)
        if isinstance(answers[0], Grant):
            wall.append(took)
            cpu.append(spent)
            tasks += sum(len(slot[2]) for slot in answers[0].slots)
        if cluster.load < LOW:
            raise SystemExit(f"the load fell to {cluster.load:.1f} %")
    return {**summary(wall, cpu), "tasks": tasks / count, "refused": refused / (refused + count)}


def refusals(cluster: Cluster, count: int) -> dict[str, float]:
    """Groups that do not fit, by turns: more GPUs than are free, and more whole hosts than are free (the sum would do)."""
    wall: list[float] = []
    cpu: list[float] = []
    hosts = len(cluster.state.hosts)
    for i in range(count):
        cluster.adopt(cluster.scheduler.decide(cluster.state, [cluster.ask()]))
        cluster.serial += 1
        wanted = hosts // 2
        if i % 2:
            tasks = (task for group in cluster.state.groups.values() for slot in group.slots.values() for task in slot.tasks)
            wanted = hosts - len({task.host for task in tasks if task.gpus}) + 1
        slots = [SlotAsk("actor", 0, term(wanted, cpu=56, mem=400, gpus=8)), SlotAsk("reward", 0, REWARDS[0])]
        ask = Ask(f"g{cluster.serial}", AskKind.MINIMUM, 50, cluster.serial, tuple(own(slots)), Pack("switch"))
        answers, took, spent = timed(lambda: cluster.scheduler.decide(cluster.state, [ask]))  # noqa: B023
        wall.append(took)
        cpu.append(spent)
        if not isinstance(answers[0], Refusal) or not answers[0].reason.shortfall:
            raise SystemExit(f"a group of {wanted} whole hosts was to be refused")
    return summary(wall, cpu)


def sessions(cluster: Cluster, count: int) -> dict[str, float]:
    """P12: sessions of a full cluster over all who wait; in wall time the slowest counts, for there are few."""
    misses = 0
    while misses < 30:
        misses += cluster.adopt(cluster.scheduler.decide(cluster.state, [cluster.ask()]), high=100)
    asks = cluster.waiting()
    cluster.adopt(cluster.scheduler.decide(cluster.state, asks), high=100)
    wall: list[float] = []
    cpu: list[float] = []
    alone: list[float] = []
    with settled():
        for _ in range(count):
            asks = [ask for ask in asks if ask.group not in cluster.state.groups]
            cluster.end_on_one_host()
            answers, took, spent = timed(lambda: cluster.scheduler.decide(cluster.state, asks))  # noqa: B023
            if len(answers) < len(asks) or not isinstance(answers[-1], Refusal):
                raise SystemExit("everybody was to be answered, and most of them refused")
            wall.append(took)
            cpu.append(spent)
            cluster.adopt(answers, high=100)
            one = cluster.random.choice([ask for ask in asks if ask.group not in cluster.state.groups])
            alone.append(timed(lambda: cluster.scheduler.decide(cluster.state, [one]))[1])  # noqa: B023
    return {**summary(wall, cpu), "why_p50_ms": quantile(alone, 0.5), "why_max_ms": max(alone), "waiting": len(asks)}


def measure(size: int, repeats: int, count: int) -> dict[str, Any]:
    cluster = Cluster(size, seed=size)
    started = time.perf_counter()
    cluster.fill()
    filled = time.perf_counter() - started
    decisions(cluster, 50)
    refusals(cluster, 10)
    with settled():
        granted = [decisions(cluster, count) for _ in range(repeats)]
    with settled():
        refused = [refusals(cluster, max(20, count // 5)) for _ in range(repeats)]
    load, groups = round(cluster.load, 1), len(cluster.held)
    waiting = [sessions(cluster, 10) for _ in range(repeats)] if size <= SESSIONS_UP_TO else []
    return {
        "hosts": size,
        "groups": groups,
        "load": load,
        "fill_s": round(filled, 2),
        "granted": granted,
        "refused": refused,
        "waiting": waiting,
    }


def max_of(rows: list[dict[str, float]], key: str) -> str:
    return f"{max(row[key] for row in rows):.3f}"


def spread(rows: list[dict[str, float]], key: str) -> str:
    values = [row[key] for row in rows]
    if not values:
        return "–"
    return f"{statistics.median(values):7.3f} ({min(values):.3f}–{max(values):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--hosts", default="1024,10240,102400")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--decisions", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks/p1.json"))
    options = parser.parse_args()
    results = [measure(int(size), options.repeats, options.decisions) for size in options.hosts.split(",")]

    print(f"P1: one group decision, ms, median (min–max) of {options.repeats} repeats of {options.decisions} decisions")
    columns = ("p50", "p99", "CPU p50", "CPU p99")
    fields = ("p50_ms", "p99_ms", "cpu_p50_ms", "cpu_p99_ms")
    heads = "".join(f"{column:>24}" for column in columns)
    medians: dict[int, float] = {}
    for name in ("granted", "refused", "waiting"):
        print(f"{name + ':':<9}{'hosts':>7} {'groups':>7} {'load':>6}{heads}")
        for row in results:
            cells = "".join(f"{spread(row[name], key):>24}" for key in fields)
            print(f"{'':<9}{row['hosts']:>7} {row['groups']:>7} {row['load']:>5}%{cells}")
            if name == "granted":
                medians[row["hosts"]] = statistics.median(one["p50_ms"] for one in row[name])
            if name == "waiting" and row[name]:
                print(
                    f"{'':<9}why of one: {spread(row[name], 'why_p50_ms').strip()}, at most {max_of(row[name], 'why_max_ms')}"
                )
    smallest = min(medians)
    ratios = {
        f"p50({size})/p50({smallest})": round(medians[size] / medians[smallest], 2) for size in medians if size != smallest
    }
    for name, ratio in ratios.items():
        print(f"{name} = {ratio}")
    print("goals: " + "; ".join(f"{name} {goal}" for name, goal in GOALS.items()))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"benchmark": "P1", "ratios": ratios, "results": results, "goals": GOALS}, indent=1))
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
