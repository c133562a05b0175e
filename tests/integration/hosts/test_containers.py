"""Tasks in containers, with a runtime that behaves like `podman run`: nothing of one outlives its task's exit."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gangflow.xce.core.effects import Launch, Prepare, Start, Warn
from gangflow.xce.core.inputs import TaskExited, TaskPrepared, TaskReady, TaskRefused, TaskStarted
from gangflow.xce.core.plan import Cause, ContainerPlan, ProbeKind, ProbePlan
from gangflow.xce.core.state import TaskKey
from gangflow.xce.hosts import marks, proctree
from gangflow.xce.hosts.settings import AgentOptions
from tests.integration.hosts.runtimes import Unusable, inside, podman, real_podman, stub
from tests.integration.hosts.world import World, alive, processes, until

NO_GROUPS = AgentOptions(fence_ms=2_000, control_groups=False)
either = pytest.mark.parametrize("options", [AgentOptions(fence_ms=2_000), NO_GROUPS], ids=["groups", "no groups"])


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerPlan]:
    """Podman, where it is installed and may run: in many sandboxes it may not."""
    # Outside of pytest's folder: the store has files that its clean-up may not remove.
    folder = Path(tempfile.mkdtemp(prefix="gf-podman-"))
    try:
        plan, program = real_podman(folder)
        yield plan
        try:
            # Nothing is left of any container: no record, no monitor.
            asyncio.run(until(lambda: not _containers(program) and not _processes_of(folder)))
        finally:
            subprocess.run([*program, "rm", "--force", "--all"], check=False, capture_output=True)
    except Unusable as reason:
        pytest.skip(str(reason))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _containers(program: Sequence[str]) -> list[str]:
    return subprocess.run([*program, "ps", "--all", "--quiet"], capture_output=True, text=True, check=True).stdout.split()


def _processes_of(folder: Path) -> list[int]:
    lines = ((each.pid, _command_of(each.pid)) for each in proctree.Scanner().scan().values())
    return [pid for pid, line in lines if str(folder) in line and pid != os.getpid()]


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


@pytest.fixture(params=["stub", "podman"])
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> ContainerPlan:
    return stub(tmp_path) if request.param == "stub" else request.getfixturevalue("real")


async def started(world: World, launch: Launch, key: TaskKey) -> None:
    await world.link.deliver([Prepare(key, "h0", launch)])
    await world.of(TaskPrepared, key)
    await world.link.deliver([Start(key, "h0", world.boot)])
    await world.of(TaskStarted, key)


def key_of(index: int) -> TaskKey:
    return TaskKey("g1", 1, "m", index, 1, 0)


async def test_the_command_sees_its_variables_its_folder_and_its_claims(
    runtime: ContainerPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task's environment reaches inside by name (and no other variable), its folder and claims under their own paths."""
    monkeypatch.setenv("TEST_OUTSIDE", "seen")
    claim = tmp_path / "ckpt"
    claim.mkdir()
    script = 'pwd; echo "$XCE_TOKEN $TEST_OUTSIDE."; cat "$XCE_GROUP_FILE"; echo done > "$XCE_CLAIM_CKPT/out"; echo end'
    async with World() as world:
        environment = {"XCE_TOKEN": "xct1.secret", "XCE_CLAIM_CKPT": str(claim)}
        launch = inside(runtime, "sh", "-c", script, environment=environment, paths=(str(claim),))
        await started(world, replace(launch, group_file='{"group": "g1"}'), key_of(1))
        text = await world.output(key_of(1), "end")
        assert (await world.of(TaskExited, key_of(1))).code == 0
    folder = world.directory / "tasks/g1/m-1/1/0"
    assert text.split("\n")[:2] == [str(folder), "xct1.secret ."]
    assert '"group": "g1"' in text
    assert (claim / "out").read_text() == "done\n"


@either
async def test_a_stop_ends_what_runs_inside_gently_and_then_by_force(runtime: ContainerPlan, options: AgentOptions) -> None:
    """SIGTERM reaches the command through the runtime; one that is deaf to it is killed with all its children, and only then
    is its exit reported."""
    deaf = "trap '' TERM; (trap '' TERM; while :; do sleep 1; done) & echo deaf; while :; do sleep 1; done"
    gentle = "trap 'echo told; exit 7' TERM; echo gentle; while :; do sleep 0.05; done"
    async with World(options) as world:
        for index, script, said in ((1, deaf, "deaf"), (2, gentle, "gentle")):
            await started(world, inside(runtime, "sh", "-c", script, index=index), key_of(index))
            await world.output(key_of(index), said)
        family = [each.pid for each in world.marked(key_of(1))]
        # The client, and inside: the shell, its child, their sleeps.
        assert len(family) >= 3
        ended = await world.stop(key_of(2), grace_ms=20_000)
        assert (ended.code, ended.cause) == (7, None)
        assert "told" in await world.output(key_of(2), "told")
        await world.stop(key_of(1), grace_ms=300)
        assert not [pid for pid in family if alive(pid)]
        assert not world.marked(key_of(1))


