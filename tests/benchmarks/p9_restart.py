"""P9: restart of a controller with 1,000 groups (10,000 slots) until it serves, and 10⁶ journal records without an image.

    python tests/benchmarks/p9_restart.py [--repeats 7] [--groups 1000] [--records 1000000] [--keep FOLDER]

Every record of both journals was decided by the machine, from inputs in the order in which agents and coordinators give them,
one input a batch; only fsync was left out while they were written. `gangflow replay` says of both "the same".

- "restart": a new process, from its start to its first answers to `GET /v1/readyz` and to a page of `GET /v1/groups`:
  interpreter, imports, lock, recovery from an image that is 999 batches old, the new term, the REST service. Its agents are
  not there (they connect while it serves). Goal: at most 2 s.
- "open": the journal of 10⁶ records (batches; there are twice as many events), recovered from its first record on, as if every
  image were lost: chain of digests checked, decoded, applied. CPU beside it: the machine is shared. Goal: at most 20 s.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Side, publish, timed

from gangflow.home import Home
from gangflow.specs.cluster import ClusterSpec, HostSpec
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
from gangflow.xce.inventory import host_facts
from gangflow.xce.journal import image
from gangflow.xce.journal.image import Image
from gangflow.xce.journal.record import Batch, chain, encode
from gangflow.xce.journal.recovery import recover
from gangflow.xce.journal.sqlite import SqliteJournal
from gangflow.xce.machine import Decision, Machine

REPLICAS = 9
HOSTS = 256
STEPS = 60
"""Values that a group's coordinator writes in its life."""
NOW = 1_700_000_000_000
CLUSTER = ClusterSpec(
    "bench", hosts=[HostSpec(f"h[0-{HOSTS - 1}]", node=f"n[0-{HOSTS - 1}]", cpu=64, mem="256GiB", gpus=0, ports=64)]
)
LIMIT_S = 120
AT_ONCE = 2_000


def plan(name: str) -> GroupPlan:
    terms = (TaskTerm(uses=(Use("cpu", 500), Use("mem", 512))),)
    probe = ProbePlan(ProbeKind.HTTP, "http", "/health")
    job = MemberPlan("actor", MemberKind.JOB, ("python", "-m", "train"), terms=terms)
    service = MemberPlan(
        "rollout", MemberKind.REPLICA_SET, ("python", "-m", "serve"), terms=terms, ports=("http",), ready=probe,
        replicas=REPLICAS, min_replicas=1, max_replicas=REPLICAS, primary=False,
    )  # fmt: skip
    rules = (RulePlan(Action.FAIL_GROUP, "actor"), RulePlan(Action.RESTART_MEMBER, "rollout", max_restarts=5))
    return GroupPlan(name, (job, service), rules=rules, environment=(("RUN", name),), document=json.dumps({"name": name}))


def facts() -> Sequence[HostFacts]:
    return host_facts(CLUSTER)


