"""Events for watchers: from the journal first, then live, without a gap and without a queue for each.

A watcher is nothing but a position. The newest events are in a ring that all share; who has fallen behind it reads the journal.
So a slow watcher costs no memory, and is told `Gone` only when the records that it needs are not kept any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from gangflow.errors import Gone
from gangflow.xce.controller.options import PAGE, RING
from gangflow.xce.journal.store import Journal, Stamped


class Feed:
    """The events of one journal, for any number of watchers."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._ring: list[Stamped] = []
        self._seq = journal.seq
        self._changed = asyncio.Event()
        self._closed = False

    def publish(self, events: Sequence[Stamped]) -> None:
        """Durable events, in order."""
        self._ring.extend(events)
        if len(self._ring) > 2 * RING:  # trimmed seldom, so that each event is moved at most once
            del self._ring[:-RING]
        self._seq = events[-1].seq
        self._wake()

    def close(self) -> None:
        """Ends every watcher's stream."""
        self._closed = True
        self._wake()

    async def after(self, seq: int) -> AsyncIterator[Stamped]:
        """Every event after `seq`, for ever. Raises Gone when it lies before the horizon or beyond the journal's end."""
        if seq > self._seq:
            raise Gone(f"seq {seq} is beyond this journal, which ends at {self._seq}", seq=self._seq)
        while True:
            changed = self._changed
            for stamped in await self._page(seq):
                yield stamped
                seq = stamped.seq
            if seq < self._seq:
                continue
            if self._closed:
                return
            await changed.wait()

    async def _page(self, seq: int) -> Sequence[Stamped]:
        if self._ring and self._ring[0].seq <= seq + 1:
            start = seq + 1 - self._ring[0].seq
            return self._ring[start : start + PAGE]
        if seq >= self._seq:
            return ()
        if seq < self._journal.horizon:
            raise Gone(f"events up to {self._journal.horizon} are not kept any more", seq=self._seq)
        return await asyncio.to_thread(self._journal.events, seq, PAGE)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
