"""An exit is reported when the whole tree is gone, whatever its processes did to get away."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from gangflow.xce.core.inputs import TaskExited
from gangflow.xce.core.plan import Cause
from gangflow.xce.hosts import cgroups, proctree
from gangflow.xce.hosts.settings import AgentOptions
from tests.integration.hosts.world import World, alive, until

ENGINE = """
import os, sys, time, signal

def escape(clobber):
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if clobber:  # what setproctitle does: the environment's memory now holds a title
        stat = open("/proc/self/stat").read().rsplit(")", 1)[1].split()
        first, end = int(stat[47]), int(stat[48])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(first)
            memory.write(b"engine".ljust(end - first, b"\\0"))
    os.write(1, f"worker {os.getpid()}\\n".encode())
    while True:
        time.sleep(60)

for clobber in (False, True) if "clobber" in sys.argv else (False, False):
    escape(clobber)
os.write(1, f"engine {os.getpid()}\\n".encode())
if "daemon" in sys.argv:
    sys.exit(0)
time.sleep(60)
"""


NO_GROUPS = AgentOptions(fence_ms=2_000, control_groups=False)
GROUPS = AgentOptions(fence_ms=2_000)
either = pytest.mark.parametrize("options", [GROUPS, NO_GROUPS], ids=["groups", "no groups"])


async def engine(world: World, *words: str) -> list[int]:
    """Start an engine with two workers in sessions of their own; the workers' pids."""
    key = await world.run(sys.executable, "-c", ENGINE, *words)
    world.engine = key  # type: ignore[attr-defined]
    await world.output(key, "engine")
    async with asyncio.timeout(30):
        while True:
            text = (await world.link.read_log(key, "stdout", 0, 1000)).text
            found = [int(line.split()[1]) for line in text.splitlines() if line.startswith("worker")]
            if len(found) == 2:
                return found
            await asyncio.sleep(0.01)


@either
async def test_a_killed_servers_workers_are_gone_before_its_exit_is_reported(options: AgentOptions) -> None:
    """Scenario 82: the server is killed with SIGKILL, its workers (own sessions, deaf to SIGTERM) would keep the GPU."""
    async with World(options) as world:
        workers = await engine(world)
        key = world.engine  # type: ignore[attr-defined]
        assert all(alive(pid) for pid in workers)
        await world.link.signal(key, signal.SIGKILL)
        ended = await world.of(TaskExited, key)
        assert not any(alive(pid) for pid in workers)
        assert (ended.cause, ended.signal) == (Cause.SIGNAL, signal.SIGKILL)


@either
async def test_stop_takes_the_whole_tree(options: AgentOptions) -> None:
    """Scenario 82, stopped in good order."""
    async with World(options) as world:
        workers = await engine(world)
        await world.stop(world.engine, grace_ms=50)  # type: ignore[attr-defined]
        assert not any(alive(pid) for pid in workers)


@either
async def test_what_a_main_process_leaves_behind_ends_with_it(options: AgentOptions) -> None:
    async with World(options) as world:
        workers = await engine(world, "daemon")
        ended = await world.of(TaskExited, world.engine)  # type: ignore[attr-defined]
        assert (ended.cause, ended.code) == (None, 0)
        assert not any(alive(pid) for pid in workers)


@either
async def test_a_worker_without_mark_is_found_by_its_descent(options: AgentOptions) -> None:
    """`env -i` in a session of its own: no mark, no group; but a child of the tree when it is stopped."""
    async with World(options) as world:
        key = await world.shell("env -i setsid sh -c 'trap \"\" TERM; echo up $$; while :; do sleep 0.1; done' & wait")
        pid = int((await world.output(key, "up")).split()[1])
        assert not proctree.read_marks(pid)
        await world.stop(key, grace_ms=50)
        assert not alive(pid)


async def test_a_worker_that_overwrote_its_environment_is_found_by_its_control_group() -> None:
    own = cgroups.own_group()
    if own is None or not _writable(own):
        pytest.skip("this user may not make control groups here")
    async with World() as world:
        workers = await engine(world, "clobber")
        await until(lambda: any(not proctree.read_marks(pid) for pid in workers))
        await world.link.signal(world.engine, signal.SIGKILL)  # type: ignore[attr-defined]
        await world.of(TaskExited, world.engine)  # type: ignore[attr-defined]
        assert not any(alive(pid) for pid in workers)


def _writable(own: Path) -> bool:
    try:
        (own / "gangflow-trial").mkdir()
        (own / "gangflow-trial").rmdir()
    except OSError:
        return False
    return True


async def test_without_control_groups_its_log_gives_it_away() -> None:
    async with World(NO_GROUPS) as world:
        workers = await engine(world, "clobber")
        await until(lambda: any(not proctree.read_marks(pid) for pid in workers))
        await world.link.signal(world.engine, signal.SIGKILL)  # type: ignore[attr-defined]
        await world.of(TaskExited, world.engine)  # type: ignore[attr-defined]
        assert not any(alive(pid) for pid in workers)


async def test_without_control_groups_what_was_once_seen_is_known() -> None:
    """No mark, a session and a log of its own, and then its parent is gone: it was seen with its parent before."""
    async with World(NO_GROUPS) as world:
        deaf = r"""trap "" TERM; echo up $$ > up; exec >/dev/null 2>&1; while :; do sleep 0.1; done"""
        script = f"env -i setsid sh -c '{deaf}' & exec sleep 60"
        key = await world.shell(script)
        folder = next((world.directory / "tasks").glob(f"g1/m-{key.index}/1/0"))
        pid = int((await until(lambda: (folder / "up").exists() and (folder / "up").read_text())).split()[1])
        async with asyncio.timeout(30):
            while (await world.link.status()).tasks[0].family < 2:
                await asyncio.sleep(0.05)
        await world.link.signal(key, signal.SIGKILL)
        await world.of(TaskExited, key)
        assert not alive(pid)


async def test_other_tasks_are_left_alone() -> None:
    async with World() as world:
        other = await world.run("sleep", "60")
        await engine(world)
        await world.stop(world.engine, grace_ms=50)  # type: ignore[attr-defined]
        assert world.marked(other)
        assert not world.count(TaskExited, other)


async def test_strays_are_reaped() -> None:
    async with World() as world:
        await world.run(sys.executable, "-c", ENGINE.replace("while True:\n        time.sleep(60)", "os._exit(0)"), "daemon")
        await world.report(TaskExited)
        assert not [each for each in proctree.Scanner().scan().values() if each.parent == world.agent_pid and each.state == "Z"]
