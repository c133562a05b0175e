"""Reports on their way: numbered, in order, kept until acknowledged.

Bounded: of a task's ready and unready edges only the newest waits, and a task makes no more than one report of every other
kind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gangflow.xce.core.inputs import (
    TaskExited,
    TaskPrepared,
    TaskReady,
    TaskRefused,
    TaskStarted,
    TaskUnprepared,
    TaskUnready,
)

TaskReport = TaskPrepared | TaskRefused | TaskUnprepared | TaskStarted | TaskReady | TaskUnready | TaskExited
TASK_REPORTS: dict[str, type] = {
    kind.__name__: kind for kind in (TaskPrepared, TaskRefused, TaskUnprepared, TaskStarted, TaskReady, TaskUnready, TaskExited)
}
_EDGES = (TaskReady, TaskUnready)


class Outbox:
    """What the controller has not yet confirmed. `on_acknowledged` hears of every report that it has."""

    def __init__(self, on_acknowledged: Callable[[TaskReport], None] = lambda report: None) -> None:
        self._pending: dict[int, TaskReport] = {}
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
        for number, waiting in list(self._pending.items()):
            if waiting.task == report.task:
                if waiting == report:
                    return
                if isinstance(report, _EDGES) and isinstance(waiting, _EDGES):
                    del self._pending[number]
        self._last += 1
        self._pending[self._last] = report
        self._changed.set()

    def after(self, number: int, limit: int) -> list[tuple[int, TaskReport]]:
        """The first reports with a higher number, in order."""
        return [(each, report) for each, report in self._pending.items() if each > number][:limit]

    def acknowledge(self, upto: int) -> None:
        """Everything up to this number is durable at the controller."""
        for number in [each for each in self._pending if each <= upto]:
            self._on_acknowledged(self._pending.pop(number))
        self._changed.set()

    async def next_after(self, number: int, limit: int) -> list[tuple[int, TaskReport]]:
        """Like `after`, but waits until there is one. For one reader at a time."""
        while True:
            self._changed.clear()
            if batch := self.after(number, limit):
                return batch
            await self._changed.wait()
