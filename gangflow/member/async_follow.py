"""`follow` for an event loop: the picture of the group, kept fresh by a task."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from gangflow.channel import ELIGIBLE
from gangflow.errors import NotFound, Superseded, Unauthorized, XceError
from gangflow.member.endpoints import Picture, changed, coordinator_facts, listed
from gangflow.member.follow import BEAT_S, FIRST_PICTURE_S, RELIST_S, quiet
from gangflow.xce.rest.messages import EventView, ValueView
from gangflow.xce.rest.schema import GroupView


class AsyncGroupReader(Protocol):
    """What the follower asks of XCE; `gangflow.xce.rest.aclient.AsyncClient` is one."""

    async def group(self, group: str) -> GroupView: ...

    async def kv_get(self, group: str, name: str) -> ValueView: ...

    def events(self, after: int | None = None, group: str = "") -> AsyncIterator[EventView]: ...


class AsyncFollower:
    """One per event loop. Not thread-safe."""

    def __init__(self, client: AsyncGroupReader, group: str) -> None:
        self._client = client
        self._group = group
        self._picture = Picture()
        self._listeners: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._fatal: XceError | None = None

    async def picture(self) -> Picture:
        """The newest picture; the first call starts the task and waits for the first list. XceError when there is none."""
        await self.wait(lambda picture: picture.seq >= 0, FIRST_PICTURE_S)
        return self._picture

    @property
    def newest(self) -> Picture:
        """The newest picture, for those who have waited for the first one. Raises what ended the follower."""
        if self._fatal is not None:
            raise self._fatal
        return self._picture

    async def wait(self, condition: Callable[[Picture], bool], timeout_s: float, beat: Callable[[], object] = quiet) -> bool:
        """True once the condition holds, False after the timeout. Raises what ended the follower.

        `beat` is called at once, and again every `BEAT_S` while it waits: who waits is not hung.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="gangflow-follow")
        moved = asyncio.Event()
        stop = self.listen(moved.set)
        try:
            async with asyncio.timeout(timeout_s):
                beat()
                while self._fatal is None and not condition(self._picture):
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(moved.wait(), BEAT_S)
                    moved.clear()
                    beat()
        except TimeoutError:
            return False
        finally:
            stop()
        if self._fatal is not None:
            raise self._fatal
        return True

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every change; returns what ends that."""
        self._listeners.append(listener)

        def stop() -> None:
            self._listeners.remove(listener)

        return stop

    async def close(self) -> None:
        """End the task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                await self._list()
                async for event in self._client.events(self._picture.seq, self._group):
                    self._adopt(changed(self._picture, event.seq, event.type, event.data))
                    if self._picture.stale_view:
                        await self._list()
            except (NotFound, Superseded, Unauthorized) as error:
                # This incarnation has been replaced, or its group forgotten: it will never be told anything again.
                self._end(error)
                return
            except XceError:
                await asyncio.sleep(RELIST_S)
            except Exception as error:  # A picture that stands still for no reason would be worse than an error.
                self._end(XceError(f"the group cannot be followed: {type(error).__name__}: {error}"))
                return

    async def _list(self) -> None:
        # The view before the value: what is written in between comes again by the stream, and versions keep the order.
        view = await self._client.group(self._group)
        facts = coordinator_facts(view.document)
        self._adopt(listed(view, facts, await self._client.kv_get(self._group, ELIGIBLE) if facts else None))

    def _adopt(self, picture: Picture) -> None:
        if picture != self._picture:
            self._picture = picture
            self._tell()

    def _end(self, error: XceError) -> None:
        self._fatal = error
        self._tell()

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()
