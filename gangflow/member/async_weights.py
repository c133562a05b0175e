"""`weights`, heartbeats and checkpoints for an event loop: the steps of the blocking forms, with files in a thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gangflow.channel import Probe, WeightsId
from gangflow.errors import GangflowError, NoQuorum, Superseded
from gangflow.member.async_follow import AsyncFollower
from gangflow.member.follow import quiet
from gangflow.member.heartbeat import INTERVAL_S, Fields
from gangflow.member.weights import AsyncValues, Publishing
from gangflow.threads import in_thread


class AsyncWeights:
    """One writer per incarnation of the actor. Save a checkpoint before you publish what came after it."""

    def __init__(
        self, steps: Publishing, values: AsyncValues, follower: AsyncFollower, beat: Callable[[], object] = quiet
    ) -> None:
        """`beat`: called while `wait_synced` waits, at least once a second."""
        self._steps = steps
        self._values = values
        self._follower = follower
        self._beat = beat
        self._lock = asyncio.Lock()

    @property
    def head(self) -> WeightsId | None:
        """What this incarnation published last; None before its first."""
        return self._steps.head

    @property
    def version(self) -> int:
        """The trainer's version: −1 before the first publish of this incarnation."""
        return self._steps.version

    async def publish(
        self, version: int, path: str | os.PathLike[str], data: bytes | None = None, probe: Probe | None = None
    ) -> WeightsId:
        """Make the file (or folder) at `path` the policy, as `version`; `Weights.publish` has the whole story.

        Cancelled, it is durable or not: publish the same version again, which is safe.
        """
        async with self._lock:
            self._steps.check(version)
            head = await in_thread(lambda: self._steps.written(version, path, data, probe))
            self._steps.announce(head.weights)
            await self._steps.cell.awrite(self._values, head.render())
            self._steps.done(head.weights)
            return head.weights

    async def wait_synced(
        self, version: int | None = None, rollouts: int | None = None, timeout_s: float | None = None
    ) -> float:
        """Wait till `rollouts` (default: `min_rollouts`) eligible ones carry `version` (default: the newest), in seconds.

        NoQuorum after `timeout_s` (default: `quorum_timeout`). Not needed before `rollouts.generate`, which waits by itself.
        """
        wanted = self.version if version is None else version
        loop = asyncio.get_running_loop()
        began = loop.time()
        facts = (await self._follower.picture()).coordinator
        if facts is None:
            raise NoQuorum("this group has no coordinator: nobody brings weights to its rollouts")
        need = facts.min_rollouts if rollouts is None else rollouts
        if not await self._follower.wait(
            lambda picture: self._steps.carried(picture, facts.rollout, wanted) >= need,
            facts.quorum_timeout_s if timeout_s is None else timeout_s,
            self._beat,
        ):
            raise NoQuorum(f"fewer than {need} rollouts carry version {wanted}")
        return loop.time() - began


class AsyncHeartbeat:
    """The newest fields, sent by a task; only what the program itself does makes a beat."""

    def __init__(
        self, fields: Fields, send: Callable[[Mapping[str, Any]], Awaitable[object]], interval_s: float = INTERVAL_S
    ) -> None:
        self._fields = fields
        self._send = send
        self._interval_s = interval_s
        self._due = asyncio.Event()
        self._idle = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def beat(self, fields: Mapping[str, Any]) -> None:
        """See `Heartbeat.beat`: never waits; TypeError, ValueError and Superseded are its."""
        self._fields.say(fields)
        self._due.set()
        self._idle.clear()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="gangflow-heartbeat")

    async def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait till the newest beat was sent (or dropped)."""
        if self._task is None:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Send what is due, and end the task; a later beat starts it again."""
        task, self._task = self._task, None
        if task is not None:
            if self._due.is_set():
                await self._once()
            task.cancel()
            await asyncio.wait({task})

    async def _run(self) -> None:
        while True:
            await self._due.wait()
            await self._once()
            await asyncio.sleep(self._interval_s)

    async def _once(self) -> None:
        self._due.clear()
        try:
            await self._send(self._fields.body())
        except Superseded as error:
            self._fields.over(error)
        except GangflowError:
            pass
        if not self._due.is_set():
            self._idle.set()
