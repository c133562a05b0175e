"""Probes: edges, never a stream; a failing live probe ends the task."""

from __future__ import annotations

import sys

import pytest

from gangflow.xce.core.inputs import HostUp, TaskExited, TaskReady, TaskUnready
from gangflow.xce.core.plan import Cause, ProbeKind, ProbePlan
from tests.integration.hosts.world import World, until

SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        bad = os.path.exists("bad")
        self.send_response(503 if bad else 200)
        self.end_headers()
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def port_of(world: World) -> int:
    return next(each.facts.port_first for each in world.reports if isinstance(each, HostUp))


def plan(kind: ProbeKind, **more: object) -> ProbePlan:
    return ProbePlan(kind, **{"period_ms": 50, "timeout_ms": 2_000, "failures": 2, **more})  # type: ignore[arg-type]


async def test_http_ready_unready_ready() -> None:
    async with World() as world:
        port = port_of(world)
        ready = plan(ProbeKind.HTTP, port="http", target="/health", successes=2)
        key = await world.run(sys.executable, "-c", SERVER, str(port), ports=(("http", port),), ready=ready)
        first = await world.of(TaskReady, key)
        folder = next((world.directory / "tasks").glob(f"g1/m-{key.index}/1/0"))
        (folder / "bad").touch()
        unready = await world.report(TaskUnready, lambda each: "503" in each.message)
        assert unready.message == f"GET http://127.0.0.1:{port}/health: status 503"
        world.reports.clear()
        (folder / "bad").unlink()
        again = await world.of(TaskReady, key)
        assert world.count(TaskReady, key) == 1
        assert 0 < first.edge < unready.edge < again.edge, "whichever comes late, the newest is known by its number"


async def test_why_it_is_not_ready_yet_names_the_address_and_the_error() -> None:
    """Scenario 54: nobody waits in the dark for a server that does not come up: the address tried, and the last error."""
    async with World() as world:
        port = port_of(world)
        ready = plan(ProbeKind.HTTP, port="http", target="/health")
        key = await world.run("sleep", "60", ports=(("http", port),), ready=ready)
        unready = await world.of(TaskUnready, key)
        assert unready.message == f"GET http://127.0.0.1:{port}/health: Connection refused"
        assert not world.count(TaskReady, key)


@pytest.mark.parametrize("kind", [ProbeKind.TCP, ProbeKind.FILE, ProbeKind.EXEC])
async def test_other_kinds(kind: ProbeKind) -> None:
    async with World() as world:
        port = port_of(world)
        ready = {
            ProbeKind.TCP: plan(kind, port="http"),
            ProbeKind.FILE: plan(kind, target="go"),
            ProbeKind.EXEC: plan(kind, command=("sh", "-c", 'test -e go && test "$A" = 1')),
        }[kind]
        script = f"import os, sys, time\nwhile not os.path.exists('go'): time.sleep(0.02)\n{SERVER}"
        environment = (("A", "1"),)
        argv = (sys.executable, "-c", script, str(port))
        key = await world.run(*argv, ports=(("http", port),), ready=ready, environment=environment)
        await world.of(TaskUnready, key)
        folder = next((world.directory / "tasks").glob(f"g1/m-{key.index}/1/0"))
        (folder / "go").touch()
        await world.of(TaskReady, key)


async def test_an_exec_probe_that_hangs_is_killed_and_counts_as_failed() -> None:
    async with World() as world:
        ready = plan(ProbeKind.EXEC, command=("sh", "-c", "echo $$ >> pids; exec sleep 60"), timeout_ms=300)
        key = await world.run("sleep", "60", ready=ready)
        unready = await world.of(TaskUnready, key)
        assert "not done within 0.3 s" in unready.message
        await world.stop(key)
        assert not world.marked(key)


async def test_a_failing_live_probe_ends_the_task_as_unhealthy() -> None:
    """Scenario 48: an engine that is there but does not work is taken down, and the rules hear why."""
    async with World() as world:
        port = port_of(world)
        ready = plan(ProbeKind.HTTP, port="http", target="/")
        argv = (sys.executable, "-c", SERVER, str(port))
        key = await world.run(*argv, ports=(("http", port),), ready=ready, live=ready, grace_ms=5_000)
        await world.of(TaskReady, key)
        folder = next((world.directory / "tasks").glob(f"g1/m-{key.index}/1/0"))
        (folder / "bad").touch()
        ended = await world.of(TaskExited, key)
        assert ended.cause is Cause.UNHEALTHY
        assert "status 503" in ended.message


async def test_a_live_probe_waits_for_the_first_ready() -> None:
    """A slow start is bounded by the ready timeout, not by the live probe."""
    async with World() as world:
        port = port_of(world)
        script = f"import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\n{SERVER}"
        ready = plan(ProbeKind.HTTP, port="http", target="/")
        live = plan(ProbeKind.TCP, port="http", failures=1)
        key = await world.run(sys.executable, "-c", script, str(port), ports=(("http", port),), ready=ready, live=live)
        await world.of(TaskUnready, key)
        assert await until(lambda: world.marked(key))
        folder = next((world.directory / "tasks").glob(f"g1/m-{key.index}/1/0"))
        (folder / "go").touch()
        await world.of(TaskReady, key)
        assert not world.count(TaskExited, key)
