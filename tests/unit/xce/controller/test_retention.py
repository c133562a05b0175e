"""What a controller forgets of its journal by itself, and what it keeps whatever it is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gangflow.errors import Gone
from gangflow.specs.cluster import ClusterSpec, HostSpec
from gangflow.xce.cluster_home import ClusterHome
from gangflow.xce.controller.feed import Feed
from gangflow.xce.core.inputs import PutValue
from gangflow.xce.journal.recovery import recover
from gangflow.xce.journal.replay import replay
from gangflow.xce.journal.sqlite_records import SqliteRecords
from gangflow.xce.runtime import Runtime
from tests.unit.xce.controller.fakes import until
from tests.unit.xce.controller.worlds import World, world


async def fill(here: World, count: int = 24) -> None:
    """So many batches, a second apart, with an image each four."""
    group = await here.submit()
    for number in range(count):
        here.clock.value += 1_000
        await here.controller.command(PutValue(group, "head", "x" * 500, number))
        await until(lambda: not here.controller._saving)


def whole(here: World) -> None:
    """The journal recovers what the controller knows, and replays from where it can begin."""
    records = SqliteRecords(here.path)
    try:
        assert recover(records).state == here.state
        found = replay(records)
        assert (found.divergence, found.state) == (None, here.state)
        assert found.began_after >= records.horizon
    finally:
        records.close()


async def test_records_go_when_they_are_old_and_an_image_covers_them(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.options = replace(here.options, image_every=4, retention_ms=5_000)
        await here.start()
        await fill(here)
        horizon = here.controller.horizon
        assert 0 < horizon <= here.journal.image_seqs()[-1], "no further than the older image"
        feed = Feed(here.journal)  # without the newest events in memory, as a controller that has just started
        with pytest.raises(Gone):
            await anext(feed.after(horizon - 1))
        assert (await anext(feed.after(horizon))).seq == horizon + 1
        feed.close()
        whole(here)


async def test_records_go_when_there_are_too_many_bytes_of_them(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.options = replace(here.options, image_every=4, retention_bytes=1)
        await here.start()
        await fill(here)
        assert 0 < here.controller.horizon <= here.journal.image_seqs()[-1]
        whole(here)


async def test_without_a_limit_that_is_reached_everything_stays(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.options = replace(here.options, image_every=4, retention_bytes=10**9)
        await here.start()
        await fill(here)
        assert here.controller.horizon == 0
        whole(here)


def test_the_description_of_the_cluster_says_how_much_is_kept(tmp_path: Path) -> None:
    cluster = ClusterSpec(hosts=[HostSpec("h", cpu=1, mem=100, gpus=0)], journal={"keep": "2h", "keep_size": "3MiB"})
    runtime = Runtime(ClusterHome(tmp_path / "home"), cluster)
    options = runtime.controller.options
    assert (options.retention_ms, options.retention_bytes) == (7_200_000, 3 * 2**20)
    runtime.controller._journal.close()
    runtime._socket.close()
