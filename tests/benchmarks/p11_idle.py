"""P11: what a running, idle group costs in Ray: actors of controller, host agent and coordinator, and the agent's processes.

    python tests/benchmarks/p11_idle.py [--windows 5] [--seconds 20]

Beside them, in the same Ray and in the same windows, as many empty Ray actors. The members are not counted: they are the user's
(here: a `sleep`, and a rollout that answers its probes). Memory is PSS: what processes share is counted once. Goal: at most 1 %
of a core and 200 MiB above the empty actors.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Side, publish, spread

from gangflow.home import Home
from gangflow.ray.head import MARK, read_head
from gangflow.ray.runtime import RayCluster
from gangflow.specs.cluster import ClusterSpec, HostSpec

ACTORS = ("ControllerActor", "HostAgentActor", "CoordinatorActor")
ROLLOUT = """
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"{}")
    log_message = lambda *_: None
ThreadingHTTPServer(("127.0.0.1", int(os.environ["XCE_PORT_HTTP"])), Answer).serve_forever()
"""
GROUP: dict[str, Any] = {
    "name": "idle",
    "members": {
        "actor": {"job": {"command": ["sleep", "100000"], "resources": {"cpu": "100m"}, "termination_grace": "1s"}},
        "rollout": {
            "replica_set": {
                "command": ["python", "-c", ROLLOUT], "replicas": 2, "ports": ["http"], "resources": {"cpu": "100m"},
                "ready": {"http": {"port": "http", "path": "/health"}}, "termination_grace": "1s",
            }
        },
    },
    "coordinator": {
        "kind": "rl", "actor": "actor", "rollout": "rollout", "port": "http",
        "quorum_timeout": "1h", "hang_timeout": "1h", "no_progress_timeout": "1h",
    },
}  # fmt: skip


class Meter:
    """CPU time and memory of some processes."""

    def __init__(self, name: str, processes: Iterable[psutil.Process]) -> None:
        self.name = name
        self.processes = list(processes)
        self.cores: list[float] = []
        """Per cent of a core, of each window."""
        self.mib: list[float] = []
        self._cpu = 0.0

    def begin(self) -> None:
        self._cpu = self._cpu_s()

    def end(self, wall_s: float) -> float:
        """CPU seconds since `begin`."""
        used = self._cpu_s() - self._cpu
        self.cores.append(100 * used / wall_s)
        self.mib.append(sum(process.memory_full_info().pss for process in self.processes) / 2**20)
        return used

    def _cpu_s(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self.processes)


def found(folder: str, home: Path) -> dict[str, list[psutil.Process]]:
    """Processes of our Ray by the class of their actor, and the agent with its watchdog."""
    named: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = " ".join(process.cmdline())
            if process.environ().get(MARK) == folder and words.startswith("ray::"):
                named.setdefault(words.removeprefix("ray::").split(".")[0].strip(), []).append(process)
            elif "gangflow.xce.hosts.agent" in words and str(home) in words:
                named["agent"] = [process, *process.children()]
    # The agent's children are its tasks, too.
    named["agent"] = [each for each in named.get("agent", []) if "gangflow.xce.hosts" in " ".join(each.cmdline())]
    return named


def measure(windows: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="gf-") as folder:
        home = Home(Path(folder) / "home")
        home.path.mkdir()
        cluster = RayCluster.start(home, ClusterSpec(hosts=[HostSpec("h", virtual_hosts=2, cpu=4, mem="4GiB", gpus=0)]))
        try:
            head = read_head(home.path)
            assert head is not None
            with cluster.client() as client:
                group = client.submit(GROUP).id
                cluster.coordinate(group)
                for event in client.events(after=0, group=group):
                    if event.type == "GroupChanged" and event.data["state"] == "RUNNING":
                        break
                while client.group(group).coordinator_term == 0:
                    time.sleep(0.1)
            # Ray reads its token when it is imported.
            os.environ.update(head.environment)
            import ray

            ray.init(address=head.address, log_to_driver=False, logging_level="ERROR")
            empty = type("Empty", (), {"answer": lambda self: os.getpid()})
            actors = [ray.remote(num_cpus=0)(empty).remote() for _ in ACTORS]
            ray.get([actor.answer.remote() for actor in actors])
            watch(found(head.folder, home.path), windows, seconds)
            ray.shutdown()
        finally:
            cluster.stop()


def watch(named: dict[str, list[psutil.Process]], windows: int, seconds: float) -> None:
    parts = [Meter(name, named[name]) for name in (*ACTORS, "agent")]
    ours = Meter("gangflow", [process for part in parts for process in part.processes])
    empty = Meter("empty Ray actors", named["Empty"])
    assert len(empty.processes) == len(ACTORS)
    sides = {meter.name: Side(meter.name) for meter in (*parts, ours, empty)}
    time.sleep(seconds / 2)  # what starting everything still costs is not idleness
    for _ in range(windows):
        begin = time.perf_counter()
        for meter in (*parts, ours, empty):
            meter.begin()
        time.sleep(seconds)
        wall = time.perf_counter() - begin
        for meter in (*parts, ours, empty):
            sides[meter.name].add(wall * 1000, meter.end(wall) * 1000)
    rows = [
        f"{meter.name:18} {spread(meter.cores):>22} % of a core  {spread(meter.mib):>24} MiB" for meter in (*parts, ours, empty)
    ]
    above = [mine - theirs for mine, theirs in zip(ours.cores, empty.cores, strict=True)]
    mib = median(ours.mib) - median(empty.mib)
    lines = [
        *rows,
        f"above {len(ACTORS)} empty actors: {spread(above)} % of a core (goal: ≤ 1), {mib:.0f} MiB (goal: ≤ 200)",
    ]
    facts = {
        "percent_of_a_core": {meter.name: meter.cores for meter in (*parts, ours, empty)},
        "pss_mib": {meter.name: meter.mib for meter in (*parts, ours, empty)},
        "above": {"percent_of_a_core": above, "pss_mib": mib},
    }
    title = f"P11: CPU of a running, idle group in windows of {seconds:g} s"
    publish("p11", title, list(sides.values()), lines, json.loads(json.dumps(facts)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    measure(options.windows, options.seconds)


if __name__ == "__main__":
    main()
