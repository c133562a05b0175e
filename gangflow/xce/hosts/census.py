"""Looks at /proc on behalf of everybody who waits for a tree to be gone: one look serves all who asked before it began."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from gangflow.xce.hosts.proctree import Process, Scanner


class Census:
    """Scans in a thread of its own (which never forks), so that thousands of processes do not hold up the loop."""

    def __init__(self) -> None:
        self._scanner = Scanner()
        self._thread = ThreadPoolExecutor(1, "census")
        self._next: asyncio.Future[dict[int, Process]] | None = None
        self._lock = asyncio.Lock()

    async def look(self) -> dict[int, Process]:
        """All processes, as they are at some moment after the call."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._scan())
        return await asyncio.shield(self._next)

    async def _scan(self) -> dict[int, Process]:
        async with self._lock:
            self._next = None  # who asks from here on needs a later look
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._scanner.scan)

    def close(self) -> None:
        self._thread.shutdown(wait=False)
