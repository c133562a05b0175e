"""Somebody's Ray cluster, joined by its address: an agent on each node, XCE chooses; nodes come, die and are fenced."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gangflow import clusters
from gangflow.home import homes
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
        self.address = self.second = ""
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


@pytest.fixture(scope="module")
def emulated(root: Path) -> Iterator[Emulated]:
    """Two nodes, of 1 and 2 CPUs, of a Ray that is somebody else's."""
    place = root / "joined"
    place.mkdir()
    cluster = Emulated(place)
    try:
        cluster.add(1)
        cluster.second = cluster.add(2)
        yield cluster
    finally:
        Program.start("down", "--all", **cluster.environment).end()  # where a test failed there is something to end
        cluster.close()
        until(lambda: not processes(RAY_RUN, cluster.mark), "the end of the emulated cluster")


@pytest.fixture(autouse=True)
def settings(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's and gangflow's settings are the process's."""
    for name, value in emulated.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def cluster(emulated: Emulated) -> Iterator[RayCluster]:
    """Joined; leaving it stops nothing."""
    joined = RayCluster.join_ray(emulated.address)
    yield joined
    joined.stop()


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


def spread(done: Path) -> dict[str, Any]:
    """Only the second node has two CPUs, and then only the first one has one left."""
    document = group("spread", done)
    for member, cpu in (("a", 2), ("b", 1)):
        document["members"][member] = {"job": {**document["members"][member]["job"], "resources": {"cpu": cpu}}}
    return document


def actor_on(emulated: Emulated, node: str) -> psutil.Process:
    """The process of a node's agent actor."""

    def found() -> list[psutil.Process]:
        actors = processes(RAY_RUN, emulated.mark, "ray::HostAgentActor")
        return [each for each in actors if each.environ()["RAY_RAYLET_PID"] == str(emulated.raylets[node])]

    (process,) = until(found, "the node's actor")
    return process


def moments(client: Client, host: str, member: str) -> list[tuple[str, str]]:
    """What the journal says of a host and a member, in order."""
    return [
        (event.type, str(event.data.get("state") or event.data.get("cause") or ""))
        for event in records(client)
        if event.data.get("host") == host or event.data.get("member") == member
    ]


def in_this_order(story: list[tuple[str, str]], *wanted: tuple[str, str]) -> None:
    rest = iter(story)
    assert all(moment in rest for moment in wanted), story


def test_xce_chooses_the_node(emulated: Emulated, cluster: RayCluster, place: Path) -> None:
    """An agent on each node; a task runs under the agent of the node that XCE chose, and agents of a machine share no port."""
    home = cluster.home.path
    with cluster.client() as client:
        assert list(hosts(client).values()) == ["UP", "UP"]
        names = json.loads((home / "nodes.json").read_text())["names"]
        with running(client, spread(place / "done")) as view:
            assert host_of(view, "a") == names[emulated.second] != host_of(view, "b")
            for slot, (_, (pid,)) in incarnations(view).items():
                assert agent_over(pid, home) == host_of(view, slot[0])
            (place / "done").touch()
            state(client, view.id, "SUCCEEDED")
    pools = [json.loads(file.read_text()) for file in (home / "nodes").glob("*/ports.json")]
    assert len(pools) == 2
    assert len({first for pool in pools for first in pool.values()}) == 2


def test_a_silent_actor(emulated: Emulated, cluster: RayCluster, place: Path) -> None:
    """Scenario 80: a node whose actor is stuck is given up, although its Ray lives. The actor is ended, so that nobody renews
    the agent, and the slot starts again only when the agent has fenced itself and the node has come back."""
    with cluster.client() as client, running(client, spread(place / "done")) as view:
        host, (old,) = host_of(view, "a"), incarnations(view)["a[0]"][1]
        stuck = actor_on(emulated, emulated.second)
        stuck.send_signal(signal.SIGSTOP)
        until(lambda: hosts(client)[host] == "LOST", "the verdict")
        until(lambda: client.group(view.id).slot("a", 0).incarnation == 2, "another incarnation")
        assert not psutil.pid_exists(old)
        stuck.send_signal(signal.SIGCONT)
        until(lambda: not stuck.is_running() or stuck.status() == psutil.STATUS_ZOMBIE, "it wakes up to its end")
        after = state(client, view.id, "RUNNING")
        assert host_of(after, "a") == host, "no other node has two CPUs"
        assert incarnations(after)["b[0]"] == incarnations(view)["b[0]"]
        in_this_order(moments(client, host, "a"), ("SlotPlaced", ""), ("HostChanged", "LOST"), ("SlotPlaced", ""))
        (place / "done").touch()
        state(client, view.id, "SUCCEEDED")


def test_nodes_come_die_and_are_fenced(emulated: Emulated, cluster: RayCluster, place: Path) -> None:
    """Scenario 43, 83: a node that joins later is a host; one dies, and its slot starts elsewhere, once, when it is fenced."""
    home, second = cluster.home.path, emulated.second
    with cluster.client() as client, running(client, spread(place / "done")) as view:
        third = emulated.add(2)
        until(lambda: len(hosts(client)) == 3, "the node that joined")
        names = json.loads((home / "nodes.json").read_text())["names"]
        assert hosts(client)[names[third]] == "UP"

        before = incarnations(view)
        (old,) = before["a[0]"][1]
        wrapper = actor_on(emulated, second)
        kill(emulated.raylets[second])
        kill(wrapper.pid)
        until(lambda: client.group(view.id).slot("a", 0).incarnation == 2, "another incarnation")
        assert not psutil.pid_exists(old), "its agent fenced itself before another incarnation was started"
        after = state(client, view.id, "RUNNING")
        assert host_of(after, "a") == names[third]
        assert incarnations(after)["b[0]"] == before["b[0]"]
        in_this_order(
            moments(client, names[second], "a"), ("HostChanged", "LOST"), ("HostChanged", "FENCED"), ("SlotPlaced", "")
        )
        (place / "done").touch()
        state(client, view.id, "SUCCEEDED")


def test_it_is_taken_down_and_ray_stays(emulated: Emulated, cluster: RayCluster) -> None:
    """A run that joined it stops nothing; `down` ends all that is gangflow's, and nothing of Ray's."""
    home = cluster.home
    assert home.alive, "those before have joined and left"
    assert [each.path for each in homes()] == [home.path]
    cluster.stop()
    assert home.alive
    again = clusters.join_cluster(emulated.address)
    with again.client() as client:
        assert {each.name for each in client.groups().groups} == {"spread"}
    again.stop()
    assert f"down: {home.path}" in gangflow("down", "--all")
    # The agent of the dead node, which nobody could tell, ends by itself.
    until(lambda: not any(processes(RAY_RUN, emulated.mark, words) for words in OURS), "the end of all that is ours")
    dead = [raylet for raylet in emulated.raylets.values() if not psutil.pid_exists(raylet)]
    assert dead in ([], [emulated.raylets[emulated.second]])
