"""A control group (v2) per task, where this user may make them: the exact answer to "who belongs to it" and "is it empty".

Everything works without; then marks, groups and descent decide alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path


def own_group() -> Path | None:
    """Our own v2 control group; None where there is no such hierarchy."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        place = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    root = next((Path(fields[1]) for fields in mounts if len(fields) > 2 and fields[2] == "cgroup2"), None)
    return None if root is None else root / place.lstrip("/")


class TaskGroup:
    """One task's control group."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def take(self, pids: Sequence[int]) -> None:
        """Move processes in; what they fork from then on is born inside. One that has ended is passed over."""
        for pid in pids:
            _write(self.path / "cgroup.procs", str(pid))

    def processes(self) -> list[int]:
        """Everything in it and below it."""
        found: list[int] = []
        for folder, _, _ in os.walk(self.path):
            try:
                found += [int(pid) for pid in Path(folder, "cgroup.procs").read_text().split()]
            except (OSError, ValueError):
                continue
        return found

    def kill(self) -> None:
        """SIGKILL to everything in it, at one stroke (Linux 5.14)."""
        _write(self.path / "cgroup.kill", "1")

    def oom_killed(self) -> bool:
        """Whether the OOM killer struck inside; only known where the memory controller is delegated."""
        try:
            lines = (self.path / "memory.events").read_text().splitlines()
        except OSError:
            return False
        return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in lines)

    def remove(self) -> None:
        """Remove it if it is empty."""
        remove(self.path)


class AgentGroup:
    """The parent of one agent life's task groups."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._next = 0

    @classmethod
    def make(cls, agent: str, life: str) -> AgentGroup:
        """Make it beside the agent itself, and clear away what former lives left; without rights, one that makes nothing."""
        own = own_group()
        if own is None:
            return cls(None)
        path = own / f"gangflow-{agent}.{life}"
        try:
            for former in own.glob(f"gangflow-{agent}.*"):
                _write(former / "cgroup.kill", "1")
                remove(former, patience_s=1.0)
            path.mkdir()
            if not (path / "cgroup.procs").exists():
                raise OSError("no control group file system")
        except OSError:
            return cls(None)
        return cls(path)

    def task(self) -> TaskGroup | None:
        """A new group for one task."""
        if self.path is None:
            return None
        self._next += 1
        path = self.path / str(self._next)
        try:
            path.mkdir()
        except OSError:
            return None
        return TaskGroup(path)

    def remove(self) -> None:
        if self.path is not None:
            remove(self.path, patience_s=1.0)


def remove(path: Path, patience_s: float = 0.0) -> None:
    """Remove a control group and those below it, once they are empty."""
    until = time.monotonic() + patience_s
    while True:
        try:
            for folder, _, _ in os.walk(path, topdown=False):
                os.rmdir(folder)
        except OSError:
            if time.monotonic() < until:
                time.sleep(0.01)  # a killed process leaves its group a moment later
                continue
        return


def _write(path: Path, text: str) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, text.encode())
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
