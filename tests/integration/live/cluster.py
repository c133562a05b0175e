"""A cluster of real processes without Ray for a test, and a look at what of it runs."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import gangflow as gf
from gangflow.clusters import start_cluster
from gangflow.home import ROOT_VARIABLE, Home, new_home
from gangflow.runs import Run, submit
from gangflow.specs.cluster import ClusterSpec, HostSpec
from gangflow.xce.rest.messages import EventView
from gangflow.xce.rest.schema import GroupView

T = TypeVar("T")
DEADLINE_S = 90.0
TWO_HOSTS = ClusterSpec(hosts=[HostSpec("h[0-1]", cpu=2, mem="2GiB", gpus=1)])


def until(condition: Callable[[], T], what: Callable[[], object] | str) -> T:
    """The first true value of a condition; fails after a deadline and says what was waited for."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {DEADLINE_S:g} s: {what if isinstance(what, str) else what()}")


@dataclass(frozen=True, slots=True)
class Process:
    """One process that belongs to a cluster."""

    pid: int
    command: str
    environment: Mapping[str, str]

    @property
    def module(self) -> str:
        """The command line without the interpreter: `-m gangflow.xce.serve --home …`."""
        return self.command.partition(" ")[2]


def processes(text: str | Path) -> list[Process]:
    """Every process, but this one, whose command line or environment has a text in it: a cluster's folder, or its URL."""
    wanted = os.fsencode(text)
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if pid != os.getpid() and (wanted in command or wanted in environ):
            pairs = (part.partition("=") for part in environ.decode(errors="replace").split("\0") if "=" in part)
            words = command.decode(errors="replace").replace("\0", " ").strip()
            found.append(Process(pid, words, {name: value for name, _, value in pairs}))
    return found


class OwnRoot:
    """`GANGFLOW_ROOT` as a folder of a test's own. Short: agents' sockets lie below it, and such paths are at most 107 long."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="gf-", dir="/tmp"))
        self._before = os.environ.get(ROOT_VARIABLE)
        os.environ[ROOT_VARIABLE] = str(self.path)

    def close(self) -> None:
        """Whatever was started below it must be gone by now, or shortly; what is not fails the test, and is killed."""
        if self._before is None:
            del os.environ[ROOT_VARIABLE]
        else:
            os.environ[ROOT_VARIABLE] = self._before
        try:
            until(lambda: not processes(self.path), lambda: [each.command for each in processes(self.path)])
        finally:
            for each in processes(self.path):
                os.kill(each.pid, signal.SIGKILL)
            if not os.environ.get("KEEPDBG"):
                shutil.rmtree(self.path, ignore_errors=True)


class Live:
    """A cluster under a supervisor, with its own journal, agent and ports."""

    def __init__(self, spec: ClusterSpec = TWO_HOSTS, name: str = "live") -> None:
        self.home: Home = new_home(name)
        self.cluster = start_cluster(self.home, spec, runtime="local")
        self.client = self.cluster.client()
        self._runs: list[Run] = []

    def submit(self, name: str, members: Mapping[str, Any], **more: Any) -> Run:
        """Submit a group, with its coordinator if it names one."""
        return self.run(gf.CoStartGroup(name, members=members, **more))

    def run(self, group: gf.CoStartGroup) -> Run:
        """Submit a group that is made already."""
        self._runs.append(submit(group, self.cluster))
        return self._runs[-1]

    def controller(self) -> int:
        """The pid of the controller that answers."""
        return self._pid("gangflow.xce.serve")

    def supervisor(self) -> int:
        """The pid of the controller's supervisor."""
        return self._pid("gangflow.supervise")

    def agent(self) -> int:
        """The pid of the host agent."""
        return self._pid("gangflow.xce.hosts.agent")

    def coordinators(self, group: str) -> list[int]:
        """The pids of a group's coordinators, supervisors left out."""
        what = f"-m gangflow.coordinators.run --group {group}"
        return [each.pid for each in processes(self.home.url) if each.module == what]

    def supervisors_of(self, group: str) -> list[int]:
        """The pids of the supervisors of a group's coordinators."""
        found = [each for each in processes(self.home.url) if each.module.startswith("-m gangflow.supervise ")]
        return [each.pid for each in found if each.command.endswith(f"gangflow.coordinators.run --group {group}")]

    def _pid(self, module: str) -> int:
        def look() -> int:
            return next((each.pid for each in processes(self.home.path) if each.module.startswith(f"-m {module} ")), 0)

        return until(look, module)

    def events(self, run: Run, kind: str = "") -> list[EventView]:
        """A group's records so far, of one type."""
        last = run.status().seq
        return [event for event in run.client.events(0, run.id, last) if kind in {"", event.type}]

    def clear(self) -> None:
        """Cancel whatever a test left; it must be gone afterwards."""
        left = [view.id for view in self.client.groups(["live"]).groups]
        for group in left:
            self.client.cancel(group)
        for group in left:
            until(lambda group=group: self.client.group(group).terminal, lambda group=group: self.client.group(group))
        while self._runs:
            self._runs.pop().close()

    def stop(self) -> None:
        """End it."""
        self.client.close()
        self.cluster.stop()


def state(run: Run, wanted: str) -> GroupView:
    """Wait until a group is in a state. Fails at once when it has ended in another one."""

    def look() -> GroupView | None:
        view = run.status()
        assert not view.terminal or view.state == wanted, f"{view.state}: {view.cause} {view.message}"
        return view if view.state == wanted else None

    found = until(look, lambda: run.status())
    assert found is not None
    return found


def ended(run: Run) -> GroupView:
    """Wait until a group has ended, in whatever way."""
    until(lambda: run.status().terminal, lambda: run.status())
    return run.status()


def incarnations(view: GroupView) -> dict[str, tuple[int, ...]]:
    """Member → the incarnations of its slots."""
    return {member.name: tuple(slot.incarnation for slot in member.slots) for member in view.members}


def step(run: Run) -> int:
    """The newest step that the actor's heartbeats said; 0 when nothing was said."""
    return max((int(beat.body.get("step") or 0) for beat in run.client.beats(run.id).heartbeats), default=0)
