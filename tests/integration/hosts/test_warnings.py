"""The warning before a runtime limit: one signal per incarnation, and always an answer."""

from __future__ import annotations

import signal

from gangflow.xce.core.effects import Start, Stop, Warn
from gangflow.xce.core.inputs import TaskExited, TaskStarted, TaskWarned
from tests.integration.hosts.world import World

# Every signal that comes is a line; SIGUSR2 says what has been seen so far, and that nothing more is on its way.
LISTENER = """
trap 'echo USR1' USR1
trap 'echo TERM' TERM
trap 'echo END' USR2
echo up
while :; do sleep 0.02; done
"""


async def test_a_warning_is_one_signal_however_often_it_is_asked_for() -> None:
    async with World() as world:
        key = await world.shell(LISTENER)
        await world.output(key, "up")
        warn = Warn(key, "h0", signal.SIGUSR1)
        await world.link.deliver([warn, warn])
        await world.of(TaskWarned, key)
        await world.output(key, "USR1")
        await world.reconnect()
        await world.link.deliver([warn])
        await world.of(TaskWarned, key)
        await world.link.signal(key, signal.SIGUSR2)
        assert (await world.output(key, "END")).split() == ["up", "USR1", "END"]


async def test_warn_then_term_then_kill() -> None:
    async with World() as world:
        key = await world.shell(LISTENER)
        await world.output(key, "up")
        await world.link.deliver([Warn(key, "h0", signal.SIGUSR1)])
        await world.output(key, "USR1")
        await world.link.deliver([Stop(key, "h0", 300)])
        text = await world.output(key, "TERM")
        ended = await world.of(TaskExited, key)
    assert text.split() == ["up", "USR1", "TERM"]
    assert (ended.cause, ended.signal) == (None, signal.SIGKILL)


async def test_what_does_not_run_is_answered_too_and_gets_no_signal_later() -> None:
    """Never known, only prepared, and ended."""
    async with World() as world:
        unknown = world.key()
        await world.link.deliver([Warn(unknown, "h0", signal.SIGUSR1)])
        await world.of(TaskWarned, unknown)
        key = await world.prepare("sh", "-c", LISTENER)
        await world.link.deliver([Warn(key, "h0", signal.SIGUSR1)])
        await world.of(TaskWarned, key)
        await world.link.deliver([Start(key, "h0", world.boot)])
        await world.of(TaskStarted, key)
        await world.output(key, "up")
        await world.link.signal(key, signal.SIGUSR2)
        assert (await world.output(key, "END")).split() == ["up", "END"]
        await world.stop(key)
        world.reports.clear()
        await world.link.deliver([Warn(key, "h0", signal.SIGUSR1)])
        await world.of(TaskWarned, key)


async def test_a_signal_that_there_is_not_harms_nothing() -> None:
    async with World() as world:
        key = await world.shell(LISTENER)
        await world.output(key, "up")
        await world.link.deliver([Warn(key, "h0", 4_000)])
        await world.of(TaskWarned, key)
        await world.link.signal(key, signal.SIGUSR2)
        await world.output(key, "END")
