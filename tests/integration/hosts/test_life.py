"""A task's life: prepared, started, ended, stopped; every effect idempotent by the task's key."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import msgspec
import pytest

from gangflow.xce.core.effects import Launch, Prepare, Start, Stop, Unprepare
from gangflow.xce.core.inputs import HostUp, TaskExited, TaskPrepared, TaskRefused, TaskStarted, TaskUnprepared
from gangflow.xce.core.plan import Cause
from tests.integration.hosts.world import World, alive, control_groups, until


async def test_a_task_runs_to_its_end() -> None:
    async with World() as world:
        key = await world.shell('echo out $A; cat "$XCE_GROUP_FILE"; pwd', environment=(("A", "1"),), group_file='{"g": 1}')
        ended = await world.of(TaskExited, key)
        assert (ended.cause, ended.code, ended.signal) == (None, 0, None)
        chunk = await world.link.read_log(key, "stdout", 0, 1000)
        assert chunk.text.startswith('out 1\n{"g": 1}')
        assert chunk.ended
        assert (await world.link.read_log(key, "stdout", 4, 1)).text == "1"
        kinds = [type(each) for each in world.reports if getattr(each, "task", None) == key]
        assert kinds == [TaskPrepared, TaskStarted, TaskExited]
        assert not world.link.welcome.inventory  # type: ignore[union-attr]


async def test_the_environment_is_the_users_without_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XCE_TOKEN", "of somebody else")
    monkeypatch.setenv("OF_THE_USER", "yes")
    async with World() as world:
        key = await world.run(sys.executable, "-c", "import os, json; print(json.dumps(dict(os.environ)))")
        await world.of(TaskExited, key)
        seen = json.loads((await world.link.read_log(key, "stdout", 0, 1 << 20)).text)
        assert seen["OF_THE_USER"] == "yes"
        assert "XCE_TOKEN" not in seen
        assert seen["GANGFLOW_TASK"].endswith(f":c1:{key}")


async def test_signals_that_the_starter_ignored_are_not_ignored_by_tasks() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        async with World() as world:
            key = await world.shell("grep SigIgn /proc/self/status")
            await world.of(TaskExited, key)
            ignored = int((await world.link.read_log(key, "stdout", 0, 100)).text.split()[1], 16)
            assert not ignored & (1 << (signal.SIGUSR1 - 1))
            assert not ignored & (1 << (signal.SIGHUP - 1))
            assert not ignored & (1 << (signal.SIGPIPE - 1))
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("script", "cause", "code", "number"),
    [
        ("exit 3", Cause.APP_EXIT, 3, None),
        ("exit 127", Cause.APP_EXIT, 127, None),
        ("kill -SEGV $$", Cause.SIGNAL, None, signal.SIGSEGV),
        ("kill -KILL $$", Cause.SIGNAL, None, signal.SIGKILL),
    ],
)
async def test_how_it_ended(script: str, cause: Cause, code: int | None, number: int | None) -> None:
    async with World() as world:
        ended = await world.of(TaskExited, await world.shell(f"seq 100 >&2; {script}"))
        assert (ended.cause, ended.code, ended.signal) == (cause, code, number)
        assert ended.stderr_tail.splitlines() == [str(n) for n in range(81, 101)]


async def test_a_command_that_cannot_be_executed_is_start_failed() -> None:
    async with World() as world:
        script = world.home / "script"
        script.write_text("#!/no/such/interpreter\n")
        script.chmod(0o755)
        ended = await world.of(TaskExited, await world.run(str(script)))
        assert ended.cause is Cause.START_FAILED
        assert str(script) in ended.message


async def test_what_vanished_after_its_preparation_is_start_failed() -> None:
    async with World() as world:
        cwd = world.home / "there"
        key = await world.prepare("true", cwd=str(cwd))
        assert cwd.is_dir()  # made, as asked
        cwd.rmdir()
        await world.link.deliver([Start(key, "h0", world.boot)])
        ended = await world.of(TaskExited, key)
        assert ended.cause is Cause.START_FAILED
        assert "there" in ended.message


async def test_what_is_refused_for_good() -> None:
    async with World() as world:
        plain = world.home / "plain"
        plain.write_text("")
        cases: list[tuple[Launch, str, str]] = [
            (Launch(("no-such-program",), ()), "h0", "no-such-program"),
            (Launch(("./no/such",), ()), "h0", "no/such"),
            (Launch((str(plain),), ()), "h0", "not executable"),
            (Launch((), ()), "h0", "empty"),
            (Launch(("true",), (), cwd=str(plain / "below")), "h0", "working directory"),
            (Launch(("true",), ()), "elsewhere", "elsewhere"),
        ]
        for launch, host, words in cases:
            key = world.key()
            await world.link.deliver([Prepare(key, host, launch)])
            refused = await world.of(TaskRefused, key)
            assert refused.permanent
            assert words in refused.message
        sly = replace(world.key(), member="../../etc")
        await world.link.deliver([Prepare(sly, "h0", Launch(("true",), ()))])
        assert (await world.of(TaskRefused, sly)).permanent
        assert (await world.link.status()).tasks == ()


async def test_a_port_that_somebody_listens_on_is_refused_for_now() -> None:
    async with World() as world:
        port = next(each.facts.port_first for each in world.reports if isinstance(each, HostUp))
        launch = Launch(("true",), (), ports=(("http", port),))
        for address in ("127.0.0.1", "0.0.0.0"):
            with socket.create_server((address, port)):
                key = world.key()
                await world.link.deliver([Prepare(key, "h0", launch)])
                refused = await world.of(TaskRefused, key)
                assert not refused.permanent
                assert str(port) in refused.message
        await world.link.deliver([Prepare(key, "h0", launch)])
        await world.of(TaskPrepared, key)


async def test_nothing_starts_before_its_start_nor_with_another_boots_token() -> None:
    async with World() as world:
        key = await world.prepare("sleep", "60")
        assert not world.marked(key)
        await world.link.deliver([Start(key, "h0", "another")])
        assert "another" in (await world.of(TaskRefused, key)).message
        assert not world.marked(key)


async def test_effects_are_idempotent() -> None:
    """Scenario 77: what a restarted controller sends again changes nothing for members that run."""
    async with World() as world:
        key = world.key()
        prepare = Prepare(key, "h0", Launch(("sleep", "60"), ()))
        start = Start(key, "h0", world.boot)
        await world.link.deliver([prepare, prepare])
        await world.of(TaskPrepared, key)
        await world.link.deliver([start, start, prepare, start])
        pid = (await world.of(TaskStarted, key)).pid
        assert [each.pid for each in world.marked(key)] == [pid]
        stop = Stop(key, "h0", 0)
        await world.link.deliver([stop, stop])
        ended = await world.of(TaskExited, key)
        world.reports.clear()
        await world.link.deliver([prepare, start, stop])
        assert await world.of(TaskExited, key) == ended
        assert not world.marked(key)
        assert (await world.link.status()).tasks == ()


async def test_stop_and_unprepare_are_answered_whatever_they_find() -> None:
    async with World() as world:
        unknown, prepared, dropped = world.key(), await world.prepare("sleep", "60"), await world.prepare("sleep", "60")
        assert (await world.stop(unknown)).cause is None
        assert (await world.stop(prepared)).cause is None
        await world.link.deliver([Unprepare(dropped, "h0"), Unprepare(dropped, "h0")])
        await world.of(TaskUnprepared, dropped)
        assert (await world.link.status()).tasks == ()
        await world.link.deliver([Start(dropped, "h0", world.boot)])
        assert (await world.of(TaskExited, dropped)).cause is Cause.START_FAILED
        # What was never started may be prepared again: only what ran is over for good.
        await world.prepare("true", key=prepared)


async def test_stop_gives_grace_and_then_kills() -> None:
    async with World() as world:
        kind = await world.shell("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done")
        await world.output(kind, "up")
        ended = await world.stop(kind, grace_ms=20_000)
        assert (ended.cause, ended.code) == (None, 0)
        assert "bye" in (await world.link.read_log(kind, "stdout", 0, 100)).text
        deaf = await world.shell("trap '' TERM; echo up; while :; do sleep 0.05; done")
        await world.output(deaf, "up")
        ended = await world.stop(deaf, grace_ms=100)
        assert (ended.cause, ended.signal) == (None, signal.SIGKILL)


async def test_a_stopped_process_can_be_stopped() -> None:
    async with World() as world:
        key = await world.run("sleep", "60")
        await world.link.signal(key, signal.SIGSTOP)
        ended = await world.stop(key, grace_ms=20_000)
        assert ended.signal == signal.SIGTERM


async def test_a_second_stop_with_less_grace_counts() -> None:
    async with World() as world:
        key = await world.shell("trap '' TERM; echo up; while :; do sleep 0.05; done")
        await world.output(key, "up")
        await world.link.deliver([Stop(key, "h0", 3_600_000), Stop(key, "h0", 50)])
        assert (await world.of(TaskExited, key)).signal == signal.SIGKILL


async def test_fault_injection_is_seen_as_an_exit_only() -> None:
    async with World() as world:
        key = await world.run("sleep", "60")
        await world.link.signal(key, signal.SIGKILL)
        ended = await world.of(TaskExited, key)
        assert (ended.cause, ended.signal) == (Cause.SIGNAL, signal.SIGKILL)
        with pytest.raises(FileNotFoundError):
            await world.link.signal(key, signal.SIGKILL)


async def test_sixty_four_tasks_at_once() -> None:
    async with World() as world:
        keys = [world.key() for _ in range(64)]
        await world.link.deliver([Prepare(key, "h0", Launch(("sleep", "60"), ())) for key in keys])
        for key in keys:
            await world.of(TaskPrepared, key)
        await world.link.deliver([Start(key, "h0", world.boot) for key in keys])
        pids = {(await world.of(TaskStarted, key)).pid for key in keys}
        assert len(pids) == 64
        assert {each.pid for each in world.marked()} >= pids
        await world.link.deliver([Stop(key, "h0", 5_000) for key in keys])
        for key in keys:
            await world.of(TaskExited, key)
        assert not world.marked()


async def test_shutdown_leaves_nothing_and_removes_its_traces() -> None:
    async with World() as world:
        await world.run("sleep", "60")
        await world.prepare("sleep", "60")
        pid, watchdog = world.agent_pid, (await world.link.status()).watchdog
        await world.link.shutdown()
        assert not world.marked()
        await until(lambda: not alive(pid) and not alive(watchdog))
        assert not (world.directory / "agent.sock").exists()
        assert not control_groups(world.agent_id)


async def test_an_idle_agent_ends_by_itself() -> None:
    from gangflow.xce.hosts.settings import AgentOptions

    async with World(AgentOptions(idle_exit_ms=1_500)) as world:
        pid = world.agent_pid
        await world.link.stop()
        await until(lambda: not alive(pid))
        os.stat(world.directory / "standing.json")


async def test_an_agent_whose_starter_ended_meanwhile_serves_the_next_one() -> None:
    """A controller that dies while an agent is coming up: nobody reads that it is ready."""
    world = World()
    told, tells = os.pipe()
    os.close(told)
    world.directory.mkdir()
    (world.directory / "hosts.json").write_bytes(msgspec.json.encode(world.hosts))
    arguments = ["--dir", str(world.directory), "--node", "n", "--hosts", str(world.directory / "hosts.json")]
    arguments += ["--ready-fd", str(tells), "--fence-ms", "2000"]
    process = subprocess.Popen(  # noqa: ASYNC220 — it outlives this test's part in it
        [sys.executable, "-m", "gangflow.xce.hosts.agent", *arguments],
        pass_fds=(tells,),
        stderr=subprocess.DEVNULL,
    )
    os.close(tells)
    try:
        await until(lambda: (world.directory / "agent.sock").exists() or process.poll() is not None)
        async with world:
            assert world.agent_pid == process.pid
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()
