"""P1: how long one group decision takes, at clusters of growing size under load.

    python tests/benchmarks/p1_placement.py [--hosts 1024,10240,102400] [--repeats 5] [--decisions 200]

A decision is one `Scheduler.decide` of one group of three members (7 to 92 tasks) on a cluster with three topology levels of
which at least 70 % of the GPUs are taken: reading what changed in the state since the last decision, placing, and making the
grant. What the journal and the state machine do with the answer is not in it. Groups come and go, so that the load stays
between 70 and 80 %. Then groups that cannot fit are refused, with their reason.

Prints a table (median and spread over the repeats, CPU beside wall) and writes `out/benchmarks/p1.json`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import statistics
import time
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
    "refused": "≤ 1 ms",
}


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
        pack = self.random.choice((None, Pack("switch"), Pack("block", True), Pack("rack")))
        return Ask(f"g{self.serial}", AskKind.MINIMUM, 50, self.serial, tuple(slots), pack)

    def adopt(self, answers: tuple[Grant | Refusal, ...]) -> int:
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
        while self.load > HIGH:
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


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def decisions(cluster: Cluster, count: int) -> dict[str, float]:
    """Granted decisions, one group each."""
    wall: list[float] = []
    tasks, cpu, refused = 0, 0.0, 0
    while len(wall) < count:
        ask = cluster.ask()
        before, started = time.process_time(), time.perf_counter()
        answers = cluster.scheduler.decide(cluster.state, [ask])
        took, spent = time.perf_counter() - started, time.process_time() - before
        refused += cluster.adopt(answers)
        if isinstance(answers[0], Grant):
            wall.append(took * 1e3)
            cpu += spent * 1e3
            tasks += sum(len(slot[2]) for slot in answers[0].slots)
        if cluster.load < LOW:
            raise SystemExit(f"the load fell to {cluster.load:.1f} %")
    return {
        "p50_ms": quantile(wall, 0.5),
        "p99_ms": quantile(wall, 0.99),
        "mean_ms": statistics.fmean(wall),
        "cpu_ms": cpu / count,
        "tasks": tasks / count,
        "refused": refused / (refused + count),
    }


def refusals(cluster: Cluster, count: int) -> dict[str, float]:
    """Groups that do not fit, by turns: more GPUs than are free, and more whole hosts than are free (the sum would do)."""
    wall: list[float] = []
    cpu = 0.0
    tasks = (task for group in cluster.state.groups.values() for slot in group.slots.values() for task in slot.tasks)
    busy = {task.host for task in tasks if task.gpus}
    hosts = len(cluster.state.hosts)
    for i in range(count):
        cluster.serial += 1
        wanted = hosts - len(busy) + 1 if i % 2 else hosts // 2
        slots = (SlotAsk("actor", 0, term(wanted, cpu=56, mem=400, gpus=8)), SlotAsk("reward", 0, REWARDS[0]))
        ask = Ask(f"g{cluster.serial}", AskKind.MINIMUM, 50, cluster.serial, slots, Pack("switch"))
        before, started = time.process_time(), time.perf_counter()
        answers = cluster.scheduler.decide(cluster.state, [ask])
        wall.append((time.perf_counter() - started) * 1e3)
        cpu += (time.process_time() - before) * 1e3
        if not isinstance(answers[0], Refusal) or not answers[0].reason.shortfall:
            raise SystemExit(f"a group of {wanted} whole hosts was to be refused")
    return {"p50_ms": quantile(wall, 0.5), "p99_ms": quantile(wall, 0.99), "cpu_ms": cpu / count}


def measure(size: int, repeats: int, count: int) -> dict[str, Any]:
    cluster = Cluster(size, seed=size)
    started = time.perf_counter()
    cluster.fill()
    filled = time.perf_counter() - started
    decisions(cluster, 50)
    refusals(cluster, 10)
    granted = [decisions(cluster, count) for _ in range(repeats)]
    refused = [refusals(cluster, max(20, count // 5)) for _ in range(repeats)]
    return {
        "hosts": size,
        "groups": len(cluster.held),
        "load": round(cluster.load, 1),
        "fill_s": round(filled, 2),
        "granted": granted,
        "refused": refused,
    }


def spread(rows: list[dict[str, float]], key: str) -> str:
    values = [row[key] for row in rows]
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
    print(
        f"{'hosts':>8} {'groups':>7} {'load':>6} {'p50':>23} {'p99':>23} {'CPU a decision':>23} {'refusal p50':>23} {'p99':>23}"
    )
    medians: dict[int, float] = {}
    for row in results:
        granted, refused = row["granted"], row["refused"]
        medians[row["hosts"]] = statistics.median(one["p50_ms"] for one in granted)
        print(
            f"{row['hosts']:>8} {row['groups']:>7} {row['load']:>5}% "
            f"{spread(granted, 'p50_ms'):>23} {spread(granted, 'p99_ms'):>23} "
            f"{spread(granted, 'cpu_ms'):>23} {spread(refused, 'p50_ms'):>23} {spread(refused, 'p99_ms'):>23}"
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
