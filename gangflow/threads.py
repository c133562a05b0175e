"""Blocking work off the event loop, without anything that goes on behind a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
    """The result of `work`, done in a thread. Cancelled meanwhile, it waits for the end of the work, undoes what came of it (in
    a thread, too), and only then lets the cancellation through."""
    doing = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await _ended(doing)
        if undo is not None and doing.exception() is None:
            made = doing.result()
            await _ended(asyncio.ensure_future(asyncio.to_thread(lambda: undo(made))))
        raise


async def _ended(task: asyncio.Task[T]) -> None:
    """Its end, however often it is cancelled; what it raised is taken note of."""
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            continue
    task.exception()
