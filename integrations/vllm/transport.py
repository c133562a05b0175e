"""How new weights reach an engine: the part of a load that differs between a shared folder and a collective.

The engine's adapter does the rest (marker, prefix cache, version), so a transport only makes ready and carries. One that is a
collective of trainer and engines is valid for one membership: it is built for a `membership_version`, and closed when a load of
a newer one comes. What `head.path` means is the transport's: a folder here, an address for one that meets the trainer.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal, Protocol, get_args

import msgspec

from gangflow.channel import Head
from gangflow.coordinators.engine import EngineRefused
from gangflow.errors import SetupError
from gangflow.integrations.vllm.calls import Calls
from gangflow.integrations.vllm.capabilities import RELOAD, Capabilities
from gangflow.member.digest import digest, seal

Check = Literal["digest", "bytes", "beside", "files", "none"]
"""What is looked at: that the files are those that were hashed, by the head's seal, and without it every byte, before an engine
is told the path; every byte, also of sealed ones; the files' headers and sizes before, and every byte beside the loading;
headers and sizes only; nothing (where the coordinator does not see the path)."""
VARIABLE = "GANGFLOW_VLLM_CHECK"
"""The environment variable, of the coordinator, that chooses the check: `digest` when it is not set."""
REMEMBERED = 16
"""Heads whose check is remembered."""
MAX_HEADER = 100_000_000
"""Bytes of a safetensors file's header: more is none."""


class Transport(Protocol):
    """Brings the weights of a head into engines. One object serves all engines of a membership."""

    async def prepare(self, head: Head, able: Capabilities) -> None:
        """Whatever can be checked before the engine is touched. EngineRefused: its old weights are still whole."""
        ...

    async def carry(self, calls: Calls, head: Head) -> None:
        """Bring them in. The engine is paused. EngineRefused, EngineSilent: nobody knows what it has now."""
        ...

    async def close(self) -> None: ...


class Transports(Protocol):
    """Whatever knows the transport of a membership: `PathTransport` for all of them, or `Memberships`."""

    async def transport(self, membership_version: int) -> Transport:
        """The one that is valid for that membership. EngineRefused when there is none any more."""
        ...


TransportFactory = Callable[[int], Transport]
"""Makes the transport of one membership version."""


class Memberships:
    """Transports that are valid for one membership each: the newest one's, shared by the engines of one coordinator."""

    def __init__(self, factory: TransportFactory) -> None:
        self._factory = factory
        self._version = -1
        self._transport: Transport | None = None

    async def transport(self, membership_version: int) -> Transport:
        """The one that was built for that membership. EngineRefused for one that is over: nothing may block in it."""
        if membership_version < self._version:
            raise EngineRefused(f"membership {membership_version} is over: {self._version} holds")
        if self._transport is None or membership_version > self._version:
            old, self._transport = self._transport, self._factory(membership_version)
            self._version = membership_version
            if old is not None:
                await old.close()
        return self._transport


