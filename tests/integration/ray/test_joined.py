"""Somebody's Ray cluster, joined by its address: an agent on each node, XCE chooses; nodes come, die and are fenced."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gangflow import clusters
from gangflow.home import Home, homes
from gangflow.ray.runtime import RayCluster
from gangflow.xce.rest.client import Client
from gangflow.xce.rest.schema import GroupView
from tests.integration.ray.world import (
    Program,
    gangflow,
    group,
    incarnations,
    kill,
    processes,
    records,
    running,
    state,
    until,
)

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]
OURS = ("gangflow.xce", "ray::Controller", "ray::HostAgent")
RAY_RUN = "GANGFLOW_TEST_RAY"
LEASE = {
    "GANGFLOW_LEASE_MS": "3000",
    "GANGFLOW_FENCE_MS": "1000",
    "GANGFLOW_KILL_GRACE_MS": "1000",
    "GANGFLOW_GRACE_MS": "1000",
}


class Emulated:
    """The Ray cluster, from outside."""

    def __init__(self, folder: Path) -> None:
        self.mark = secrets.token_hex(8)
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        self.environment = {
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_TMPDIR": str(folder), RAY_RUN: self.mark,
            "GANGFLOW_ROOT": str(folder / "root"), **LEASE,
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.integration.ray.emulated"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, **self.environment}, cwd=Path(__file__).parents[3],
        )  # fmt: skip
        self.address = ""
        self.raylets: dict[str, int] = {}

    def add(self, cpus: int) -> str:
        """A node's Ray id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"add": cpus}) + "\n")
        self._process.stdin.flush()
        while not (line := self._process.stdout.readline()).startswith("{"):
            assert line, f"the emulated cluster ended with {self._process.wait()}"
        node = json.loads(line)
        self.address = node["address"]
        self.raylets[node["id"]] = node["raylet"]
        return str(node["id"])

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()


@pytest.fixture
def emulated(root: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulated]:
    """Two nodes: 1 and 2 CPUs. Ray's and gangflow's settings of this test are the process's."""
    cluster = Emulated(place)
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    try:
        cluster.add(1)
        yield cluster
    finally:
        Program.start("down", "--all").end()  # in a test that failed there is something to end
        cluster.close()
        until(lambda: not processes(RAY_RUN, cluster.mark), "the end of the emulated cluster")


def host_of(view: GroupView, member: str) -> str:
    (host,) = view.slot(member, 0).hosts
    return host


def hosts(client: Client) -> dict[str, str]:
    return {host.name: host.state for host in client.hosts().hosts}


def agent_over(pid: int, home: Path) -> str:
    """The node whose agent started a process."""
    for parent in psutil.Process(pid).parents():
        arguments = parent.cmdline()
        if "gangflow.xce.hosts.agent" in arguments:
            assert str(home) in arguments[arguments.index("--dir") + 1]
            return arguments[arguments.index("--node") + 1]
    raise AssertionError(f"{pid} runs under no agent")


def test_nodes_come_die_and_are_fenced(emulated: Emulated, place: Path) -> None:
    """Scenario 43, 83: a node that joins later is a host; one dies, and its slot starts elsewhere, once, when it is fenced."""
    second = emulated.add(2)
    cluster = RayCluster.join_ray(emulated.address)
    try:
        home = cluster.home.path
        with cluster.client() as client:
            assert len(hosts(client)) == 2
            names = json.loads((home / "nodes.json").read_text())["names"]
            document = group("spread", place / "done")
            # Only the second node has two CPUs, only the first has one left for the other member then.
            document["members"]["a"]["job"] = {**document["members"]["a"]["job"], "resources": {"cpu": 2}}
            document["members"]["b"]["job"] = {**document["members"]["b"]["job"], "resources": {"cpu": 1}}
            with running(client, document) as view:
                assert host_of(view, "a") == names[second] != host_of(view, "b")
                for slot, (_, (pid,)) in incarnations(view).items():
                    assert agent_over(pid, home) == host_of(view, slot[0]), "the task runs under its node's agent"
                first_ports = [
                    int(first)
                    for file in (home / "nodes").glob("*/ports.json")
                    for first in json.loads(file.read_text()).values()
                ]
                assert len(set(first_ports)) == 2, "agents that share a machine share no port"

                third = emulated.add(2)
                until(lambda: len(hosts(client)) == 3, "the node that joined")
                names = json.loads((home / "nodes.json").read_text())["names"]
                assert hosts(client)[names[third]] == "UP"

                before = incarnations(view)
                (old,) = before["a[0]"][1]
                wrapper = [
                    process
                    for process in processes(RAY_RUN, emulated.mark, "ray::HostAgentActor")
                    if process.environ()["RAY_RAYLET_PID"] == str(emulated.raylets[second])
                ]
                assert len(wrapper) == 1
                kill(emulated.raylets[second])
                kill(wrapper[0].pid)
                until(lambda: client.group(view.id).slot("a", 0).incarnation == 2, "another incarnation")
                assert not psutil.pid_exists(old), "its agent fenced itself before another incarnation was started"
                after = state(client, view.id, "RUNNING")
                assert host_of(after, "a") == names[third]
                assert incarnations(after)["b[0]"] == before["b[0]"]

                story = [
                    (event.type, event.data.get("state") or event.data.get("cause"))
                    for event in records(client)
                    if event.data.get("host") == names[second] or event.data.get("member") == "a"
                ]
                lost, fenced = story.index(("HostChanged", "LOST")), story.index(("HostChanged", "FENCED"))
                assert lost < fenced
                placed = [index for index, (kind, _) in enumerate(story) if kind == "SlotPlaced"]
                assert len(placed) == 2
                assert placed[0] < lost < fenced < placed[1]
                (place / "done").touch()
                state(client, view.id, "SUCCEEDED")
        assert [each.path for each in homes()] == [home], "`gangflow down --all` finds it"
    finally:
        cluster.stop()
    # It is somebody else's: a run that joined it has stopped nothing. Whoever may, takes it down.
    assert Home(home).alive
    again = clusters.join_cluster(emulated.address)
    with again.client() as client:
        assert client.groups().groups[0].name == "spread"
    again.stop()
    assert f"down: {home}" in gangflow("down", "--all")
    # The agent of the dead node, which nobody could tell, ends by itself.
    until(lambda: not any(processes(RAY_RUN, emulated.mark, words) for words in OURS), "the end of all that is ours")
    assert all(psutil.pid_exists(raylet) for node, raylet in emulated.raylets.items() if node != second), "Ray itself runs on"
