"""A command that the agent runs beside its tasks and waits for: an exec probe, the removal of what a container left."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence

from gangflow.xce.hosts import kernel
from gangflow.xce.hosts.children import Children, spawn
from gangflow.xce.hosts.settings import CLEANUP_LIMIT_S, CLEANUP_TRIES


async def briefly(
    children: Children, command: Sequence[str], seconds: float, *, environment: Mapping[str, str], cwd: str | None = None
) -> str:
    """Run it for at most so many seconds, without output. Empty if it exited with 0, else what went wrong."""
    shown = " ".join(command)
    try:
        pid = spawn((*kernel.death_wrapper(), *command), environment=environment, cwd=cwd)
    except OSError as error:
        return f"{shown}: {error.strerror}"
    done = children.expect(pid)
    try:
        async with asyncio.timeout(seconds):
            code = await asyncio.shield(done)
    except TimeoutError:
        return f"{shown}: not done within {seconds:g} s"
    finally:
        if not done.done():
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    return "" if code == 0 else f"{shown}: exited with code {code}"


async def clean_up(
    children: Children, command: Sequence[str], *, environment: Mapping[str, str], cwd: str | None = None
) -> str:
    """Remove what a container left. Empty if one of the tries did, else what went wrong in the last."""
    error = ""
    for _ in range(CLEANUP_TRIES):
        error = await briefly(children, command, CLEANUP_LIMIT_S, environment=environment, cwd=cwd)
        if not error:
            break
    return error
