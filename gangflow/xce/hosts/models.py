"""An agent's part of the model cache: makes what is wanted, once however many want it, as long as somebody asks for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gangflow.xce.hosts.modelcache import MIB, Abandoned, CacheError, ModelCache, Progress
from gangflow.xce.ports import ModelState, ModelWanted

log = logging.getLogger("gangflow.agent")
T = TypeVar("T")
ANSWER_S = 3.0
"""A question is answered after this long at the latest, done or not."""
INTEREST_S = 30.0
"""What nobody asked for during this long is not made any further."""
AT_ONCE = 2
"""Copies at a time: more of them would share the same disk."""


@dataclass(slots=True)
class _Making:
    progress: Progress
    work: asyncio.Future[str]
    """An error, or empty."""
    interest: asyncio.TimerHandle | None = field(default=None)


class ModelWork:
    """The models of one node."""

    def __init__(self) -> None:
        self._making: dict[tuple[str, str], _Making] = {}
        self._copies = ThreadPoolExecutor(AT_ONCE, "models")
        self._looks = ThreadPoolExecutor(1, "cache")
        self._sources = ThreadPoolExecutor(AT_ONCE, "sources")

    async def want(self, wanted: ModelWanted, answer_s: float = ANSWER_S) -> ModelState:
        """Pin it; its path if it is there. Otherwise it is made meanwhile, and whoever asks again hears of it."""
        cache = ModelCache(Path(wanted.root))
        name = Path(wanted.source).name
        try:
            path = await self._look(lambda: cache.pin(wanted.sha256, wanted.pin, name))
        except (CacheError, OSError) as error:
            return ModelState(error=str(error))
        if path:
            return await self._found(cache, wanted, path, answer_s)
        key = (wanted.root, wanted.sha256)
        making = self._making.get(key)
        if making is not None and making.progress.ended:
            await asyncio.wait([making.work])
            making = self._making.get(key)
        if making is None or making.work.done():
            making = self._making[key] = self._begin(cache, wanted)
            making.work.add_done_callback(lambda work: self._forget(key, work))
        self._keep_up(making)
        done, _ = await asyncio.wait([making.work], timeout=answer_s)
        if not done:
            return ModelState("", making.progress.done, making.progress.total)
        if failure := making.work.result():
            return ModelState("", making.progress.done, making.progress.total, failure)
        # It may have been made for another claim, of another source.
        return await self._found(cache, wanted, await self._look(lambda: cache.pin(wanted.sha256, wanted.pin, name)), answer_s)

    async def drop(self, root: str, pin: str) -> None:
        """A claim's pin goes."""
        await self._look(lambda: ModelCache(Path(root)).drop(pin))

    async def check(self, root: str, pin: str) -> str:
        """What is wrong with what a claim pinned; empty: nothing."""
        return await self._look(lambda: ModelCache(Path(root)).check(pin))

    def close(self) -> None:
        """What is being made is not made any further."""
        for making in self._making.values():
            making.progress.ended = True
        self._copies.shutdown(wait=True, cancel_futures=True)
        self._looks.shutdown(wait=True)
        self._sources.shutdown(wait=False, cancel_futures=True)

    async def _found(self, cache: ModelCache, wanted: ModelWanted, path: str, answer_s: float) -> ModelState:
        """What is there, unless its source is plainly another thing than its checksum says: then it would not be made, either.

        A source whose storage hangs is one that cannot be read any more; what is cached does not need it.
        """
        loop = asyncio.get_running_loop()
        look = loop.run_in_executor(self._sources, cache.unlike, wanted.sha256, Path(wanted.source))
        done, _ = await asyncio.wait([look], timeout=answer_s)
        wrong = look.result() if path and done else ""
        return ModelState(error=wrong) if wrong else ModelState(path)

    def _begin(self, cache: ModelCache, wanted: ModelWanted) -> _Making:
        progress = Progress()

        def make() -> str:
            try:
                source, limit, most = Path(wanted.source), wanted.limit_mib * MIB, wanted.most_mib * MIB
                cache.make(source, wanted.sha256, limit, most, progress)
            except Abandoned:
                return "nobody asked for it any more"
            except (CacheError, OSError) as error:
                return str(error)
            return ""

        log.info("making model %s from %s", wanted.sha256[:12], wanted.source)
        return _Making(progress, asyncio.get_running_loop().run_in_executor(self._copies, make))

    def _keep_up(self, making: _Making) -> None:
        if making.interest is not None:
            making.interest.cancel()
        making.interest = asyncio.get_running_loop().call_later(INTEREST_S, setattr, making.progress, "ended", True)

    def _forget(self, key: tuple[str, str], work: asyncio.Future[str]) -> None:
        making = self._making.get(key)
        if making is not None and making.work is work:
            del self._making[key]
            if making.interest is not None:
                making.interest.cancel()

    async def _look(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._looks, work)
