"""Probes: is a task ready, is it alive. Reported as edges, never as a stream of results."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gangflow.durations import lasting
from gangflow.xce.core.plan import ProbeKind, ProbePlan

_ANSWER_LIMIT = 4096
"""Bytes read of an HTTP answer: the status line is all that counts."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a task is probed."""

    address: str
    ports: dict[str, int]
    cwd: str
    run: Callable[[tuple[str, ...], float], Awaitable[str]]
    """Run an exec probe's command in the task's environment within so many seconds; empty, or what went wrong."""


async def check(plan: ProbePlan, target: Target) -> str:
    """One try: empty if it succeeded, else what was tried and what came back."""
    seconds = max(plan.timeout_ms, 1) / 1000
    if plan.kind is ProbeKind.EXEC:
        return await target.run(plan.command, seconds)
    what = ""
    try:
        if plan.kind is ProbeKind.FILE:
            return _missing(os.path.join(target.cwd, plan.target))
        port = target.ports.get(plan.port)
        if port is None:
            return f"the probe's port {plan.port!r} is none of the task's ports"
        if plan.kind is ProbeKind.TCP:
            what = f"tcp {target.address}:{port}"
            async with asyncio.timeout(seconds):
                _, writer = await asyncio.open_connection(target.address, port)
                writer.transport.abort()
            return ""
        what = f"GET http://{target.address}:{port}{plan.target or '/'}"
        async with asyncio.timeout(seconds):
            status = await _http_status(target.address, port, plan.target or "/")
        return "" if 200 <= status < 400 else f"{what}: status {status}" if status else f"{what}: no HTTP answer"
    except TimeoutError:
        return f"{what}: no answer within {lasting(plan.timeout_ms)}"
    except OSError as error:
        return f"{what}: {os.strerror(error.errno) if error.errno and error.errno > 0 else error}"
    except (ValueError, OverflowError) as error:  # an address or a path that cannot be one
        return f"{what}: {error}"


def _missing(path: str) -> str:
    return "" if os.path.exists(path) else f"file {path}: does not exist"


async def _http_status(address: str, port: int, path: str) -> int:
    """The status code of a GET; 0 when the answer is none of HTTP."""
    reader, writer = await asyncio.open_connection(address, port, limit=_ANSWER_LIMIT)
    try:
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {address}:{port}\r\nUser-Agent: gangflow\r\nConnection: close\r\n\r\n".encode()
        )
        try:
            words = (await reader.readline()).split()
        except ValueError:
            return 0
        return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") and words[1].isdigit() else 0
    finally:
        writer.transport.abort()


class Hysteresis:
    """Turns results into edges: `successes` in a row make it good, `failures` in a row bad."""

    def __init__(self, failures: int, successes: int) -> None:
        self._needed = {True: max(successes, 1), False: max(failures, 1)}
        self._last: bool | None = None
        self._row = 0
        self.good: bool | None = None
        """None until the first edge."""

    def note(self, success: bool) -> bool:
        """Whether this result is an edge; `good` then has changed."""
        self._row = self._row + 1 if success == self._last else 1
        self._last = success
        if success != self.good and self._row >= self._needed[success]:
            self.good = success
            return True
        return False


async def watch(plan: ProbePlan, target: Target, on_edge: Callable[[bool, str], None]) -> None:
    """Probe for ever; `on_edge(good, last error)` at each change. The first edge may be a bad one: it says why it is not ready
    yet."""
    edges = Hysteresis(plan.failures, plan.successes)
    loop = asyncio.get_running_loop()
    await asyncio.sleep(plan.delay_ms / 1000)
    while True:
        began = loop.time()
        error = await check(plan, target)
        if edges.note(not error):
            on_edge(not error, error)
        await asyncio.sleep(max(0.01, plan.period_ms / 1000 - (loop.time() - began)))