async def test_a_killed_runtime_takes_its_container_with_it(runtime: ContainerPlan) -> None:
    """The client is killed: what it left running is the task's all the same."""
    async with World() as world:
        await started(world, inside(runtime, "sh", "-c", "echo up; while :; do sleep 1; done"), key_of(1))
        await world.output(key_of(1), "up")
        family = [each.pid for each in world.marked(key_of(1))]
        await world.link.signal(key_of(1), signal.SIGKILL)
        ended = await world.of(TaskExited, key_of(1))
        assert (ended.cause, ended.signal) == (Cause.SIGNAL, signal.SIGKILL)
        assert not [pid for pid in family if alive(pid)]


async def test_a_killed_agent_takes_its_containers_with_it(runtime: ContainerPlan) -> None:
    """The watchdog finds what runs inside by its mark."""
    async with World() as world:
        launch = inside(runtime, "sh", "-c", "echo up; while :; do sleep 1; done")
        await started(world, launch, key_of(1))
        await world.output(key_of(1), "up")
        prefix = marks.life_prefix(world.agent_id)
        assert processes(prefix)
        os.kill(world.agent_pid, signal.SIGKILL)
        await until(lambda: not processes(prefix))
    # For a container whose record was not yet on disk.
    await asyncio.to_thread(subprocess.run, launch.cleanup, check=True)


async def test_the_next_agent_removes_what_a_killed_ones_container_left(tmp_path: Path) -> None:
    """Before it says that the task is gone: a runtime with a daemon would still run it."""
    left = tmp_path / "left"
    left.touch()
    async with World() as world:
        launch = Launch(("sleep", "60"), (), cleanup=("rm", str(left)))
        await started(world, launch, key_of(1))
        await until(lambda: (world.directory / "tasks/g1/m-1/1/0/task.json").exists())
        world.reports.clear()
        os.kill(world.agent_pid, signal.SIGKILL)
        ended = await world.of(TaskExited, key_of(1))
        assert ended.cause is Cause.AGENT_LOST
        assert not left.exists()
        await until(lambda: world.link.connected)
        world.agents.add(world.agent_pid)


async def test_a_warning_reaches_inside(runtime: ContainerPlan) -> None:
    async with World() as world:
        script = "trap 'echo warned' USR1; echo up; while :; do sleep 0.05; done"
        await started(world, inside(runtime, "sh", "-c", script), key_of(1))
        await world.output(key_of(1), "up")
        await world.link.deliver([Warn(key_of(1), "h0", signal.SIGUSR1)])
        await world.output(key_of(1), "warned")
        await world.stop(key_of(1))


async def test_an_exec_probe_asks_inside(runtime: ContainerPlan) -> None:
    probe = ProbePlan(ProbeKind.EXEC, command=("sh", "-c", "test -e up"), period_ms=20, timeout_ms=5_000)
    async with World() as world:
        launch = inside(runtime, "sh", "-c", "read line < go; touch up; sleep 60", ready=probe)
        await world.link.deliver([Prepare(key_of(1), "h0", launch)])
        await world.of(TaskPrepared, key_of(1))
        folder = world.directory / "tasks/g1/m-1/1/0"
        os.mkfifo(folder / "go")
        await world.link.deliver([Start(key_of(1), "h0", world.boot)])
        await world.of(TaskStarted, key_of(1))
        (folder / "go").write_text("go\n")
        await world.of(TaskReady, key_of(1))
        await world.stop(key_of(1))


async def test_a_runtime_that_is_not_installed_is_said_before_the_start() -> None:
    async with World() as world:
        await world.link.deliver([Prepare(key_of(1), "h0", inside(podman(["no-such-podman"], "i"), "true"))])
        refused = await world.of(TaskRefused, key_of(1))
    assert refused.permanent
    assert refused.message.startswith("executable 'no-such-podman' is not on the task's PATH")


async def test_what_the_runtime_refuses_is_in_the_exit(runtime: ContainerPlan) -> None:
    async with World() as world:
        await started(world, inside(replace(runtime, image="localhost/other:2"), "true"), key_of(1))
        ended = await world.of(TaskExited, key_of(1))
    assert (ended.cause, ended.code) == (Cause.APP_EXIT, 125)
    assert "localhost/other:2" in ended.stderr_tail
