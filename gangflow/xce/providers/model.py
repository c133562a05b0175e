"""The `model` provider: a model or data folder, verified by its checksum, in the cache of each host where its slot runs.

Parameters: `source`, the absolute path of a file or folder as the hosts have it (or `file://` and that); `sha256`, its
checksum; `size`, optional, above which a source is refused. The checksum of a file is its SHA-256. That of a folder is the
SHA-256 of its manifest: one line `<sha256>  <path>` for each file, paths relative to the folder and sorted by their bytes, as
`find -L . -type f -printf '%P\\0' | LC_ALL=C sort -z | xargs -0 sha256sum` prints it in the folder.
`python -m gangflow.xce.hosts.checksums PATH` (or `gangflow.xce.hosts.checksums.checksum`) computes either.

What is cached lies under its checksum, once for all slots and groups that want it; it appears there whole, or not at all. As
long as a claim pins it, it stays; what nobody pins is evicted when there is need of room, least recently used first. Where the
cache is, and how large, the cluster's description says (`cache: {path, size}`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from gangflow.specs.quantity import memory_mib
from gangflow.xce.core.effects import Provision, Release
from gangflow.xce.ports import Held, ModelCaches, ModelState, ModelWanted, Provisioned
from gangflow.xce.providers.rules import MODEL, source_path

_log = logging.getLogger(__name__)
ASK_S = 1.0
"""Between two questions to a node whose answer came at once: normally it answers when there is news."""
DROP_TRIES = 3
DROP_S = 10.0
"""For a node to answer that it dropped a pin. One that does not is left alone: a pin that nobody renews is none after a day."""


class ModelFailed(RuntimeError):
    """It could not be made on one of the hosts."""


@dataclass(frozen=True, slots=True)
class Models:
    """What the provider needs of its cluster."""

    caches: ModelCaches
    node_of: Callable[[str], str]
    """The node that serves a host."""
    cluster_id: Callable[[], str]
    root: str
    """The cache's folder, the same on every node."""
    limit_mib: int


class ModelProvider:
    """Has models made on the nodes of a slot, all at once."""

    rules = MODEL

    def __init__(self, models: Models | None) -> None:
        self._models = models

    async def provision(self, request: Provision) -> Provisioned:
        """Where it is, on which hosts. Raises ModelFailed, or OSError when a node cannot be reached."""
        models = self._with()
        if not request.hosts:
            raise ModelFailed("a model is made on the hosts of a slot, and there are none")
        parameters = dict(request.parameters)
        size = parameters.get("size", "")
        wanted = ModelWanted(
            pin=self._pin(models, request.claim),
            root=models.root,
            limit_mib=models.limit_mib,
            source=source_path(parameters.get("source", "")),
            sha256=parameters.get("sha256", ""),
            most_mib=memory_mib(int(size) if size.isdecimal() else size) if size else 0,
        )
        nodes = dict.fromkeys(models.node_of(host) for host in request.hosts)
        paths = dict.fromkeys(await _all(*(self._on(models, node, wanted) for node in nodes)))
        if len(paths) > 1:
            raise ModelFailed(f"it lies in different places on its hosts: {', '.join(paths)}")
        return Provisioned(next(iter(paths)), request.hosts[0], request.hosts)

    async def release(self, request: Release) -> None:
        """Its pins go. A node that does not answer, or is gone, keeps its one for a day at most."""
        models = self._with()
        pin = self._pin(models, request.claim)
        for node in dict.fromkeys(models.node_of(host) for host in request.hosts):
            for attempt in range(DROP_TRIES):
                try:
                    async with asyncio.timeout(DROP_S):
                        await models.caches.drop_model(node, models.root, pin)
                    break
                except (OSError, TimeoutError) as error:
                    _log.info("node %s did not drop its pin for %s (%r), try %d", node, request.claim, error, attempt + 1)
                    await asyncio.sleep(ASK_S)

    async def check(self, held: Held) -> str:
        """Whether it is whole on all its hosts; renews the pins. Raises OSError when nobody can tell."""
        models = self._with()
        pin = self._pin(models, held.claim)
        for node in dict.fromkeys(models.node_of(host) for host in held.hosts):
            wrong = await models.caches.check_model(node, models.root, pin)
            if wrong:
                return f"{wrong} on {node}"
        return ""

    def _with(self) -> Models:
        if self._models is None:
            raise ModelFailed("this controller has no way to the caches of its hosts")
        return self._models

    def _pin(self, models: Models, claim: str) -> str:
        return f"{models.cluster_id()}/{claim}"

    async def _on(self, models: Models, node: str, wanted: ModelWanted) -> str:
        """Until it is there: a node makes it as long as somebody asks."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            state: ModelState = await models.caches.want_model(node, wanted)
            if state.error:
                raise ModelFailed(f"{state.error} (on {node})")
            if state.path:
                return state.path
            await asyncio.sleep(max(0.0, ASK_S - (loop.time() - began)))


async def _all(*calls: Coroutine[Any, Any, str]) -> list[str]:
    """The results of all; the first failure ends the others."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