class Writer:
    """A machine, its journal, and neighbours that answer its effects: one input a batch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        SqliteJournal(path, cluster_id="bench").close()
        self._db = sqlite3.connect(path, isolation_level=None)
        self._rows: list[tuple[int, int, int, bytes, bytes]] = []
        self.seq = 0
        self.digest = hashlib.sha256(b"bench").digest()
        self.machine = Machine(State())
        self.now = NOW
        self.batches = self.events = 0
        self.numbers = itertools.count(1)
        self.feed(inp.StartTerm("bench"))
        for each in facts():
            self.feed(inp.HostUp(each, "b1"))

    def feed(self, one: Input) -> Decision:
        self.now += 7
        decision = self.machine.handle((one,), self.now)
        if decision.events:
            batch = Batch(self.seq + 1, decision.state.term, decision.now_ms, (one,), decision.events)
            raw = encode(batch)
            self.digest = chain(self.digest, raw)
            self.seq = batch.last_seq
            self._rows.append((batch.first_seq, batch.last_seq, batch.now_ms, self.digest, raw))
            self.batches += 1
            self.events += len(decision.events)
            if len(self._rows) == AT_ONCE:
                self.flush()
        return decision

    def flush(self) -> None:
        """As `SqliteJournal.append` writes them, many in one transaction."""
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO batches VALUES (?, ?, ?, ?, ?)", self._rows)
        for name, value in (("head_seq", self.seq), ("head_digest", self.digest)):
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))
        self._db.execute("COMMIT")
        self._rows.clear()

    def close(self) -> None:
        self.flush()
        self._db.close()

    def settle(self, decision: Decision) -> None:
        waiting = [report for effect in decision.effects for report in answers(effect)]
        for report in waiting:
            waiting += [more for effect in self.feed(report).effects for more in answers(effect)]

    def begin(self) -> str:
        """A group that runs; its id."""
        decision = self.feed(inp.SubmitGroup(plan(f"group-{next(self.numbers)}"), self.request()))
        self.settle(decision)
        reply = decision.replies[0]
        assert reply is not None
        group = str(dict(reply.fields)["id"])
        assert self.machine.state.groups[group].state is GroupState.RUNNING
        return group

    def request(self) -> inp.Request:
        return inp.Request(f"admin:{next(self.numbers):032x}", "0" * 64)

    def step(self, group: str, number: int) -> None:
        """A coordinator publishes a version; now and then a probe fails and succeeds again."""
        value = json.dumps({"membership_version": 1, "term": 1, "weights": f"1/{number}/abcdef", "holding": [[0, 1], [1, 1]]})
        self.feed(inp.PutValue(group, "rollouts/eligible", value, request=self.request()))
        if number % 10 == 9:
            slot = self.machine.state.groups[group].slots["rollout", number % REPLICAS]
            key, edge = TaskKey(group, slot.epoch, slot.member, slot.index, slot.incarnation, 0), slot.tasks[0].edge
            self.feed(inp.TaskUnready(key, slot.tasks[0].host, "503", edge + 1))
            self.feed(inp.TaskReady(key, slot.tasks[0].host, edge + 2))

    def end(self, group: str) -> None:
        """The trainer is done; the rest is stopped."""
        slot = self.machine.state.groups[group].slots["actor", 0]
        key = TaskKey(group, slot.epoch, "actor", 0, slot.incarnation, 0)
        self.settle(self.feed(inp.TaskExited(key, slot.tasks[0].host, code=0)))
        assert self.machine.state.groups[group].state is GroupState.SUCCEEDED


def answers(effect: Effect) -> list[Input]:
    """What agents report of an effect, one report after the other."""
    match effect:
        case Prepare(task, host):
            return [inp.TaskPrepared(task, host, "b1")]
        case Start(task, host):
            ready = [inp.TaskReady(task, host, 1)] if task.member == "rollout" else []
            return [inp.TaskStarted(task, host, 4_000), *ready]
        case Stop(task, host):
            return [inp.TaskExited(task, host, signal=15, message="stopped; killed by SIGTERM")]
        case Unprepare(task, host):
            return [inp.TaskUnprepared(task, host)]
    return []


# --- restart ----------------------------------------------------------------------------------------------------------

SERVE = """
import asyncio, sys, time
from pathlib import Path

begun = float(sys.argv[2])
sys.path.insert(0, sys.argv[3])
from p9_restart import CLUSTER
from gangflow.xce.cluster_home import ClusterHome
from gangflow.xce.runtime import Runtime

class Nobody:
    async def start(self): ...
    async def stop(self): ...
    async def shutdown(self): ...

