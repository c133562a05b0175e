"""Watching: journal first, then live, no gap and no repeat, and slow watchers cost nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gangflow.errors import Gone
from gangflow.xce.controller import feed as feed_module
from gangflow.xce.controller.feed import Feed
from gangflow.xce.core.events import HostExcluded
from gangflow.xce.journal.record import Batch
from gangflow.xce.journal.sqlite import SqliteJournal
from gangflow.xce.journal.store import Stamped


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    opened = SqliteJournal(tmp_path / "journal.db")
    yield opened
    opened.close()


def append(journal: SqliteJournal, size: int = 1) -> list[Stamped]:
    first = journal.seq + 1
    batch = Batch(first, 1, first, (), tuple(HostExcluded("g", f"h{n}") for n in range(size)))
    journal.append(batch)
    return [Stamped(seq, first, event) for seq, event in enumerate(batch.events, first)]


async def take(stream: AsyncIterator[Stamped], count: int) -> list[int]:
    async with asyncio.timeout(20):
        return [(await anext(stream)).seq for _ in range(count)]


async def test_old_events_then_new_ones_without_a_gap(journal: SqliteJournal) -> None:
    for _ in range(5):
        append(journal, size=2)
    feed = Feed(journal)
    stream = feed.after(3)
    assert await take(stream, 4) == [4, 5, 6, 7]
    feed.publish(append(journal, size=3))
    assert await take(stream, 6) == [8, 9, 10, 11, 12, 13]
    waiting = asyncio.create_task(take(stream, 1))
    await asyncio.sleep(0)
    feed.publish(append(journal))
    assert await waiting == [14]
    feed.close()
    assert [each async for each in stream] == []


async def test_a_watcher_behind_the_ring_reads_the_journal(journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "RING", 4)
    monkeypatch.setattr(feed_module, "PAGE", 3)
    feed = Feed(journal)
    slow, fast = feed.after(0), feed.after(0)
    seen: list[int] = []
    for _ in range(40):
        feed.publish(append(journal))
        seen += await take(fast, 1)
    assert len(feed._ring) <= 8, "what a slow watcher has not read is not kept for it"
    assert await take(slow, 40) == seen == list(range(1, 41))


async def test_every_watcher_is_woken(journal: SqliteJournal) -> None:
    feed = Feed(journal)
    waiting = [asyncio.create_task(take(feed.after(0), 2)) for _ in range(50)]
    await asyncio.sleep(0)
    feed.publish(append(journal))
    await asyncio.sleep(0)
    feed.publish(append(journal))
    assert await asyncio.gather(*waiting) == [[1, 2]] * 50


async def test_a_position_that_is_not_kept_is_gone(journal: SqliteJournal) -> None:
    for _ in range(4):
        append(journal)
    journal.save_image(3, b"image", keep=1)
    journal.forget(before_ms=100)
    feed = Feed(journal)
    with pytest.raises(Gone) as caught:
        await take(feed.after(2), 1)
    assert caught.value.seq == 4, "where to list again"
    assert await take(feed.after(3), 1) == [4]


async def test_a_position_of_another_journal_is_gone(journal: SqliteJournal) -> None:
    append(journal)
    with pytest.raises(Gone, match="beyond this journal"):
        await take(Feed(journal).after(2), 1)


async def test_closing_ends_the_streams_after_all_was_seen(journal: SqliteJournal) -> None:
    feed = Feed(journal)
    feed.publish(append(journal, size=3))
    feed.close()
    assert [each.seq async for each in feed.after(0)] == [1, 2, 3]
