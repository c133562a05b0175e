"""The fence: an agent that nobody renews kills what it runs, since others may take its place; a mere absence of the controller
trips nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gangflow.xce.core.effects import Start
from gangflow.xce.core.inputs import HostUp, TaskExited
from gangflow.xce.core.plan import Cause
from gangflow.xce.hosts import wire
from gangflow.xce.hosts.settings import AgentOptions
from tests.integration.hosts.world import World, until

LEASED = AgentOptions(lease_ms=500, fence_ms=500)


async def test_not_renewed_it_kills_everything_and_voids_what_was_prepared() -> None:
    async with World(LEASED, renew=False) as world:
        key, waiting = await world.run("sleep", "60"), await world.prepare("sleep", "60")
        before = world.boot
        ended = await world.of(TaskExited, key)
        assert ended.cause is Cause.HOST_LOST
        assert not world.marked()
        up = await world.report(HostUp, lambda each: each.boot != before)
        assert up.inventory == ()
        await world.link.deliver([Start(waiting, "h0", before)])
        await world.link.deliver([Start(waiting, "h0", up.boot)])
        assert (await world.of(TaskExited, waiting)).cause is Cause.START_FAILED
        assert not world.marked()


@pytest.fixture
async def renewer() -> AsyncIterator[object]:
    """Somebody else than the controller who renews an agent: a wrapper that knows the node to be a member."""
    tasks: list[asyncio.Task[None]] = []

    def renew(world: World, count: list[int]) -> None:
        async def work() -> None:
            reader, writer = await wire.connect(world.directory / "agent.sock")
            try:
                while True:
                    writer.write(wire.line("renew", 1))
                    assert b"renewed" in await reader.readline()
                    count[0] += 1
                    await asyncio.sleep(0.1)
            finally:
                writer.close()

        tasks.append(asyncio.ensure_future(work()))

    yield renew
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_whoever_knows_that_the_node_is_a_member_may_renew(renewer) -> None:  # type: ignore[no-untyped-def]
    async with World(LEASED, renew=False) as world:
        count = [0]
        renewer(world, count)
        key = await world.run("sleep", "60")
        await world.link.stop()  # the controller is away
        await until(lambda: count[0] > 30)  # three times the lease and the fence
        assert world.marked(key)
        await world.reconnect()
        up = await world.report(HostUp, lambda each: each.facts.name == "h0")
        assert up.inventory == (key,)


async def test_without_a_lease_an_absent_controller_trips_nothing() -> None:
    async with World(AgentOptions(lease_ms=0, fence_ms=1_000)) as world:
        key = await world.run("sleep", "60")
        started = [each.key for each in await until(lambda: world.marked(key))]
        await world.link.stop()
        watchdog_beats = asyncio.get_running_loop().time() + 2.5
        await until(lambda: asyncio.get_running_loop().time() > watchdog_beats)
        assert [each.key for each in world.marked(key)] == started
