"""Messages between an agent and whoever speaks to it: one JSON object a line over a unix socket.

A request carries `id` and is answered by one message with the same `id`. `report` messages come unasked, numbered, until
acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from gangflow.xce.core.state import HostFacts, TaskKey
from gangflow.xce.hosts.settings import LINE_LIMIT, PROTOCOL


class Hello(msgspec.Struct, frozen=True):
    """Who asks: a controller's journal position."""

    cluster_id: str
    term: int
    seq: int
    protocol: int = PROTOCOL


class Welcome(msgspec.Struct, frozen=True):
    """Who answers: the agent's present boot, its hosts with their port pools, and what it holds."""

    boot: str
    node: str
    pid: int
    hosts: tuple[HostFacts, ...]
    inventory: tuple[tuple[str, TaskKey], ...]
    """(host, task) of every task that is prepared or running."""
    lease_ms: int
    fence_ms: int
    pending: int
    """Reports that were never acknowledged; exactly these follow first."""


class Held(msgspec.Struct, frozen=True):
    """One task as `status` shows it."""

    task: TaskKey
    host: str
    phase: str
    pid: int = 0
    family: int = 0
    """Processes that are known to belong to it."""


class Status(msgspec.Struct, frozen=True):
    """What an agent says about itself."""

    boot: str
    pid: int
    watchdog: int
    tasks: tuple[Held, ...]
    unacknowledged: int


def line(op: str, number: int, /, **data: Any) -> bytes:
    """One message."""
    return msgspec.json.encode({"op": op, "id": number, **data}) + b"\n"


async def messages(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The messages of a connection until it ends; ValueError for what is not one."""
    while True:
        try:
            raw = await reader.readline()
        except (ConnectionError, asyncio.LimitOverrunError):
            return
        if not raw.endswith(b"\n"):
            return
        message = msgspec.json.decode(raw)
        if not isinstance(message, dict) or not isinstance(message.get("op"), str):
            raise ValueError("expected an object with `op`")
        yield message


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name of at most 107 bytes for a unix socket, however deep its folder lies."""
    if len(os.fsencode(path)) < 100:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def listening(path: Path) -> socket.socket:
    """A unix socket that listens at `path`, for its owner only; what lay there before is removed."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with short_path(path) as name:
        listener.bind(name)
    path.chmod(0o600)
    listener.listen(64)
    return listener


async def connect(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to an agent's socket; OSError when nobody listens."""
    with short_path(path) as name:
        return await asyncio.open_unix_connection(name, limit=LINE_LIMIT)
