"""`gangflow.aio.context()`: `gangflow.context()` for programs with an event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from gangflow.errors import GangflowError
from gangflow.member import context as blocking
from gangflow.member.async_follow import AsyncFollower
from gangflow.member.async_rollouts import AsyncRollouts
from gangflow.member.async_weights import AsyncHeartbeat, AsyncWeights
from gangflow.member.checkpoint import Checkpoint
from gangflow.member.context import Context, failure_document
from gangflow.member.endpoints import Endpoint
from gangflow.member.failures import PolicyMismatch
from gangflow.member.identity import Placed
from gangflow.threads import in_thread
from gangflow.xce.rest.aclient import AsyncClient


class AsyncContext(Placed):
    """The methods of `gangflow.Context`, awaited; what never waits (`port`, `heartbeat`, `span`, …) is a plain call here, too.

    It belongs to the event loop that it is first used in. It shares ledger, counters, versions and the fields of heartbeats
    with the process's `Context`, so both may be used side by side: each sample still counts once.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.identity = context.identity
        self.claims = context.claims
        shared = context.shared
        self.client: AsyncClient = shared.connect()
        """For whatever has no method here: `await ctx.client.kv_get(ctx.group, "name")`."""
        self._follower = AsyncFollower(self.client, context.group)
        self._heartbeat = AsyncHeartbeat(shared.fields, self._send_beat)
        self._saving = asyncio.Lock()
        self._checkpoints = shared.checkpoints
        self.weights = AsyncWeights(context.weights.steps, self.client, self._follower, self._touch)
        """Publish a new policy to the rollouts."""
        self.rollouts = AsyncRollouts(self._follower, shared.books, beat=self._touch, on_policy=self._tell, wire=shared.wire)
        """Ask the eligible rollouts for samples."""

    # --- who else is there

    async def endpoints(self, member: str) -> tuple[Endpoint, ...]:
        """Who may be asked now: the eligible rollouts where there is a coordinator, else the member's READY slots."""
        return (await self._follower.picture()).endpoints(member)

    async def wait_endpoints(self, member: str, count: int = 1, timeout_s: float = 60.0) -> tuple[Endpoint, ...]:
        """Wait for at least `count` of them; TimeoutError says how many there were."""
        if not await self._follower.wait(lambda picture: len(picture.endpoints(member)) >= count, timeout_s):
            there = len(await self.endpoints(member))
            raise TimeoutError(f"{there} of {count} endpoints of {member!r} after {timeout_s:g} s")
        return await self.endpoints(member)

    # --- the actor's part

    def heartbeat(self, **fields: Any) -> None:
        """Say that this program is making progress (`step=…, reward=…`); at most 4 KiB of JSON, rate limited, never waits."""
        self._heartbeat.beat(fields)

    async def checkpoint(self, step: int, path: str | os.PathLike[str], **extra: Any) -> Checkpoint:
        """Make what lies at `path` the checkpoint of `step`, with the ledger of committed samples. Durable on return.

        Write to a new path each time, and save before you publish the weights that follow from it. Cancelled, it exists or
        not: save the same step again, which is safe.
        """
        async with self._saving:
            ledger, head = self.rollouts.books.through(step), self.weights.head
            saved = await in_thread(lambda: self._checkpoints.written(step, path, ledger, head, extra))
            await self._checkpoints.cell.awrite(self.client, saved.render())
            return saved

    async def resume(self) -> Checkpoint | None:
        """The newest checkpoint, verified, or None; go on with `step + 1` and publish its weights before the first generation.

        Restores the ledger, and resets versions and staleness: what an earlier incarnation published means nothing any more.
        """
        text = await self._checkpoints.cell.aread(self.client)
        if text is None:
            return None
        saved, ledger = await in_thread(lambda: self._checkpoints.verified(text))
        self.rollouts.books.reset(ledger)
        return saved

    async def diverged(self, message: str) -> NoReturn:
        """Say that an engine's samples disagree with the reference (POLICY): the group fails for it. Raises PolicyMismatch."""
        error = PolicyMismatch(message)
        await self._tell(error)
        raise error

    def span(self, name: str, **attributes: str | int) -> AbstractContextManager[None]:
        """Measure what is inside the `with` as a span of the group's trace; nested ones, of this task, become its children."""
        return self._context.span(name, **attributes)

    async def close(self) -> None:
        """End its tasks and connections; the process's `Context` stays as it is, and `context()` makes a new one."""
        for loop in [loop for loop, mine in _contexts.items() if mine is self]:
            del _contexts[loop]
        await self._heartbeat.close()
        await self._follower.close()
        await self.rollouts.close()
        await self.client.close()

    async def __aenter__(self) -> AsyncContext:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- inside

    async def _tell(self, error: PolicyMismatch) -> None:
        name, document = failure_document(self.incarnation, error)
        try:
            await self.client.kv_put(self.group, name, document)
        except GangflowError:
            pass  # The exit of this process says it too, only less precisely.

    def _touch(self) -> None:
        self._heartbeat.beat({})

    async def _send_beat(self, body: Mapping[str, Any]) -> None:
        await self.client.beat(self.group, self.member, self.slot, body)


_contexts: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncContext] = WeakKeyDictionary()


def context() -> AsyncContext:
    """This process's place in its group, for the running event loop (RuntimeError outside of one); one for each loop.

    NotAMember, with what is missing, when XCE did not start this process.
    """
    loop, owner = asyncio.get_running_loop(), blocking.context()
    found = _contexts.get(loop)
    if found is None or found._context is not owner:
        found = _contexts[loop] = AsyncContext(owner)
    return found
