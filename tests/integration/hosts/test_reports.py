"""Reports are kept until somebody confirmed them; who may give orders; what a restart of either side forgets (nothing)."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import msgspec
import pytest

from gangflow.errors import JournalRegressed
from gangflow.xce.core.inputs import HostUp, TaskExited, TaskStarted
from gangflow.xce.core.plan import Cause
from gangflow.xce.core.state import HostFacts, TaskKey
from gangflow.xce.hosts import wire
from gangflow.xce.hosts.link import AgentFailed, Position
from gangflow.xce.hosts.server import ORDERS
from tests.integration.hosts.world import HOSTS, World, alive, until


async def unacknowledged(world: World) -> int:
    return (await world.link.status()).unacknowledged


async def test_a_report_that_could_not_be_made_durable_comes_again() -> None:
    """Scenario 13: an obligation that nobody confirmed is not dropped, however often it fails."""
    async with World() as world:
        key = await world.run("sleep", "60")
        world.refuse_reports = True
        world.reports.clear()
        await world.link.signal(key, signal.SIGKILL)
        for _ in range(3):  # refused, hung up, connected again
            await until(lambda: not world.link.connected)
            await until(lambda: world.link.connected)
        assert not world.reports
        world.refuse_reports = False
        ended = await world.of(TaskExited, key)
        up = await world.report(HostUp)
        assert world.reports.index(ended) < world.reports.index(up)
        async with asyncio.timeout(30):
            while await unacknowledged(world):
                await asyncio.sleep(0.01)


def _record(world: World, key: TaskKey) -> bytes:
    """What the agent has on disk of a task; empty when it has forgotten it."""
    found = list((world.directory / "tasks").glob(f"{key.group}/{key.member}-{key.index}/*/*/task.json"))
    return found[0].read_bytes() if found else b""


def _noted(world: World, key: TaskKey) -> bool:
    """Whether the agent has noted how a task ended: the last thing that it does before it lets go of it."""
    return b'"code":4' in _record(world, key)


async def test_what_happens_while_nobody_listens_is_told_before_the_inventory() -> None:
    """Scenario 20: a member that ended while its controller was away is known to be gone with the first word."""
    async with World() as world:
        key, other = await world.shell("sleep 0.3; exit 4"), await world.run("sleep", "60")
        await world.link.stop()
        # Its processes are gone a moment before the agent is sure of that, and has noted how it ended.
        await until(lambda: _noted(world, key))
        await world.reconnect()
        ended = await world.of(TaskExited, key)
        assert ended.code == 4
        up = await world.report(HostUp, lambda each: each.facts.name == "h0")
        assert up.inventory == (other,)
        assert world.reports.index(ended) < world.reports.index(up)
        assert world.reports.count(ended) == 1


async def test_an_exit_survives_the_agent() -> None:
    """It ended, nobody had confirmed it, then the agent died: its successor tells how it really ended."""
    async with World() as world:
        key, other = await world.shell("sleep 0.2; echo why >&2; exit 4"), await world.run("sleep", "60")
        await world.link.stop()
        # A task younger than its record would only be missing from the successor's inventory.
        await until(lambda: _noted(world, key) and bool(_record(world, other)))
        pid = world.agent_pid if world.link.connected else next(iter(world.agents))
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not alive(pid) and not world.marked())
        await world.reconnect()
        ended = await world.of(TaskExited, key)
        assert (ended.cause, ended.code, ended.stderr_tail) == (Cause.APP_EXIT, 4, "why")
        assert (await world.of(TaskExited, other)).cause is Cause.AGENT_LOST
        # Confirmed now: a third agent has nothing to tell of them.
        async with asyncio.timeout(30):
            while await unacknowledged(world):
                await asyncio.sleep(0.01)
        await until(lambda: not _record(world, key))


async def test_another_journal_is_refused_and_members_run_on() -> None:
    """Scenario 80: only one controller drives an agent: one that is behind, or of another cluster, is told so."""
    async with World() as world:
        world.position = Position("c1", 3, 50)
        await world.reconnect()  # term 4
        key = await world.run("sleep", "60")
        before = [each.key for each in await until(lambda: world.marked(key))]
        await world.link.stop()
        for position in (Position("c2", 9, 99), Position("c1", 3, 50), Position("c1", 4, 49), Position("c1", 5, 0)):
            world.position = position
            link = world.new_link()
            with pytest.raises(JournalRegressed):
                await link.start()
        assert [each.key for each in world.marked(key)] == before
        # Also after the agent itself started anew.
        os.kill(next(iter(world.agents)), signal.SIGKILL)
        await until(lambda: not world.marked())
        link = world.new_link()
        with pytest.raises(JournalRegressed):
            await link.start()
        await link.stop()
        world.position = Position("c1", 4, 50)
        await world.reconnect()


async def test_an_older_controllers_connection_ends_when_a_newer_one_comes() -> None:
    async with World() as world:
        old = world.link
        world.position = replace(world.position, term=2)
        world.link = world.new_link()
        old._calls.position = lambda: Position("c1", 1, 1)
        regressed: list[JournalRegressed] = []
        old._calls.on_regressed = lambda node, error: regressed.append(error)
        await world.start()
        await until(lambda: regressed)
        assert not old.connected
        await old.stop()
        await world.run("true")


async def test_without_a_hello_nobody_gives_orders() -> None:
    async with World() as world:
        reader, writer = await wire.connect(world.directory / "agent.sock")
        model = {"root": str(world.home), "pin": "p"}
        orders = {"deliver": {"effects": []}, "ack": {"upto": 99}, "signal": {}, "shutdown": {}}
        orders |= {"want_model": {}, "check_model": model, "drop_model": model}
        assert orders.keys() == ORDERS
        for operation, data in orders.items():
            writer.write(wire.line(operation, 1, **data))
            answer = msgspec.json.decode(await reader.readline())
            assert (answer["op"], answer["code"]) == ("error", "no_hello")
        writer.write(wire.line("status", 2))
        assert msgspec.json.decode(await reader.readline())["op"] == "status"
        writer.write(b"nonsense\n")
        assert msgspec.json.decode(await reader.readline())["code"] == "invalid"
        assert await reader.readline() == b""
        writer.close()
        await writer.wait_closed()
        await world.run("true")


async def test_what_cannot_be_understood_is_refused_and_the_rest_goes_on() -> None:
    async with World() as world:
        with pytest.raises(ConnectionError, match="unknown"):
            await world.link._ask("dance")
        with pytest.raises(ConnectionError, match="Dance"):
            await world.link._ask("deliver", effects=[{"type": "Dance", "data": {}}])
        assert world.link.connected
        await world.run("true")


async def test_a_controller_that_gave_the_node_up_hears_who_it_is() -> None:
    async with World() as world:
        known: list[bool] = [False, True]
        world.link._calls.on_alive = lambda node, boot: known.pop(0) if known else True
        world.reports.clear()
        up = await world.report(HostUp)
        assert up.boot == world.boot


async def test_changed_hosts_replace_an_idle_agent_and_are_refused_while_tasks_run() -> None:
    async with World() as world:
        first = world.agent_pid
        key = await world.run("sleep", "60")
        await world.link.stop()
        world.hosts = (HostFacts("new", "n", port_count=8),)
        world.position = replace(world.position, term=2)
        link = world.new_link()
        with pytest.raises(AgentFailed, match="other hosts"):
            await link.start()
        world.hosts = HOSTS
        await world.reconnect()
        await world.stop(key)
        await world.link.stop()
        world.hosts = (HostFacts("new", "n", port_count=8),)
        await world.reconnect()
        assert world.agent_pid != first
        assert {each.facts.name for each in world.reports if isinstance(each, HostUp)} == {"new"}
        assert not world.count(TaskStarted, key)


async def test_an_agent_that_cannot_start_says_why() -> None:
    world = World(hosts=(HostFacts("h0", "n", port_count=70_000),))
    try:
        with pytest.raises(AgentFailed, match="ports"):
            await world.link.start()
    finally:
        await world.link.stop()


async def test_a_folder_too_deep_for_a_sockets_name() -> None:
    world = World()
    world.directory = world.home / ("deep" * 20) / ("deeper" * 15) / "n"
    world.link = world.new_link()
    async with world:
        await world.run("true")
