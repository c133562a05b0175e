"""`rollouts` for an event loop: the same books and the same rounds, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from gangflow.engines import kind
from gangflow.member import rollouts
from gangflow.member.async_follow import AsyncFollower
from gangflow.member.books import Books
from gangflow.member.dispatch import Flight
from gangflow.member.endpoints import Endpoint
from gangflow.member.failures import PolicyMismatch
from gangflow.member.follow import BEAT_S
from gangflow.member.ledger import Ledger
from gangflow.member.rollouts import REQUEST_TIMEOUT_S, flown
from gangflow.member.round import Letter, Round, facts_of, has_quorum, no_quorum
from gangflow.member.samples import Counters, PromptSamples
from gangflow.member.wire import Asked, Wire


class AsyncRollouts:
    """Calls for different steps may overlap up to `max_staleness + 1` (more would only be thrown away)."""

    def __init__(
        self,
        follower: AsyncFollower,
        books: Books,
        *,
        beat: Callable[[], None] = lambda: None,
        on_policy: Callable[[PolicyMismatch], Awaitable[None]],
        wire: Wire | None = None,
    ) -> None:
        self.books = books
        self._follower = follower
        self._beat = beat
        self._on_policy = on_policy
        self._wire = wire

    @property
    def counters(self) -> Counters:
        """What happened to samples since this process started."""
        return self.books.counters

    @property
    def ledger(self) -> Ledger:
        """Which prompts' samples were committed."""
        return self.books.ledger

    async def generate(
        self,
        prompts: Sequence[Any],
        samples_per_prompt: int = 1,
        params: Mapping[str, Any] | None = None,
        step: int | None = None,
        *,
        chunk: int | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        oldest: int = 0,
    ) -> list[PromptSamples]:
        """Samples for each prompt, in the order of `prompts`; `Rollouts.generate` has the whole story.

        Cancelled, nothing of it was committed: its samples are counted as lost, requests that are under way are given up, and
        another call for the same step makes new ones.
        """
        if samples_per_prompt < 1:
            raise ValueError(f"samples_per_prompt: at least 1, not {samples_per_prompt}")
        if not prompts:
            return []
        facts = facts_of(await self._follower.picture())
        self.books.published.max_staleness = facts.max_staleness
        numbered = (step, *self.books.number(step, len(prompts)))
        async with self._admitted(step, facts.max_staleness + 1):
            await self._wait_for_quorum(oldest)
            made = Round(self.books, self._follower.newest, prompts, samples_per_prompt, params, numbered, chunk, oldest)
            try:
                await self._drive(made, timeout_s)
            except PolicyMismatch as error:
                await self._on_policy(error)
                raise
            # From the last answer to the commit nothing is awaited: a cancellation comes before all of it, or after.
            return made.results()

    async def eligible(self) -> tuple[Endpoint, ...]:
        """Rollouts that may be sent work at this moment."""
        picture = await self._follower.picture()
        return tuple(self.books.usable(picture, facts_of(picture).rollout))

    async def close(self) -> None:
        """Close connections."""
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.close()

    # --- waiting

    @asynccontextmanager
    async def _admitted(self, step: int | None, bound: int) -> AsyncIterator[None]:
        if step is None:
            yield
            return
        loop, left = asyncio.get_running_loop(), asyncio.Event()

        # A step may be left by the blocking form, in another thread.
        def tell() -> None:
            loop.call_soon_threadsafe(left.set)

        stop = self.books.listen(tell)
        try:
            while not self.books.enter(step, bound):
                await left.wait()
                left.clear()
        finally:
            stop()
        try:
            yield
        finally:
            self.books.leave(step)

    async def _wait_for_quorum(self, oldest: int) -> None:
        loop = asyncio.get_running_loop()
        limit = facts_of(self._follower.newest).quorum_timeout_s + rollouts.QUORUM_GRACE_S
        deadline = loop.time() + limit
        while True:
            left = deadline - loop.time()
            self._beat()
            if await self._follower.wait(lambda picture: has_quorum(self.books, picture, oldest), max(0.0, min(left, BEAT_S))):
                return
            if left <= 0:
                raise no_quorum(self.books, self._follower.newest, limit, oldest)

    async def _drive(self, round_: Round, timeout_s: float) -> None:
        """Send what may fly, wait for an answer or for a change of the picture, repeat."""
        loop = asyncio.get_running_loop()
        mail: asyncio.Queue[Letter | None] = asyncio.Queue()
        running: dict[int, asyncio.Task[None]] = {}
        if self._wire is None:
            self._wire = kind(facts_of(self._follower.newest).engine).wire()
        wire = self._wire

        async def fly(flight: Flight, asked: Asked) -> None:
            mail.put_nowait(await flown(wire, flight, asked, timeout_s))

        stop = self._follower.listen(lambda: mail.put_nowait(None))
        given_up: list[asyncio.Task[None]] = []
        try:
            while not round_.done:
                now, picture = loop.time(), self._follower.newest
                limit = facts_of(picture).quorum_timeout_s + rollouts.QUORUM_GRACE_S
                dead, sent = round_.turn(now, picture, limit)
                for flight in dead:
                    if (task := running.pop(flight.id, None)) is not None:
                        task.cancel()
                        given_up.append(task)
                for flight, asked in sent:
                    running[flight.id] = asyncio.create_task(fly(flight, asked), name=f"gangflow-flight-{flight.id}")
                self._beat()
                for letter in await _letters(mail, round_.pause(now)):
                    running.pop(letter[0].id, None)
                    round_.take(letter, loop.time())
        except BaseException:
            round_.give_up()
            raise
        finally:
            stop()
            left = [*running.values(), *given_up]
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)


async def _letters(mail: asyncio.Queue[Letter | None], pause: float) -> list[Letter]:
    """Wait for one letter (at most so long), then take all that have come."""
    try:
        async with asyncio.timeout(pause):
            taken = [await mail.get()]
    except TimeoutError:
        return []
    while not mail.empty():
        taken.append(mail.get_nowait())
    return [letter for letter in taken if letter is not None]
