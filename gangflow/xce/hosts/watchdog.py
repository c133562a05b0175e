"""A process beside the agent that takes every marked tree down when the agent is gone, stopped or stuck.

`python -m gangflow.xce.hosts.watchdog`, started by the agent in a session of its own, with one end of a socket pair as its
stdin: the agent sends a byte a second, the watchdog sends it back. It has no task's mark itself. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

from gangflow.xce.hosts import cgroups, marks
from gangflow.xce.hosts.proctree import PidStart, Scanner, belonging, kill

GOODBYE = b"q"
"""The agent ends in good order: nothing is left to take down."""
SWEEP_S = 60.0
"""A sweep gives up after this long: what is left then is stuck in the kernel."""


class Silence:
    """How long the agent has been silent.

    With a lease, time is the boot-time clock's: after the machine slept, others may have taken over. Without one, a pause of
    the whole machine (a closed laptop) must not count, so no gap between two looks counts for more than two beats."""

    def __init__(self, now: float, beat_s: float, *, boottime: bool) -> None:
        self._beat_s = beat_s
        self._boottime = boottime
        self._looked = now
        self.seconds = 0.0

    def look(self, now: float, heard: bool) -> float:
        gap = now - self._looked
        self._looked = now
        self.seconds = 0.0 if heard else self.seconds + (gap if self._boottime else min(gap, 2 * self._beat_s))
        return self.seconds


def sweep(prefix: str, group: str) -> int:
    """Kill every process whose mark begins so, and all their descendants; the number of kills."""
    scanner = Scanner()
    known: set[PidStart] = set()
    deadline = time.monotonic() + SWEEP_S
    kills = empty = 0
    while empty < 2 and time.monotonic() < deadline:
        members: list[int] = []
        if group:
            box = cgroups.TaskGroup(Path(group))
            members = box.processes()
            box.kill()
        left = belonging(scanner.scan(), lambda mark: mark.startswith(prefix), known=known, members=members)
        known |= {process.key for process in left.values()}
        for process in left.values():
            kill(process)
            kills += 1
        empty = 0 if left else empty + 1
        time.sleep(0.01)  # a process in the middle of an exec shows no environment for a moment
    if group:
        cgroups.remove(Path(group), patience_s=1.0)
    return kills


def watch(agent: int, beats: socket.socket, fence_s: float, beat_s: float, *, boottime: bool) -> str:
    """Wait until the agent needs a successor's work done; why, or empty after a goodbye."""
    clock = time.CLOCK_BOOTTIME if boottime else time.CLOCK_MONOTONIC
    poller = select.poll()
    poller.register(agent, select.POLLIN)
    poller.register(beats, select.POLLIN)
    silence = Silence(time.clock_gettime(clock), beat_s, boottime=boottime)
    beats.setblocking(False)
    while True:
        ready = {fd for fd, _ in poller.poll(beat_s * 1000)}
        heard = b""
        closed = False
        try:
            while part := beats.recv(4096):
                heard += part
            closed = True
        except BlockingIOError:
            pass
        except OSError:  # reset: it was closed with our echo unread
            closed = True
        if GOODBYE in heard:
            return ""
        if closed or agent in ready:
            return "is gone"
        if heard:
            try:
                beats.send(b".")
            except OSError:
                pass
        if silence.look(time.clock_gettime(clock), bool(heard)) > fence_s:
            return f"has been silent for {silence.seconds:.1f} s"


def main() -> int:
    """The command line of `python -m gangflow.xce.hosts.watchdog`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--agent", required=True)
    parser.add_argument("--life", required=True)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--fence-ms", type=int, required=True)
    parser.add_argument("--beat-ms", type=int, required=True)
    parser.add_argument("--boottime", action="store_true")
    parser.add_argument("--group", default="")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with the agent, not before
    prefix = marks.life_prefix(options.agent, options.life)
    beats = socket.socket(fileno=os.dup(0))
    try:
        pidfd = os.pidfd_open(options.pid)
        why = "is gone"
        if os.getppid() == options.pid:
            why = watch(pidfd, beats, options.fence_ms / 1000, options.beat_ms / 1000, boottime=options.boottime)
    except ProcessLookupError:
        pidfd, why = -1, "is gone"
    if not why:
        return 0
    if pidfd >= 0:
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)  # a stopped one must not wake up and start things
        except ProcessLookupError:
            pass
    kills = sweep(prefix, options.group)
    sys.stderr.write(f"watchdog: agent {options.pid} {why}; killed {kills} processes of its tasks\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
