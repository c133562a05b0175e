"""The one writer: takes all that waits as one batch, lets the machine decide, makes it durable, and only then believes it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from gangflow.errors import GangflowError, JournalError, JournalFull, JournalLocked, Unreachable, XceError
from gangflow.xce.controller.options import FULL_RETRY_S, QUEUE_LIMIT, TICK_RETRY_S, TURN_LIMIT
from gangflow.xce.core.inputs import Input, Reply, Tick
from gangflow.xce.core.state import State
from gangflow.xce.journal.record import Batch
from gangflow.xce.journal.store import Journal
from gangflow.xce.machine import Decision, Machine
from gangflow.xce.ports import Clock

_log = logging.getLogger(__name__)


class Decider(Protocol):
    """What the writer asks: `xce.machine.Machine`."""

    def handle(self, inputs: Sequence[Input], now_ms: int) -> Decision: ...
    def next_deadline(self) -> int | None: ...


Adopted = Callable[[Sequence[Input], Decision, Batch], None]


@dataclass(slots=True, eq=False)
class _Ask:
    """Inputs of one caller: a command, or reports that are acknowledged together."""

    inputs: tuple[Input, ...]
    command: bool
    done: asyncio.Future[tuple[Reply | None, ...]]

    def answer(self, replies: Sequence[Reply | None]) -> None:
        if not self.done.done():  # the caller may have gone away; what it asked for stands all the same
            self.done.set_result(tuple(replies))

    def fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Writer:
    """Turns queued inputs into durable decisions, one batch at a time."""

    def __init__(
        self,
        journal: Journal,
        state: State,
        clock: Clock,
        adopted: Adopted,
        machine: Callable[[State], Decider] | None = None,
    ) -> None:
        """`adopted` is called right after a batch became durable and the state was taken over."""
        self.state = state
        self.trouble: GangflowError | None = None
        """Why nothing is taken now (JournalFull, JournalLocked: passing; anything else: for good)."""
        self.rejected = 0
        """Reports that the machine could not take: each is a fault in it, and was logged with its traceback."""
        self._journal = journal
        self._make_machine: Callable[[State], Decider] = machine or Machine
        self._machine = self._make_machine(state)
        self._clock = clock
        self._adopted = adopted
        self._queue: deque[_Ask] = deque()
        self._waiting = 0
        self._wake = asyncio.Event()
        self._space = asyncio.Event()
        self._space.set()
        self._closing = False
        self._tick_after = self._retry_after = 0.0
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._task: asyncio.Task[None] | None = None

    # --- for callers --------------------------------------------------------------------------------------------------

    async def begin(self, first: Input) -> None:
        """Make the first input durable (errors are the caller's), then take what comes."""
        ask = _Ask((first,), True, asyncio.get_running_loop().create_future())
        await self._turn([ask])
        await ask.done
        self._task = asyncio.create_task(self._run(), name="writer")

    async def command(self, command: Input) -> Reply:
        """The reply, once it is durable."""
        if self._waiting >= QUEUE_LIMIT:
            raise XceError(f"{self._waiting} inputs are waiting already", status=503, problem="busy")
        reply = (await self._submit((command,), command=True))[0]
        assert reply is not None, f"the machine gave no reply to {type(command).__name__}"
        return reply

    async def report(self, reports: Sequence[Input]) -> None:
        """Returns when they are durable. Waits while the disk is full: a report is never dropped for that."""
        if not reports:
            return
        while self._waiting >= QUEUE_LIMIT and not self._closing:
            self._space.clear()
            await self._space.wait()
        await self._submit(tuple(reports), command=False)

    def wake(self) -> None:
        """Look at the clock again."""
        self._wake.set()

    def halt(self, error: GangflowError) -> None:
        """Take nothing any more, for this reason; what waits is refused with it."""
        self.trouble = error
        while self._queue:
            self._queue.popleft().fail(error)
        self._waiting = 0
        self._space.set()
        self._wake.set()

    async def close(self) -> None:
        """Finish the batch that is under way, and refuse what waits behind it."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self.halt(self.trouble or Unreachable("the controller is stopping", status=503))
        self._disk.shutdown(wait=True)

    async def on_disk(self, call: Callable[[], None]) -> None:
        """Something else to do in the journal's thread, between two batches."""
        await asyncio.get_running_loop().run_in_executor(self._disk, call)

    @property
    def finished(self) -> asyncio.Task[None] | None:
        """Ends when the writer does: by `close`, or because it cannot go on (then `trouble` says why)."""
        return self._task

    @property
    def _over(self) -> bool:
        return self._closing or not (self.trouble is None or _passes(self.trouble))

    # --- the loop -----------------------------------------------------------------------------------------------------

    async def _submit(self, inputs: tuple[Input, ...], *, command: bool) -> tuple[Reply | None, ...]:
        if self._closing:
            raise Unreachable("the controller is stopping", status=503)
        if self.trouble is not None and self._over:
            raise self.trouble
        ask = _Ask(inputs, command, asyncio.get_running_loop().create_future())
        self._queue.append(ask)
        self._waiting += len(inputs)
        self._wake.set()
        return await ask.done

    async def _run(self) -> None:
        try:
            while not self._over:
                await self._sleep()
                if not self._over:
                    held = await self._turn(self._take())
                    self._queue.extendleft(reversed(held))
                    self._waiting += sum(len(ask.inputs) for ask in held)
        except Exception as error:
            _log.exception("the controller cannot go on")
            self.halt(error if isinstance(error, GangflowError) else GangflowError(f"internal fault: {error!r}"))

    async def _sleep(self) -> None:
        """Until something waits, a deadline has come, or it is over."""
        while not self._over:
            self._wake.clear()
            pause = self._pause()
            if pause is not None and pause <= 0:
                return
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _pause(self) -> float | None:
        """Seconds until there is something to do; None: until woken."""
        now = asyncio.get_running_loop().time()
        pauses = []
        if self._queue:
            # While the disk is full reports wait for the next try; a command may try (and fail) at once.
            held = isinstance(self.trouble, JournalError) and not any(ask.command for ask in self._queue)
            pauses.append(self._retry_after - now if held else 0.0)
        deadline = self._machine.next_deadline()
        if deadline is not None:
            pauses.append(max((deadline - self._clock.now_ms()) / 1000, self._tick_after - now))
        return min(pauses, default=None)

    def _take(self) -> list[_Ask]:
        asks: list[_Ask] = []
        size = 0
        while self._queue and (not asks or size + len(self._queue[0].inputs) <= TURN_LIMIT):
            asks.append(self._queue.popleft())
            size += len(asks[-1].inputs)
        self._waiting -= size
        self._space.set()
        return asks

    async def _turn(self, asks: list[_Ask]) -> list[_Ask]:
        """One batch: the inputs of `asks`, or a tick if there are none. Returns the asks that have to be tried again."""
        inputs: tuple[Input, ...] = tuple(each for ask in asks for each in ask.inputs) or (Tick(),)
        now_ms = max(self._clock.now_ms(), self.state.now_ms)
        try:
            decision = self._machine.handle(inputs, now_ms)
            batch = Batch(self._journal.seq + 1, decision.state.term, now_ms, inputs, decision.events)
            if batch.events:
                batch = await asyncio.get_running_loop().run_in_executor(self._disk, self._journal.append, batch)
        except (JournalFull, JournalLocked) as error:
            self._undo()
            return self._hold(asks, error)
        except JournalError as error:
            self._undo()
            for ask in asks:
                ask.fail(error)
            self.halt(error)
            return []
        except Exception as error:
            self._undo()
            return await self._isolate(asks, error)
        if _passes(self.trouble):
            self.trouble = None
        self.state = decision.state
        replies = iter(decision.replies)
        for ask in asks:
            ask.answer([next(replies) for _ in ask.inputs])
        if batch.events:
            self._adopted(inputs, decision, batch)
        elif not asks:
            self._tick_after = asyncio.get_running_loop().time() + TICK_RETRY_S
        return []

    def _undo(self) -> None:
        """The machine has gone on from what it decided; what was not made durable has never been."""
        self._machine = self._make_machine(self.state)

    def _hold(self, asks: list[_Ask], error: GangflowError) -> list[_Ask]:
        """No space now: commands are refused, reports are kept."""
        if self.trouble is None:
            _log.error("%s; commands are refused, reports wait", error)
        if self.trouble is None or _passes(self.trouble):
            self.trouble = error
        now = asyncio.get_running_loop().time()
        self._retry_after, self._tick_after = now + FULL_RETRY_S, now + TICK_RETRY_S
        for ask in asks:
            if ask.command:
                ask.fail(error)
        return [ask for ask in asks if not ask.command]

    async def _isolate(self, asks: list[_Ask], error: Exception) -> list[_Ask]:
        """The machine (or the encoding) failed on a batch: one bad input must not take the others with it."""
        if not asks:
            _log.error("a tick failed; it is tried again", exc_info=error)
            self._tick_after = asyncio.get_running_loop().time() + TICK_RETRY_S
            return []
        if len(asks) == 1 and len(asks[0].inputs) == 1:
            if asks[0].command:
                asks[0].fail(error)
            else:
                # Acknowledged all the same: sent again and again, it would hold up all that its agent has to say after it.
                self.rejected += 1
                _log.error("a report could not be taken and is passed over: %r", asks[0].inputs[0], exc_info=error)
                asks[0].answer([None])
            return []
        held: list[_Ask] = []
        for single in [part for ask in asks for part in _parts(ask)]:
            # Once one of them has to wait, those behind it do too: reports keep their order.
            held += self._hold([single], self.trouble) if held and self.trouble else await self._turn([single])
        return held


def _parts(ask: _Ask) -> list[_Ask]:
    """An ask for each input of it; the ask itself is answered when all of them are."""
    if len(ask.inputs) == 1:
        return [ask]
    loop = asyncio.get_running_loop()
    parts = [_Ask((each,), ask.command, loop.create_future()) for each in ask.inputs]

    def collect(gathered: asyncio.Future[list[tuple[Reply | None, ...]]]) -> None:
        failed = gathered.exception()
        if failed is not None:
            ask.fail(failed)
        else:
            ask.answer([reply for replies in gathered.result() for reply in replies])

    asyncio.gather(*(part.done for part in parts)).add_done_callback(collect)
    return parts


def _passes(trouble: GangflowError | None) -> bool:
    return isinstance(trouble, JournalFull | JournalLocked)
