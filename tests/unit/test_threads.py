"""Blocking work beside an event loop: nothing of it goes on behind a cancellation."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gangflow.threads import in_thread

DEADLINE_S = 20.0


class Work:
    """Blocking work that a test lets go on."""

    def __init__(self) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        self.undone: list[str] = []
        self.fails = False

    def __call__(self) -> str:
        self.began.set()
        assert self.go_on.wait(DEADLINE_S)
        if self.fails:
            raise OSError("disk full")
        return "made"


async def begun(work: Work) -> asyncio.Task[str]:
    task = asyncio.create_task(in_thread(work, undo=work.undone.append))
    await asyncio.to_thread(work.began.wait, DEADLINE_S)
    return task


async def test_its_result_and_its_error_are_the_callers() -> None:
    work = Work()
    work.go_on.set()
    assert await in_thread(work) == "made"
    work.fails = True
    with pytest.raises(OSError, match="disk full"):
        await in_thread(work)
    assert work.undone == []


@pytest.mark.parametrize("times", [1, 3])
async def test_a_cancellation_waits_for_the_end_and_undoes_it(times: int) -> None:
    work = Work()
    task = await begun(work)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    work.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.undone == ["made"]


async def test_what_fails_behind_a_cancellation_has_nothing_to_undo() -> None:
    work = Work()
    work.fails = True
    task = await begun(work)
    task.cancel()
    work.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.undone == []
