"""The local runtime as a process: it comes and goes, dies and is refused, and members run on."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gangflow.errors import JournalFull, JournalRegressed
from gangflow.xce.rest.client import Client
from gangflow.xce.rest.schema import GroupView

DEADLINE_S = 60.0
CLUSTER = "hosts: [{name: h, virtual_hosts: 2, cpu: 4, mem: 4GiB, gpus: 0}]\n"
SLEEPER = {"command": ["sleep", "1000"], "tasks": 1, "resources": {"cpu": "500m"}, "termination_grace": "1s"}


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a condition; fails after a deadline."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {DEADLINE_S:g} s: {what}")


def spec(name: str = "demo", tasks: int = 2) -> dict[str, Any]:
    return {"name": name, "members": {"a": {"job": {**SLEEPER, "tasks": tasks}}, "b": {"job": SLEEPER}}}


class Served:
    """A cluster's home, with a controller process that can be started, killed and started again."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.process: subprocess.Popen[str] | None = None
        self.card: dict[str, Any] = {}
        self._clients: list[Client] = []
        cluster = home.with_name("given.yaml")
        cluster.write_text(CLUSTER)
        self.cluster = cluster

    def spawn(self, *more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "gangflow.xce.serve", "--home", str(self.home), "--cluster", str(self.cluster), *more]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def start(self, *more: str) -> Client:
        """Start it, and wait until it says that it is ready."""
        self.process = self.spawn(*more)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(self.process.communicate(timeout=DEADLINE_S)[1])
        self.card = json.loads(line)
        return self.client()

    def client(self) -> Client:
        self._clients.append(Client(self.card["url"], (self.home / "token").read_text().strip(), patience=2))
        return self._clients[-1]

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Signal it and wait for its end: exit code and stderr."""
        assert self.process is not None
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        code, self.process = self.process.returncode, None
        return code, errors

    def fails(self) -> tuple[int, str]:
        """Start it and expect it to end by itself."""
        process = self.spawn()
        _, errors = process.communicate(timeout=DEADLINE_S)
        return process.returncode, errors

    def agents(self) -> list[psutil.Process]:
        """This home's agents."""
        mine = str(self.home)
        found = []
        for process in psutil.process_iter(["cmdline"]):
            command = process.info["cmdline"] or []
            if "gangflow.xce.hosts.agent" in command and any(part.startswith(mine) for part in command):
                found.append(process)
        return found

    def take_down(self) -> None:
        """Whatever a test left open or running."""
        for client in self._clients:
            client.close()
        if self.process is not None and self.process.poll() is None:
            self.end(signal.SIGUSR1)
        for agent in self.agents():
            agent.terminate()
            agent.wait(DEADLINE_S)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "home")
    yield made
    made.take_down()


def incarnations(group: GroupView) -> dict[tuple[str, int], tuple[int, tuple[int, ...]]]:
    return {
        (slot.member, slot.index): (slot.incarnation, tuple(task.pid for task in slot.tasks))
        for member in group.members
        for slot in member.slots
    }


def running(client: Client, document: dict[str, Any]) -> GroupView:
    """Submit a group and wait until it runs."""
    group_id = client.submit(document).id
    return until(lambda: (view := client.group(group_id)).state == "RUNNING" and view, "RUNNING")


def pids(group: GroupView) -> list[int]:
    return [pid for _, some in incarnations(group).values() for pid in some]


def test_it_comes_and_goes_and_members_stay(served: Served) -> None:
    client = served.start()
    assert json.loads((served.home / "controller.json").read_text()) == served.card
    assert os.stat(served.home / "token").st_mode & 0o777 == 0o600
    assert (served.home / "cluster.yaml").read_text() == CLUSTER
    group = running(client, spec())
    before, url = incarnations(group), served.card["url"]
    environment = psutil.Process(pids(group)[0]).environ()
    assert environment["XCE_URL"] == url
    assert environment["TRACEPARENT"].startswith("00-")
    with Client(url, environment["XCE_TOKEN"], patience=2) as member:
        assert member.group("demo").id == group.id, "the task's own token works"

    assert served.end(signal.SIGTERM)[0] == 0
    assert all(psutil.pid_exists(pid) for pid in pids(group))
    client = served.start()
    assert served.card["url"] == url, "running members know this address"
    until(lambda: all(host.state == "UP" for host in client.hosts().hosts), "hosts UP")
    again = client.group(group.id)
    assert (again.state, again.epoch, incarnations(again)) == ("RUNNING", 1, before)
    assert client.healthz().term == 2

    code, _ = served.end(signal.SIGUSR1)
    assert code == 0
    assert not any(psutil.pid_exists(pid) for pid in pids(group)), "everything is taken down"
    until(lambda: not served.agents(), "agents gone")


def test_killing_the_controller_changes_no_member(served: Served) -> None:
    """Scenarios 77 and 84: SIGKILL of the controller, again and again, also while a group starts: no member is restarted."""
    client = served.start()
    group = running(client, spec())
    before = incarnations(group)
    for round_ in range(3):
        late = client.submit(spec(f"late-{round_}", tasks=1)).id  # acknowledged: it must be there afterwards
        served.end(signal.SIGKILL)
        client = served.start()
        until(lambda client=client, late=late: client.group(late).state == "RUNNING", "the late group runs")
        assert {slot[0] for slot in incarnations(client.group(late)).values()} == {1}
        client.cancel(late)
        until(lambda client=client, late=late: client.group(late).state == "CANCELLED", "the late group is gone")
    after = client.group(group.id)
    assert (after.state, after.epoch, incarnations(after)) == ("RUNNING", 1, before)
    assert all(member.restarts == 0 for member in after.members)


