"""Which processes belong to a task: a look at /proc.

A process belongs to a task when it carries the task's mark, is in its process group or session, descends from such a one, or
sits in its control group. The mark finds what `setsid` and re-parenting hide; descent and groups find what overwrote its own
environment (setproctitle does). Whatever was once seen to belong stays with the task (`known`), whatever it does later.

Standard library only: the watchdog imports this.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gangflow.xce.hosts import marks

PidStart = tuple[int, int]
"""A pid with its start time in clock ticks: pids are reused, the pair is not."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process, as /proc showed it."""

    pid: int
    start: int
    parent: int
    group: int
    session: int
    state: str
    """`Z` is a zombie: it holds nothing but its pid."""
    marks: tuple[str, ...] = ()

    @property
    def key(self) -> PidStart:
        return (self.pid, self.start)


def read_stat(pid: int) -> tuple[str, int, int, int, int] | None:
    """(state, parent, process group, session, start time) of a process; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            raw = file.read(1024)
    except OSError:
        return None
    fields = raw[raw.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19])


def read_marks(pid: int) -> tuple[str, ...]:
    """The marks in a process's environment; empty when it has none or may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return marks.in_environment(file.read())
    except OSError:
        return ()


class Scanner:
    """Looks at every process, and remembers marks: a process that drops its environment by exec keeps what it was."""

    def __init__(self) -> None:
        self._seen: dict[PidStart, tuple[str, ...]] = {}

    def scan(self) -> dict[int, Process]:
        """All processes, by pid; about 40 µs each."""
        found: dict[int, Process] = {}
        seen: dict[PidStart, tuple[str, ...]] = {}
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            pid = int(name)
            stat = read_stat(pid)
            if stat is None:
                continue
            state, parent, group, session, start = stat
            own = self._seen.get((pid, start)) or (() if state == "Z" else read_marks(pid))
            if own:
                seen[(pid, start)] = own
            found[pid] = Process(pid, start, parent, group, session, state, own)
        self._seen = seen
        return found


def belonging(
    processes: Mapping[int, Process],
    is_ours: Callable[[str], bool],
    *,
    leader: int = 0,
    known: Iterable[PidStart] = (),
    members: Iterable[int] = (),
) -> dict[int, Process]:
    """The processes of one task, zombies left out. `is_ours` judges a mark; `leader` is the pid of its main process (its
    process group and session bear that number); `members` are pids of its control group; `known` are those found before."""
    remembered = set(known)
    listed = set(members)
    tree: dict[int, Process] = {}
    for process in processes.values():
        if (
            any(is_ours(each) for each in process.marks)
            or process.key in remembered
            or process.pid in listed
            or (leader and leader in (process.pid, process.group, process.session))
        ):
            tree[process.pid] = process
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    queue = list(tree.values())
    while queue:
        for child in children.get(queue.pop().pid, ()):
            if child.pid not in tree:
                tree[child.pid] = child
                queue.append(child)
    return {pid: process for pid, process in tree.items() if process.state not in ("Z", "X")}


def kill(process: Process, number: int = signal.SIGKILL) -> None:
    """Signal a process unless it is gone or its pid belongs to another by now."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        stat = read_stat(process.pid)
        if stat is not None and stat[4] == process.start:
            signal.pidfd_send_signal(fd, number)
    except OSError:
        pass
    finally:
        os.close(fd)
