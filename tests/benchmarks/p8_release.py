"""P8: from the journalled release of the barrier to the last task of 64 started, and what of it is the controller's.

    python tests/benchmarks/p8_release.py [--repeats 7]

The controller runs in this process, over a real agent and a real journal. "Controller" is the time from the decision to
release (its journalling and its fsync included) until the agent has taken the last `Start`; "last task started" is when the
agent's last report is durable. Beside it: 64 bare `subprocess.Popen`, one after the other. Goal: p99 of the controller's time
≤ 20 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Side, publish, quantile, timed

from gangflow.specs.cluster import ClusterSpec, HostSpec
from gangflow.specs.group import CoStartGroup
from gangflow.specs.member import Job
from gangflow.xce.admission import admit
from gangflow.xce.cluster_home import ClusterHome
from gangflow.xce.core.effects import Start, TaskEffect
from gangflow.xce.core.events import BarrierReleased, GroupChanged
from gangflow.xce.core.inputs import EndGroup, SubmitGroup
from gangflow.xce.core.state import GroupState
from gangflow.xce.runtime import Runtime

TASKS = 64
COMMAND = ["sleep", "600"]
LIMIT_S = 60


async def once(runtime: Runtime, cluster: ClusterSpec, turn: int, controller: Side, started: Side) -> None:
    handed: list[float] = []
    deliver = runtime.hosts.deliver

    async def watched(node: str, effects: Sequence[TaskEffect]) -> None:
        await deliver(node, effects)
        if any(isinstance(effect, Start) for effect in effects):
            handed.append(time.time() * 1000)

    runtime.hosts.deliver = watched  # type: ignore[method-assign]
    group = CoStartGroup(
        f"wide-{turn}",
        members={"wide": Job(COMMAND, tasks=TASKS, resources={"cpu": 0.05, "mem": 8}, termination_grace="1s")},
    )
    after = runtime.controller.seq
    reply = await runtime.controller.command(SubmitGroup(admit(group, cluster)))
    identity = str(dict(reply.fields)["id"])
    released = 0
    async with asyncio.timeout(LIMIT_S):
        async for stamped in runtime.controller.events(after):
            if isinstance(stamped.event, BarrierReleased):
                released = stamped.at_ms
            if isinstance(stamped.event, GroupChanged) and stamped.event.state is GroupState.RUNNING:
                started.add(time.time() * 1000 - released)
                break
    controller.add(handed[-1] - released)
    runtime.hosts.deliver = deliver  # type: ignore[method-assign]
    await runtime.controller.command(EndGroup(identity, GroupState.CANCELLED))
    async with asyncio.timeout(LIMIT_S):
        async for _ in runtime.controller.events(runtime.controller.seq - 1):
            if runtime.controller.state.groups[identity].state.terminal:
                break


async def measure(repeats: int, folder: Path, controller: Side, started: Side) -> None:
    cluster = ClusterSpec(hosts=[HostSpec("h0", cpu=64, mem="64GiB", gpus=0)])
    runtime = Runtime(ClusterHome(folder), cluster)
    await runtime.start()
    try:
        await once(runtime, cluster, 0, Side("warm-up"), Side("warm-up"))
        for turn in range(repeats):
            await once(runtime, cluster, turn + 1, controller, started)
    finally:
        await runtime.take_down()


def bare(side: Side) -> None:
    with timed(side):
        running = [subprocess.Popen(COMMAND, start_new_session=True) for _ in range(TASKS)]
    for process in running:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    controller, started, popen = Side("controller"), Side("last task started"), Side("64 bare Popen, sequential")
    with tempfile.TemporaryDirectory(prefix="gf-") as folder:
        asyncio.run(measure(options.repeats, Path(folder), controller, started))
    for _ in range(options.repeats):
        bare(popen)
    p99 = quantile(controller.wall_ms, 0.99)
    lines = [f"p99 of the controller's time: {p99:.1f} ms (goal: ≤ 20 ms)"]
    publish("p8", "P8: release to the last of 64 tasks", [controller, started, popen], lines, {"controller_p99_ms": p99})


if __name__ == "__main__":
    main()
