"""Logs stay within their bound and keep their offsets; port pools are nobody else's."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

from gangflow.xce.core.inputs import HostUp, TaskExited
from gangflow.xce.hosts.portpool import ephemeral_range
from gangflow.xce.hosts.settings import AgentOptions
from tests.integration.hosts.world import World, until


def pools(world: World) -> list[set[int]]:
    return [
        set(range(each.facts.port_first, each.facts.port_first + each.facts.port_count))
        for each in world.reports
        if isinstance(each, HostUp)
    ]


async def test_a_long_log_is_bounded_and_read_by_offset_while_it_grows() -> None:
    limit = 20_000
    async with World(AgentOptions(fence_ms=2_000, log_bytes=limit)) as world:
        lines = "i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done; echo half"
        script = f"{lines}; while [ ! -e go ]; do sleep 0.02; done; echo end"
        key = await world.shell(script)
        folder = next((world.directory / "tasks").glob(f"g1/m-{key.index}/1/0"))
        await until(lambda: (folder / "stdout.1").exists() and (folder / "stdout").stat().st_size <= limit)
        chunk = await world.link.read_log(key, "stdout", -5, 100)
        assert chunk.text == "half\n"
        assert not chunk.ended
        total = chunk.next_offset
        assert total == sum(len(f"line {n}\n") for n in range(5000)) + 5
        (folder / "go").touch()
        await world.of(TaskExited, key)
        chunk = await world.link.read_log(key, "stdout", total, 100)
        assert (chunk.text, chunk.offset, chunk.ended) == ("end\n", total, True)
        first = await world.link.read_log(key, "stdout", 0, 100)  # rotated away: what is kept begins later
        assert first.offset > 0
        assert sum(path.stat().st_size for path in folder.glob("stdout*")) <= 3 * limit


async def test_the_logs_of_every_incarnation_are_kept_apart() -> None:
    async with World() as world:
        key = await world.shell("echo one")
        await world.of(TaskExited, key)
        second = await world.shell("echo two", key=replace(key, incarnation=2))
        await world.of(TaskExited, second)
        assert (await world.link.read_log(key, "stdout", 0, 100)).text == "one\n"
        assert (await world.link.read_log(second, "stdout", 0, 100)).text == "two\n"
        assert (await world.link.read_log(second, "stderr", 0, 100)).text == ""
        for wrong in (replace(key, incarnation=3), replace(key, member="../x")):
            try:
                await world.link.read_log(wrong, "stdout", 0, 100)
            except FileNotFoundError:
                continue
            raise AssertionError("there is no such log")


async def test_two_clusters_and_two_hosts_never_share_a_port() -> None:
    async with World() as one, World() as two:
        mine, theirs = pools(one), pools(two)
        every = mine + theirs
        assert [len(pool) for pool in every] == [8, 8, 8, 8]
        assert len(set().union(*every)) == 32
        low, high = ephemeral_range()
        assert not any(low <= port <= high for pool in every for port in pool)


async def test_an_agent_that_starts_again_has_the_same_ports() -> None:
    async with World() as one, World() as two:
        before = pools(two)
        os.kill(one.agent_pid, signal.SIGKILL)
        os.kill(two.agent_pid, signal.SIGKILL)
        two.reports.clear()
        async with asyncio.timeout(30):
            while len(pools(two)) < 2:
                await two.report(HostUp)
                await asyncio.sleep(0)
        assert pools(two) == before
        two.agents.add(two.agent_pid)
        await until(lambda: one.link.connected)
        one.agents.add(one.agent_pid)
