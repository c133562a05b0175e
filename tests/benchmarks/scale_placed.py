"""From `PATCH …/members` to the change placed, through REST of an embedded controller without Ray, with real small processes.

    python tests/benchmarks/scale_placed.py [--repeats 9]

- `up`: four more replicas where there is room, and four fewer again (not timed).
- `shift`: on a full cluster, prefill two down and decode two up, and back: the places of those who come are made of what those
  who go give back, so that this contains SIGTERM, the exit of two real processes, verified, and its report.
- `answered`: the 202 alone, which says that the change was proved to fit and is durable.

`placed` is when the watcher reads that the change is DONE: journalled and fsynced, all that was to go is gone, all that comes
has its place. `running` is when the processes of those who come are reported as running. CPU is this process's:
controller, REST and client together, without the agent. Beside them the same processes by bare `subprocess.Popen` (the limit).
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Side, publish, timed

from gangflow.specs.cluster import ClusterSpec, HostSpec
from gangflow.specs.group import CoStartGroup
from gangflow.specs.member import ReplicaSet
from gangflow.xce.cluster_home import ClusterHome
from gangflow.xce.rest.aclient import AsyncClient
from gangflow.xce.runtime import Runtime

COMMAND = ["sleep", "600"]
LIMIT_S = 60
COUNT = 4


def member(replicas: int, cpu: float) -> ReplicaSet:
    return ReplicaSet(
        COMMAND, replicas=replicas, min_replicas=1, max_replicas=16, resources={"cpu": cpu, "mem": 16}, termination_grace="5s"
    )


async def change(client: AsyncClient, group: str, targets: Mapping[str, int], up: int, sides: Mapping[str, Side]) -> None:
    """One change; what it took until it was answered, placed, and its `up` new replicas run."""
    after = (await client.groups()).seq
    wall, cpu = time.perf_counter(), time.process_time()
    asked = await client.scale(group, targets)
    assert asked.change is not None
    sides["answered"].add((time.perf_counter() - wall) * 1_000, (time.process_time() - cpu) * 1_000)
    placed = running = 0
    async with asyncio.timeout(LIMIT_S):
        async for event in client.events(after=after, group=group):
            if event.type == "ChangeMoved" and event.data["change"]["state"] == "DONE":
                placed = 1
                sides["placed"].add((time.perf_counter() - wall) * 1_000, (time.process_time() - cpu) * 1_000)
            running += event.type == "SlotChanged" and event.data["state"] == "RUNNING"
            if placed and running >= up:
                break
    sides["running"].add((time.perf_counter() - wall) * 1_000, (time.process_time() - cpu) * 1_000)


async def until_runs(client: AsyncClient, group: str) -> None:
    """Until every replica is there, the surplus ones too."""
    async with asyncio.timeout(LIMIT_S):
        async for _ in client.events(after=0, group=group):
            view = await client.group(group)
            if all(slot.state == "READY" for one in view.members for slot in one.slots):
                return


def three(name: str) -> dict[str, Side]:
    return {what: Side(f"{name}: {what}") for what in ("answered", "placed", "running")}


async def measure(repeats: int, folder: Path, up: Mapping[str, Side], shift: Mapping[str, Side]) -> None:
    cluster = ClusterSpec(hosts=[HostSpec("h[0-1]", cpu=4, mem="4GiB", gpus=0)])
    runtime = Runtime(ClusterHome(folder), cluster)
    await runtime.start()
    try:
        async with AsyncClient(runtime.url, runtime.token) as client:
            small = await client.submit(CoStartGroup("up", members={"rollout": member(2, 0.1)}))
            await until_runs(client, small.id)
            for turn in range(repeats + 1):
                await change(client, small.id, {"rollout": 2 + COUNT}, COUNT, up if turn else three(""))
                await change(client, small.id, {"rollout": 2}, 0, three(""))
            await client.cancel(small.id)
            members = {"prefill": member(4, 1), "decode": member(4, 1)}
            full = await client.submit(CoStartGroup("shift", members=members))
            await until_runs(client, full.id)
            for turn in range(repeats + 1):
                targets = {"prefill": 2, "decode": 6} if turn % 2 == 0 else {"prefill": 4, "decode": 4}
                await change(client, full.id, targets, 2, shift if turn else three(""))
    finally:
        await runtime.take_down()


def bare(start: int, stop: int, side: Side) -> None:
    """The limit: so many processes stopped, and then so many started, by hand."""
    going = [subprocess.Popen(COMMAND, start_new_session=True) for _ in range(stop)]
    with timed(side):
        for process in going:
            process.terminate()
        for process in going:
            process.wait()
        running = [subprocess.Popen(COMMAND, start_new_session=True) for _ in range(start)]
    for process in running:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    up, shift = three("up"), three("shift")
    limit_up, limit_shift = Side("up: bare Popen"), Side("shift: bare terminate, wait, Popen")
    with tempfile.TemporaryDirectory(prefix="gf-") as folder:
        asyncio.run(measure(options.repeats, Path(folder), up, shift))
    for _ in range(options.repeats):
        bare(COUNT, 0, limit_up)
        bare(2, 2, limit_shift)
    lines = [
        f"up: placed {up['placed'].median:.1f} ms after the PATCH (p50), running {up['running'].median:.1f} ms",
        f"shift at the limit: placed {shift['placed'].median:.1f} ms after the PATCH (p50), two exits within",
    ]
    facts = {"up_placed_ms": up["placed"].median, "shift_placed_ms": shift["placed"].median}
    sides = [*up.values(), limit_up, *shift.values(), limit_shift]
    publish("scale_placed", "scale: PATCH to the change placed", sides, lines, facts)


if __name__ == "__main__":
    main()
