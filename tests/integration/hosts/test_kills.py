"""No orphan after any kill: of the agent, its watchdog, whoever started it, or several of them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from gangflow.xce.core.inputs import HostUp, TaskExited
from gangflow.xce.core.plan import Cause
from gangflow.xce.core.state import TaskKey
from gangflow.xce.hosts.link import Position
from gangflow.xce.hosts.settings import AgentOptions
from tests.integration.hosts.world import World, alive, control_groups, until

ESCAPE = "setsid sh -c 'trap \"\" TERM HUP; echo up; while :; do sleep 0.1; done' & setsid sleep 60 & exec sleep 60"
QUICK = AgentOptions(fence_ms=1_500)


async def escaped(world: World) -> TaskKey:
    """A task with processes in sessions of their own."""
    key = await world.shell(ESCAPE)
    await world.output(key, "up")
    await until(lambda: len({each.session for each in world.marked(key)}) >= 3)
    return key


async def recorded(world: World) -> TaskKey:
    """Like `escaped`, and on the agent's disk."""
    key = await escaped(world)
    await until(lambda: list((world.directory / "tasks").glob("*/*/*/*/task.json")))
    return key


async def test_agent_killed() -> None:
    """Scenario 83: what ran under a killed agent is gone, and said to be, in bounded time."""
    async with World() as world:
        key = await recorded(world)
        groups = control_groups(world.agent_id)
        before = world.boot
        world.reports.clear()
        os.kill(world.agent_pid, signal.SIGKILL)
        await until(lambda: not world.marked())
        ended = await world.of(TaskExited, key)
        assert ended.cause is Cause.AGENT_LOST
        up = await world.report(HostUp, lambda each: each.boot != before)
        assert up.inventory == ()
        assert world.reports.index(ended) < world.reports.index(up)
        world.agents.add(world.agent_pid)
        await until(lambda: not set(groups) & set(control_groups(world.agent_id)))


async def test_agent_killed_with_nobody_to_start_another() -> None:
    async with World() as world:
        await escaped(world)
        pid = world.agent_pid
        await world.link.stop()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not world.marked())


async def test_agent_stopped() -> None:
    """SIGSTOP: it renews nothing and stops nothing; its watchdog takes it down with all of its tasks."""
    async with World(QUICK) as world:
        await escaped(world)
        pid = world.agent_pid
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: not world.marked())
        await until(lambda: not alive(pid))
        await until(lambda: world.link.connected and world.agent_pid != pid)
        assert "has been silent" in world.log()
        world.agents.add(world.agent_pid)


async def test_watchdog_killed_then_agent_killed() -> None:
    async with World() as world:
        await escaped(world)
        first = (await world.link.status()).watchdog
        os.kill(first, signal.SIGKILL)

        async def successor() -> int:
            while (pid := (await world.link.status()).watchdog) in (0, first):
                await asyncio.sleep(0.01)
            return pid

        second = await asyncio.wait_for(successor(), 30)
        assert alive(second)
        assert len(world.marked()) >= 3  # members did not notice
        await world.link.stop()
        os.kill(world.agents.pop(), signal.SIGKILL)
        await until(lambda: not world.marked())
        await until(lambda: not alive(second))


async def test_watchdog_stopped_is_replaced() -> None:
    async with World(QUICK) as world:
        first = (await world.link.status()).watchdog
        os.kill(first, signal.SIGSTOP)
        await until(lambda: not alive(first))
        await world.run("sleep", "60")
        assert (await world.link.status()).watchdog != first


async def test_agent_and_watchdog_killed_at_once() -> None:
    """Nobody is left to clean up: the next agent of the folder does, before it takes any order."""
    async with World() as world:
        key = await recorded(world)
        watchdog = (await world.link.status()).watchdog
        world.reports.clear()
        before = world.boot
        os.kill(watchdog, signal.SIGSTOP)  # lest it sees the agent die first
        os.kill(world.agent_pid, signal.SIGKILL)
        os.kill(watchdog, signal.SIGKILL)
        await world.report(HostUp, lambda each: each.boot != before)
        world.agents.add(world.agent_pid)
        assert not world.marked(key)
        assert (await world.of(TaskExited, key)).cause is Cause.AGENT_LOST


STARTER = """
import asyncio, sys
from pathlib import Path
from gangflow.xce.hosts.link import AgentLink, LinkCalls, Position
from gangflow.xce.core.state import HostFacts
from gangflow.xce.hosts.settings import AgentOptions

async def nothing(reports): pass

async def main():
    hosts = (HostFacts("h0", "n", port_count=8), HostFacts("h1", "n", port_count=8))
    calls = LinkCalls(nothing, lambda: Position("c1", 1, 1))
    link = AgentLink(Path(sys.argv[1]), "n", hosts, calls, AgentOptions(fence_ms=2_000))
    await link.start()
    print(link.welcome.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_whoever_started_it_killed() -> None:
    """Scenario 84: the controller dies by SIGKILL; the agent and its members run on, and the next controller finds them."""
    world = World()
    world.position = Position("c1", 2, 1)
    argv = [sys.executable, "-c", STARTER, str(world.directory)]
    starter = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    try:
        assert starter.stdout is not None
        agent = int(await starter.stdout.readline())
        async with world:
            assert world.agent_pid == agent
            key = await escaped(world)
            running = {each.key for each in world.marked(key) if each.pid in (each.group, each.session)}
            starter.kill()
            await starter.wait()
            for _ in range(10):
                await world.reconnect()
                assert world.agent_pid == agent
                up = await world.report(HostUp, lambda each: each.facts.name == "h0")
                assert up.inventory == (key,)
            assert running <= {each.key for each in world.marked(key)}
            assert not world.count(TaskExited, key)
    finally:
        if starter.returncode is None:
            starter.kill()
            await starter.wait()


async def test_agent_told_to_end_by_a_signal_stops_its_tasks() -> None:
    async with World() as world:
        await world.shell("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done")
        pid = world.agent_pid
        await world.link.stop()
        os.kill(pid, signal.SIGTERM)
        await until(lambda: not alive(pid))
        assert not world.marked()


async def test_a_cluster_inside_a_task_ends_with_it() -> None:
    """The outer task is killed: the inner cluster's agent, and its tasks in sessions of their own, go too."""
    async with World() as outer:
        inner = World()
        inner.position = Position("c1", 2, 1)
        key = await outer.run(sys.executable, "-c", STARTER, str(inner.directory))
        agent = int(await outer.output(key, "\n"))
        async with inner:
            assert inner.agent_pid == agent
            await escaped(inner)
            inner.link._may_spawn = False
            await outer.stop(key)
            assert not inner.marked()
            assert not alive(agent)
            inner.link._may_spawn = True
