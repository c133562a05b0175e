"""What the tests of gangflow in Ray share: processes by their marks, waits with a deadline, groups that end when told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from gangflow.home import Home
from gangflow.xce.rest.client import Client
from gangflow.xce.rest.messages import EventView
from gangflow.xce.rest.schema import GroupView

T = TypeVar("T")
DEADLINE_S = 100.0
MARK = "GANGFLOW_TEST_RUN"
"""In the environment of whatever these tests start, however far down: nothing with it may be left."""
RECOVER = {"action": "restart_member", "max_restarts": 5, "backoff": {"initial": "100ms", "factor": 1, "max": "100ms"}}


def until(condition: Callable[[], T], what: str) -> T:
    """The first true value of a condition; fails after a deadline."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {DEADLINE_S:g} s: {what}")


def processes(variable: str, value: str, words: str = "") -> list[psutil.Process]:
    """Live processes with this in their environment, and these words in their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get(variable) == value and words in " ".join(process.cmdline()):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def shown(found: list[psutil.Process]) -> str:
    """For the message of an assertion."""
    lines = []
    for process in found:
        try:
            lines.append(f"{process.pid} {' '.join(process.cmdline())[:160]}")
        except psutil.Error:
            continue
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Program:
    """`gangflow …` as a process."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, *arguments: str, module: str = "gangflow.cli.main", **environment: str) -> Program:
        return cls(
            subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, **environment},
            )
        )

    def line(self, words: str) -> str:
        """The next line of its output with these words."""
        assert self.process.stdout is not None
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if words in line:
                return line
        raise AssertionError(f"it ended with {self.process.wait()} and never said {words!r}:\n{''.join(seen)}")

    def end(self, number: int = 0) -> tuple[int, str]:
        """Its exit code and what it said last, after a signal if one is given."""
        if number:
            self.process.send_signal(number)
        try:
            said, _ = self.process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            said, _ = self.process.communicate()
            raise AssertionError(f"it did not end:\n{said}") from None
        return self.process.returncode, said


def gangflow(*arguments: str, expect: int = 0, **environment: str) -> str:
    """Run `gangflow …` to its end; its output."""
    code, said = Program.start(*arguments, **environment).end()
    assert code == expect, f"gangflow {' '.join(arguments)} ended with {code}:\n{said}"
    return said


@dataclass(frozen=True, slots=True)
class Kept:
    """A cluster in Ray, by its home."""

    home: Home

    @property
    def path(self) -> Path:
        return self.home.path

    @property
    def client(self) -> Client:
        return self.home.client()

    @property
    def folder(self) -> str:
        """Of its Ray."""
        return str(json.loads((self.path / "ray.json").read_text())["folder"])

    @property
    def controller(self) -> int:
        return int(json.loads((self.path / "controller.json").read_text())["pid"])

    def actor(self, kind: str) -> int:
        """The process of its one actor of a class."""

        def found() -> list[psutil.Process]:
            return processes("GANGFLOW_RAY", self.folder, f"ray::{kind}")

        return int(until(found, f"a process of {kind}")[0].pid)

    @property
    def agent(self) -> int:
        (lock,) = (self.path / "nodes").glob("*/agent.lock")
        return int(lock.read_text())


def group(name: str, done: Path, *members: str, **more: Any) -> dict[str, Any]:
    """A group of jobs that run until a file is there, and then succeed."""
    job = {
        "command": ["sh", "-c", 'until [ -e "$DONE" ]; do sleep 0.05; done'],
        "environment": {"DONE": str(done)},
        "resources": {"cpu": "100m"},
        "termination_grace": "1s",
        "on_failure": [{"match": {"cause": ["agent_lost", "host_lost", "signal"]}, **RECOVER}],
    }
    return {"name": name, "members": {member: {"job": job} for member in members or ("a", "b")}, **more}


def state(client: Client, name: str, wanted: str) -> GroupView:
    """Wait until a group is in a state."""

    def there() -> GroupView | None:
        view = client.group(name)
        assert not view.terminal or view.state == wanted, f"{name} ended {view.state}: {view.cause} {view.message}"
        return view if view.state == wanted else None

    return until(there, f"{name} {wanted}")  # type: ignore[return-value]


@contextmanager
def running(client: Client, document: Mapping[str, Any]) -> Iterator[GroupView]:
    """A group that runs; cancelled on the way out if it still does."""
    submitted = client.submit(dict(document))
    try:
        yield state(client, submitted.id, "RUNNING")
    finally:
        if not client.group(submitted.id).terminal:
            client.cancel(submitted.id)
            until(lambda: client.group(submitted.id).terminal, "cancelled")


def incarnations(view: GroupView) -> dict[str, tuple[int, tuple[int, ...]]]:
    """slot → (incarnation, processes)."""
    return {
        f"{slot.member}[{slot.index}]": (slot.incarnation, tuple(task.pid for task in slot.tasks))
        for member in view.members
        for slot in member.slots
    }


def records(client: Client, view: GroupView | None = None, after: int = 0) -> list[EventView]:
    """Durable records so far, of a group if one is given."""
    now = client.groups().seq
    found = []
    for event in client.events(after=after, group=view.id if view else "", until=now):
        found.append(event)
    return found


def kill(pid: int) -> None:
    """SIGKILL, and wait until it is gone."""
    process = psutil.Process(pid)
    process.send_signal(signal.SIGKILL)
    until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, f"{pid} gone")
