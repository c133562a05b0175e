"""P3: from submit to every member running, real processes: 3 members of 4 tasks of `sh -c "echo; exec sleep 600"`.

    python tests/benchmarks/p3_start.py [--repeats 7] [--without-ray]

Sides, all on this machine and in this run: gangflow (local runtime; journalled, fsynced, two-phase start; from the client's
call to its event stream), the same twelve processes by bare `subprocess.Popen` (the limit), and a Ray placement group of twelve
bundles with an actor in each (to the first answer of every actor). Goal: faster than Ray, at most 60 ms above the limit at p50.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Side, publish, timed

from gangflow.home import Home
from gangflow.local import LocalCluster
from gangflow.specs.cluster import ClusterSpec, HostSpec
from gangflow.specs.group import CoStartGroup
from gangflow.specs.member import Job

COMMAND = ["sh", "-c", "echo; exec sleep 600"]
MEMBERS, TASKS = 3, 4


def bare(side: Side) -> None:
    with timed(side):
        running = [subprocess.Popen(COMMAND, stdout=subprocess.PIPE, start_new_session=True) for _ in range(MEMBERS * TASKS)]
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
    for process in running:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def ours(side: Side, cluster: LocalCluster, turn: int) -> None:
    group = CoStartGroup(
        f"start-{turn}",
        members={
            f"m{i}": Job(COMMAND, tasks=TASKS, resources={"cpu": 0.1, "mem": 16}, termination_grace="1s")
            for i in range(MEMBERS)
        },
    )
    with cluster.client() as client:
        after = client.groups().seq
        wall = time.perf_counter()
        submitted = client.submit(group)
        for event in client.events(after=after, group=submitted.id):
            if event.type == "GroupChanged" and event.data["state"] == "RUNNING":
                break
        side.add((time.perf_counter() - wall) * 1000)
        client.cancel(submitted.id)
        for ending in client.events(after=after, group=submitted.id):
            if ending.type == "GroupChanged" and ending.data["state"] == "CANCELLED":
                break


def with_ray(side: Side, repeats: int) -> None:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False, logging_level="ERROR")

    class Member:
        def ready(self) -> int:
            return os.getpid()

    remote = ray.remote(num_cpus=0.1)(Member)
    for _ in range(repeats):
        wall = time.perf_counter()
        bundles = placement_group([{"CPU": 0.1}] * (MEMBERS * TASKS))
        ray.get(bundles.ready())
        actors = [
            remote.options(scheduling_strategy=PlacementGroupSchedulingStrategy(bundles, i)).remote()
            for i in range(MEMBERS * TASKS)
        ]
        ray.get([actor.ready.remote() for actor in actors])
        side.add((time.perf_counter() - wall) * 1000)
        for actor in actors:
            ray.kill(actor)
        remove_placement_group(bundles)
    ray.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--without-ray", action="store_true")
    options = parser.parse_args()
    limit, gangflow, ray = Side("bare Popen (the limit)"), Side("gangflow"), Side("Ray placement group + actors")
    with tempfile.TemporaryDirectory(prefix="gf-") as folder:
        home = Home(Path(folder))
        cluster = LocalCluster.start(home, ClusterSpec(hosts=[HostSpec("h[0-3]", cpu=4, mem="4GiB", gpus=0)]))
        try:
            ours(Side("warm-up"), cluster, 0)
            for turn in range(options.repeats):
                bare(limit)
                ours(gangflow, cluster, turn + 1)
        finally:
            cluster.stop()
    sides = [limit, gangflow]
    if not options.without_ray:
        with_ray(ray, max(3, options.repeats // 2))
        sides.append(ray)
    above = gangflow.median - limit.median
    lines = [f"gangflow's p50 is {above:.0f} ms above the limit (goal: ≤ 60 ms)"]
    if ray.wall_ms:
        lines.append(f"Ray's p50 is {ray.median / gangflow.median:.0f} × gangflow's")
    publish("p3", "P3: submit to all 12 tasks of 3 members running", sides, lines, {"above_limit_ms": above})


if __name__ == "__main__":
    main()