async def main():
    imported = time.time()
    runtime = Runtime(ClusterHome(Path(sys.argv[1])), CLUSTER, make_hosts=lambda calls: Nobody())
    await runtime.start()
    print(imported - begun, time.time() - begun, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def fill_home(home: Path, groups: int) -> tuple[int, int]:
    """A home whose journal has so many groups RUNNING, and an image that is 999 batches old; (batches, slots)."""
    home.mkdir(parents=True)
    writer = Writer(home / "journal.db")
    running = [writer.begin() for _ in range(groups)]
    state, seq, digest = writer.machine.state, writer.seq, writer.digest
    for number, group in zip(range(999), itertools.cycle(running)):
        writer.step(group, number % 9)
    writer.close()
    journal = SqliteJournal(writer.path)
    journal.save_image(seq, image.encode(Image(state, seq, digest)), 2)
    journal.close()
    return writer.batches, sum(len(group.slots) for group in state.groups.values())


def restart(home: Path, side: Side, parts: dict[str, list[float]]) -> None:
    """One restart, from the start of the process to its first two answers."""
    begun = time.time()
    words = [sys.executable, "-c", SERVE, str(home), str(begun), str(Path(__file__).resolve().parent)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        imported, started = map(float, process.stdout.readline().split())
        place = Home(home)
        with httpx.Client(base_url=place.url, headers={"Authorization": f"Bearer {place.token}"}) as client:
            assert client.get("/v1/readyz").status_code == 200
            listed = client.get("/v1/groups", params={"limit": 100}).json()
        used = sum(psutil.Process(process.pid).cpu_times()[:2])
        side.add((time.time() - begun) * 1000, used * 1000)
        assert len(listed["groups"]) == 100
        for name, value in (("process and imports", imported), ("recovery, term, service", started - imported)):
            parts.setdefault(name, []).append(value * 1000)
    finally:
        process.terminate()
        process.wait(LIMIT_S)


# --- a long journal ---------------------------------------------------------------------------------------------------


def fill_journal(path: Path, records: int) -> Writer:
    """So many records of groups that come, live and go, eight at a time."""
    writer = Writer(path)
    ages: dict[str, int] = {}
    begun = time.monotonic()
    while writer.batches < records:
        if len(ages) < 8:
            ages[writer.begin()] = 0
        for group in list(ages):
            writer.step(group, ages[group])
            ages[group] += 1
            if ages[group] == STEPS:
                writer.end(group)
                del ages[group]
        if writer.batches % 4_000 < 20:
            print(f"\r{writer.batches} of {records} records, {time.monotonic() - begun:.0f} s", end="", file=sys.stderr)
    print(file=sys.stderr)
    writer.close()
    return writer


def opened(path: Path, state: State, side: Side) -> None:
    with timed(side):
        journal = SqliteJournal(path)
        found = recover(journal)
    journal.close()
    assert found.image_seq == 0
    assert found.state == state


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--keep", type=Path, help="leave the journals in this folder")
    options = parser.parse_args()
    first, second = Side("restart, image"), Side("open, no image")
    parts: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="gf-") as temporary:
        folder = options.keep or Path(temporary)
        batches, slots = fill_home(folder / "home", options.groups)
        for _ in range(options.repeats):
            restart(folder / "home", first, parts)
        writer = fill_journal(folder / "long.db", options.records)
        size = (folder / "long.db").stat().st_size
        for _ in range(min(3, options.repeats)):
            opened(folder / "long.db", writer.machine.state, second)
    wall = [value / 1000 for value in second.wall_ms]
    lines = [
        f"restart: {options.groups} groups, {slots} slots, {batches} records; median {first.median / 1000:.2f} s,"
        f" {median(first.cpu_ms) / 1000:.2f} s of CPU (goal: ≤ 2 s)",
        *(f"  {name}: {Side(name, values).median:.0f} ms" for name, values in parts.items()),
        f"open: {writer.batches} records with {writer.events} events, {size / 2**20:.0f} MiB: best {min(wall):.1f} s,"
        f" {min(second.cpu_ms) / 1000:.1f} s of CPU (goal: ≤ 20 s)",
    ]
    facts_ = {"slots": slots, "records": writer.batches, "events": writer.events, "bytes": size, "parts_ms": parts}
    publish("p9", "P9: restart of a controller", [first, second], lines, facts_)


if __name__ == "__main__":
    main()
