"""Reports on their way: numbered, in order, kept until acknowledged.

Bounded: of a task's ready and unready edges only the newest waits, and a task makes no more than one report of every other
kind.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from typing import get_args

from gangflow.xce.core.inputs import (
    TaskExited,
    TaskPrepared,
    TaskReady,
    TaskRefused,
    TaskStarted,
    TaskUnprepared,
    TaskUnready,
    TaskWarned,
)
from gangflow.xce.core.state import TaskKey

TaskReport = TaskPrepared | TaskRefused | TaskUnprepared | TaskStarted | TaskReady | TaskUnready | TaskWarned | TaskExited
TASK_REPORTS: dict[str, type] = {kind.__name__: kind for kind in get_args(TaskReport)}
_EDGES = (TaskReady, TaskUnready)
_SLACK = 64
"""Numbers of overtaken edges that are kept at least: below this it is not worth while to make the list anew."""


class Outbox:
    """What the controller has not yet confirmed. `on_acknowledged` hears of every report that it has."""

    def __init__(self, on_acknowledged: Callable[[TaskReport], None] = lambda report: None) -> None:
        self._pending: dict[int, TaskReport] = {}
        self._numbers: list[int] = []
        """Of what is pending, in order; also of edges that were overtaken, until there are too many of those."""
        self._of_task: dict[TaskKey, list[int]] = {}
        """The few that are pending of each task: however much there is to say, a report is added in the same time."""
        self._last = 0
        self._changed = asyncio.Event()
        self._on_acknowledged = on_acknowledged

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def last(self) -> int:
        """The number of the newest report; 0 if there was none."""
        return self._last

    def add(self, report: TaskReport) -> None:
        """Number a report and keep it. A repetition of one that waits already is dropped."""
        mine = self._of_task.setdefault(report.task, [])
        if any(self._pending[number] == report for number in mine):
            return
        if isinstance(report, _EDGES):
            for number in [number for number in mine if isinstance(self._pending[number], _EDGES)]:
                mine.remove(number)
                del self._pending[number]
        self._last += 1
        self._pending[self._last] = report
        self._numbers.append(self._last)
        mine.append(self._last)
        if len(self._numbers) > 2 * len(self._pending) + _SLACK:
            self._numbers = list(self._pending)
        self._changed.set()

    def after(self, number: int, limit: int) -> list[tuple[int, TaskReport]]:
        """The first reports with a higher number, in order."""
        found: list[tuple[int, TaskReport]] = []
        for place in range(bisect_right(self._numbers, number), len(self._numbers)):
            report = self._pending.get(self._numbers[place])
            if report is not None:
                found.append((self._numbers[place], report))
                if len(found) == limit:
                    break
        return found

    def acknowledge(self, upto: int) -> None:
        """Everything up to this number is durable at the controller."""
        count = bisect_right(self._numbers, upto)
        done, self._numbers = self._numbers[:count], self._numbers[count:]
        for number in done:
            report = self._pending.pop(number, None)
            if report is None:
                continue
            mine = self._of_task[report.task]
            mine.remove(number)
            if not mine:
                del self._of_task[report.task]
            self._on_acknowledged(report)
        self._changed.set()

    async def next_after(self, number: int, limit: int) -> list[tuple[int, TaskReport]]:
        """Like `after`, but waits until there is one. For one reader at a time."""
        while True:
            self._changed.clear()
            if batch := self.after(number, limit):
                return batch
            await self._changed.wait()