def test_what_ended_while_nobody_looked_is_known_afterwards(served: Served, tmp_path: Path) -> None:
    client = served.start()
    flag = tmp_path / "go"
    waits = {**SLEEPER, "command": ["sh", "-c", f"while ! test -e {flag}; do sleep 0.05; done"]}
    group = running(client, {"name": "short", "members": {"a": {"job": waits}}})
    served.end(signal.SIGKILL)
    flag.touch()
    until(lambda: not psutil.pid_exists(pids(group)[0]), "the task ended")
    client = served.start()
    until(lambda: client.group(group.id).state == "SUCCEEDED", "its exit is known")


def test_a_killed_agent_costs_an_incarnation_and_leaves_nothing_behind(served: Served) -> None:
    client = served.start()
    group = running(client, spec())
    (agent,) = served.agents()
    agent.kill()
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids(group)), "its members are gone")
    until(
        lambda: (
            {incarnation for incarnation, _ in incarnations(client.group(group.id)).values()} == {2}
            and client.group(group.id).state == "RUNNING"
        ),
        "they run again under another agent",
    )
    exits = [slot.exit.cause for member in client.group(group.id).members for slot in member.slots if slot.exit]
    assert exits == ["agent_lost", "agent_lost"]


def test_a_host_that_left_the_description_is_gone(served: Served) -> None:
    client = served.start()
    assert [host.state for host in client.hosts().hosts] == ["UP", "UP"]
    served.end(signal.SIGUSR1)
    served.cluster.write_text(CLUSTER.replace("virtual_hosts: 2", "virtual_hosts: 1"))
    client = served.start()
    until(lambda: {h.name: h.state for h in client.hosts().hosts} == {"h": "UP", "h-0": "FENCED", "h-1": "FENCED"}, "gone")
    assert incarnations(running(client, spec()))


def test_a_second_controller_is_refused(served: Served) -> None:
    served.start()
    code, errors = served.fails()
    assert code == 6
    assert "journal_locked" in errors
    assert str(served.card["pid"]) in errors


def test_a_corrupt_journal_is_refused_and_named(served: Served) -> None:
    client = served.start()
    client.submit(spec())
    served.end()
    path = served.home / "journal.db"
    content = bytearray(path.read_bytes())
    at = content.rindex(b'"GroupSubmitted"') + 3
    content[at : at + 4] = b"XXXX"
    path.write_bytes(content)
    code, errors = served.fails()
    assert code == 7
    assert "journal_corrupt" in errors
    assert "seq" in errors
    assert path.read_bytes() == content


def test_a_full_disk_refuses_commands_and_passes(served: Served) -> None:
    client = served.start()
    group = running(client, spec())
    before = incarnations(group)
    wal = (served.home / "journal.db-wal").stat().st_size
    assert served.process is not None
    unlimited = resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, (wal, unlimited[1]))
    with pytest.raises(JournalFull):
        client.submit(spec("refused", tasks=1))
    assert httpx.get(f"{served.card['url']}/v1/readyz").json()["code"] == "not_ready"
    assert [each.name for each in client.groups().groups] == ["demo"], "it still answers what it knows"
    resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, unlimited)
    assert incarnations(running(client, spec("accepted", tasks=1))).keys() == before.keys()
    assert [each.name for each in client.groups().groups] == ["demo", "accepted"]
    assert incarnations(client.group(group.id)) == before
    assert httpx.get(f"{served.card['url']}/v1/readyz").status_code == 200


@pytest.mark.parametrize("how", ["an older copy", "an empty journal"])
def test_a_regressed_journal_is_refused_by_the_agent(served: Served, tmp_path: Path, how: str) -> None:
    client = served.start()
    served.end()
    older = tmp_path / "older.db"
    shutil.copyfile(served.home / "journal.db", older)
    client = served.start()
    group = running(client, spec())
    served.end(signal.SIGKILL)
    for name in ("journal.db", "journal.db-wal", "journal.db-shm"):
        (served.home / name).unlink(missing_ok=True)
    if how == "an older copy":
        shutil.copyfile(older, served.home / "journal.db")
    client = served.start()
    with pytest.raises(JournalRegressed, match="an older copy" if "older" in how else "another journal"):
        client.submit(spec("late"))
    ready = httpx.get(f"{served.card['url']}/v1/readyz")
    assert (ready.status_code, ready.json()["detail"].split(":")[0]) == (503, "journal_regressed")
    assert all(psutil.pid_exists(pid) for pid in pids(group)), "members run on"
    served.end(signal.SIGTERM)
    assert all(psutil.pid_exists(pid) for pid in pids(group))


def test_a_port_that_is_taken_is_said(served: Served) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = served.spawn("--port", str(taken.getsockname()[1]))
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 9
    assert "cannot listen on 127.0.0.1" in errors
    assert served.start().healthz().status == "ok", "nothing was left locked"
