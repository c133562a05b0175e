"""The agent's own children: spawning them, and reaping each by the right hand.

A task's main process stays a zombie (`keep`) until its whole tree is verified gone: while it does, neither its pid nor its
process group's number can be given to somebody else, so a signal to them cannot hit a stranger. Strays that were re-parented
to us (the agent is a subreaper) are reaped at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from gangflow.xce.hosts.proctree import read_stat


def spawn(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: str | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
    own_session: bool = False,
) -> int:
    """Start a process in its own group (or session) and return its pid. Raises OSError when it cannot be started.

    Call it from the main thread only: a parent-death signal follows the thread that forked."""
    process = subprocess.Popen(
        list(argv),
        env=dict(environment),
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        process_group=None if own_session else 0,
        start_new_session=own_session,
    )
    process.returncode = 0  # else its finaliser would wait for the pid, which `Children` does
    return process.pid


def own_children() -> list[int]:
    """The pids of our children, zombies and adopted ones included."""
    me = os.getpid()
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{me}/children").read_bytes().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
        return [pid for pid in pids if (stat := read_stat(pid)) is not None and stat[1] == me]


class Children:
    """Notices and reaps exits. One per process, in the main thread of a running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._kept: set[int] = set()
        self._expected: dict[int, asyncio.Future[int]] = {}
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)

    def close(self) -> None:
        self._loop.remove_signal_handler(signal.SIGCHLD)

    def keep(self, pid: int) -> asyncio.Future[os.waitid_result]:
        """Watch a main process: done when it ends, which leaves it a zombie until `release`."""
        self._kept.add(pid)
        ended: asyncio.Future[os.waitid_result] = self._loop.create_future()
        fd = os.pidfd_open(pid)

        def look() -> None:
            self._loop.remove_reader(fd)
            os.close(fd)
            status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            if status is not None and not ended.done():
                ended.set_result(status)

        self._loop.add_reader(fd, look)
        return ended

    def release(self, pid: int) -> None:
        """Let go of a main process that has ended."""
        if pid in self._kept:
            self._kept.discard(pid)
            os.waitpid(pid, 0)

    def expect(self, pid: int) -> asyncio.Future[int]:
        """Its exit code (negative: a signal), once it has ended. Reaped by itself."""
        done: asyncio.Future[int] = self._loop.create_future()
        self._expected[pid] = done
        return done

    def _reap(self) -> None:
        for pid in own_children():
            if pid in self._kept:
                continue
            try:
                gone, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue
            if gone and (done := self._expected.pop(pid, None)) is not None and not done.done():
                done.set_result(os.waitstatus_to_exitcode(status))