class PathTransport:
    """A folder that every engine can read. Valid for any membership."""

    def __init__(self, check: Check = "digest") -> None:
        self._check = check
        self._lock = threading.Lock()
        self._running: dict[tuple[Head, Check], Future[str]] = {}
        self._passed: dict[tuple[Head, Check], str] = {}
        """What passed, and by which seal it is still the same."""
        # A thread of its own: hashing a large model must not hold up the loop, nor the threads that others wait for.
        self._pool = ThreadPoolExecutor(1, "weights-check")

    async def prepare(self, head: Head, able: Capabilities) -> None:
        if fault := able.lacks(RELOAD):
            raise EngineRefused(fault)
        if self._check == "none":
            return
        await self._passes(head, "files" if self._check == "beside" else self._check)

    async def carry(self, calls: Calls, head: Head) -> None:
        beside = self._checked(head, "bytes") if self._check == "beside" else None
        await calls.post(RELOAD, {"method": "reload_weights", "kwargs": {"weights_path": head.path}})
        if beside is not None:
            await self._passes(head, "bytes")

    async def close(self) -> None:
        """Nothing is open between two loads."""

    async def transport(self, membership_version: int) -> PathTransport:
        """The same for every membership, and what was checked stays so."""
        return self

    async def _passes(self, head: Head, check: Check) -> None:
        """EngineRefused when it does not."""
        if fault := await asyncio.shield(asyncio.wrap_future(self._checked(head, check))):
            raise EngineRefused(fault)

    def _checked(self, head: Head, check: Check) -> Future[str]:
        """Once at a time for each head, however many engines ask."""
        with self._lock:
            self._running = {key: running for key, running in self._running.items() if not running.done()}
            if (head, check) not in self._running:
                self._running[(head, check)] = self._pool.submit(self._fault, head, check)
            return self._running[(head, check)]

    def _fault(self, head: Head, check: Check) -> str:
        """What passed is not read again, for an engine that comes later, unless it was changed since."""
        try:
            now = seal(head.path)
        except OSError:
            now = ""  # `fault_of` says why.
        if now and self._passed.get((head, check)) == now:
            return ""
        fault = fault_of(head, check)
        if not fault:
            self._passed[(head, check)] = now
            while len(self._passed) > REMEMBERED:
                del self._passed[next(iter(self._passed))]
        return fault


def fault_of(head: Head, check: Check) -> str:
    """Why an engine must not have this; empty when it may."""
    try:
        if check == "files":
            return files_fault(Path(head.path))
        if check == "digest" and head.seal and seal(head.path) == head.seal:
            return ""
        found = digest(head.path)
    except OSError as error:
        return (
            f"{head.path} cannot be read here: {error.strerror or error}. "
            f"Where the coordinator does not see it, set {VARIABLE}=none for the coordinator"
        )
    if found != head.weights.sha256:
        return f"{head.path} has sha256 {found[:12]}, {head.weights.sha256[:12]} was published"
    return ""


def files_fault(folder: Path) -> str:
    """What is wrong with a model folder, as its files' own headers say; empty when they fit. OSError when it cannot be read."""
    shards = sorted(file for file in folder.iterdir() if file.suffix == ".safetensors")
    if not shards:
        return f"{folder} has no .safetensors file"
    held: set[str] = set()
    for shard in shards:
        names = _tensors(shard)
        if isinstance(names, str):
            return names
        held |= names
    index = folder / "model.safetensors.index.json"
    if index.exists():
        try:
            wanted = set(msgspec.json.decode(index.read_bytes())["weight_map"])
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            return f"{index} is no index: {error}"
        if missing := sorted(wanted - held):
            return f"{folder} lacks {len(missing)} tensors of its index, the first of them {missing[0]}"
    return ""


def _tensors(shard: Path) -> set[str] | str:
    """The names in a safetensors file whose size is what its header says; else the fault."""
    size = shard.stat().st_size
    with shard.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(MAX_HEADER, size - 8):
            return f"{shard} is no safetensors file, or only its beginning"
        try:
            header = msgspec.json.decode(file.read(length))
            tensors = {name: each["data_offsets"] for name, each in header.items() if name != "__metadata__"}
            end = max((int(offsets[1]) for offsets in tensors.values()), default=0)
        except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            return f"{shard} has no readable header: {error}"
    if size != 8 + length + end:
        return f"{shard} has {size} bytes, its header says {8 + length + end}"
    return set(tensors)


def by_path(environment: Mapping[str, str] = os.environ) -> PathTransport:
    """As the coordinator's environment wants it. SetupError for a check that there is not."""
    given = environment.get(VARIABLE) or "digest"
    for check in get_args(Check):
        if check == given:
            return PathTransport(check)
    raise SetupError(f"{VARIABLE}={given!r}: one of {', '.join(get_args(Check))}")
