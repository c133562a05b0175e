"""CPU time of all that a run started, by kind of process: it says the same on a machine that others use, as the clock does not.

Processes are found by a folder of the run that their environment or command names, with what they started. They are looked at
twice a second; what a process did in a stretch of time is the difference between the looks around it.
"""

from __future__ import annotations

import bisect
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PERIOD_S = 0.5
FIND_EVERY = 10
"""Looks: so often new processes are searched for."""
KINDS = (
    ("engines", ("vllm", "VLLM", "multiprocessing.")),
    ("reward", ("lm.verifier",)),
    ("ref", ("lm.reference",)),
    ("actor", ("lm.actor", "by_hand.py")),
    ("coordinator", ("gangflow.coordinators",)),
    ("controller", ("gangflow.xce.serve",)),
    ("agent", ("gangflow.xce.hosts",)),
)
"""Kind → words of a command line."""


@dataclass
class Meter:
    """Looks at the processes of `folder` while the block runs."""

    folder: Path
    _looks: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    """(milliseconds since the epoch, CPU seconds by kind)."""

    def __enter__(self) -> Meter:
        self._end = threading.Event()
        self._known: dict[psutil.Process, str] = {}
        self._last: dict[psutil.Process, float] = {}
        self._thread = threading.Thread(target=self._run, name="cpu-meter", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def between(self, begin_ms: float, end_ms: float) -> Mapping[str, float]:
        """CPU seconds by kind from one moment to another, both within the block."""
        begin, end = self._at(begin_ms), self._at(end_ms)
        return {kind: end[kind] - begin.get(kind, 0.0) for kind in end if end[kind] > begin.get(kind, 0.0)}

    def _at(self, at_ms: float) -> dict[str, float]:
        """As if everybody had worked evenly between two looks."""
        place = bisect.bisect(self._looks, at_ms, key=lambda look: look[0])
        if not 0 < place < len(self._looks):
            return self._looks[min(place, len(self._looks) - 1)][1]
        (before_ms, before), (after_ms, after) = self._looks[place - 1], self._looks[place]
        share = (at_ms - before_ms) / (after_ms - before_ms)
        return {kind: before.get(kind, 0.0) + share * (after[kind] - before.get(kind, 0.0)) for kind in after}

    def _run(self) -> None:
        count = 0
        while not self._end.wait(PERIOD_S):
            if count % FIND_EVERY == 0:
                self._find()
            count += 1
            self._look()

    def _look(self) -> None:
        total: dict[str, float] = {}
        for process, kind in self._known.items():
            try:
                times = process.cpu_times()
                self._last[process] = times.user + times.system
            except psutil.Error:
                pass  # It has ended: what it did stays.
            total[kind] = total.get(kind, 0.0) + self._last.get(process, 0.0)
        self._looks.append((time.time_ns() / 1e6, total))

    def _find(self) -> None:
        there = {process.pid: process for process in psutil.process_iter(["ppid"]) if process.pid != os.getpid()}
        ours = {pid for pid, process in there.items() if process in self._known or self._ours(process)}
        grown = True
        while grown:
            children = {pid for pid, process in there.items() if process.info["ppid"] in ours} - ours
            ours |= children
            grown = bool(children)
        for pid in ours:
            self._known.setdefault(there[pid], _kind(there[pid]))

    def _ours(self, process: psutil.Process) -> bool:
        word = str(self.folder)
        try:
            return any(word in part for part in process.cmdline()) or any(word in value for value in process.environ().values())
        except psutil.Error:
            return False


def _kind(process: psutil.Process) -> str:
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return "other"
    return next((kind for kind, words in KINDS if any(word in line for word in words)), "other")
