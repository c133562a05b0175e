"""`context.rollouts`: ask the eligible rollouts for samples, through deaths, restarts and new weights, each committed once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any

from gangflow.engines import kind
from gangflow.member.books import Books
from gangflow.member.dispatch import Flight
from gangflow.member.endpoints import Endpoint
from gangflow.member.failures import FailureClass, PolicyMismatch
from gangflow.member.follow import BEAT_S, Follower
from gangflow.member.io import CLOSE_S, IoThread
from gangflow.member.ledger import Ledger
from gangflow.member.round import Letter, Round, facts_of, has_quorum, no_quorum
from gangflow.member.samples import Counters, PromptSamples, Published
from gangflow.member.wire import Asked, RequestFailed, Wire

REQUEST_TIMEOUT_S = 120.0
"""For one chunk of prompts; pass `timeout_s` where generation is slower."""
QUORUM_GRACE_S = 2.0
"""The coordinator counts from the loss itself and fails the group with its reason; the SDK gives up only after it."""


class Rollouts:
    """Thread-safe; calls for different steps may overlap up to `max_staleness + 1` (more would only be thrown away)."""

    def __init__(
        self,
        follower: Follower,
        published: Published,
        ledger: Ledger,
        io: IoThread,
        *,
        beat: Callable[[], None] = lambda: None,
        on_policy: Callable[[PolicyMismatch], None] = lambda error: None,
        wire: Wire | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.books = Books(published, ledger)
        self._follower = follower
        self._io = io
        self._beat = beat
        self._on_policy = on_policy
        self._wire = wire
        self._clock = clock
        self._lock = threading.Lock()

    @property
    def counters(self) -> Counters:
        """What happened to samples since this process started."""
        return self.books.counters

    @property
    def ledger(self) -> Ledger:
        """Which prompts' samples were committed."""
        return self.books.ledger

    def generate(
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
        """Samples for each prompt, in the order of `prompts`; a prompt that was skipped says why and has none.

        `prompts` and `params` are JSON for the rollout's program. With a `step` (the trainer's, from 0) the samples are
        committed to the ledger: once, also over restarts, and a step that is already in the restored checkpoint is refused with
        ValueError. Without one they are for looking only (an evaluation). `chunk`: prompts per request, by default spread so
        that each eligible rollout gets two. `oldest`: the first version whose samples are of use, for a step that is sampled
        ahead: when it is trained on, the policy is newer than now, and `max_staleness` counts from there.

        Waits while fewer than `min_rollouts` are eligible, at most `quorum_timeout`: then NoQuorum. PolicyMismatch,
        DataBudgetSpent and InfraExhausted end it too; what is then neither committed nor skipped is counted as lost.
        """
        if samples_per_prompt < 1:
            raise ValueError(f"samples_per_prompt: at least 1, not {samples_per_prompt}")
        if not prompts:
            return []
        numbered = (step, *self.books.number(step, len(prompts)))
        with self._admitted(step):
            self._wait_for_quorum(oldest)
            made = Round(self.books, self._follower.picture, prompts, samples_per_prompt, params, numbered, chunk, oldest)
            try:
                _Driver(self, made, timeout_s).run()
            except PolicyMismatch as error:
                self._on_policy(error)
                raise
            return made.results()

    def eligible(self) -> tuple[Endpoint, ...]:
        """Rollouts that may be sent work at this moment."""
        picture = self._follower.picture
        return tuple(self.books.usable(picture, facts_of(picture).rollout))

    def streaks(self) -> dict[str, list[int]]:
        """Slot → [incarnation, failed requests in a row]: the coordinator sees by it who answers /health but not requests."""
        return self.books.streaks()

    def reset(self, ledger: Ledger) -> None:
        """Go on from a checkpoint: its ledger, and nothing of what was numbered since."""
        self.books.reset(ledger)

    def close(self) -> None:
        """Close connections, and end the thread that has them."""
        with self._lock:
            wire, self._wire = self._wire, None
        if wire is not None:
            self._io.submit(wire.close()).result(CLOSE_S)
        self._io.close()

    # --- waiting

    @contextmanager
    def _admitted(self, step: int | None) -> Iterator[None]:
        """Steps whose samples are being made at once: at most `max_staleness + 1`."""
        if step is None:
            yield
            return
        bound = facts_of(self._follower.picture).max_staleness + 1
        left = threading.Event()
        stop = self.books.listen(left.set)
        try:
            while not self.books.enter(step, bound):
                left.wait()
                left.clear()
        finally:
            stop()
        try:
            yield
        finally:
            self.books.leave(step)

    def _wait_for_quorum(self, oldest: int) -> None:
        limit = facts_of(self._follower.picture).quorum_timeout_s + QUORUM_GRACE_S
        deadline = self._clock() + limit
        while True:
            left = deadline - self._clock()
            self._beat()
            if self._follower.wait(lambda picture: has_quorum(self.books, picture, oldest), max(0.0, min(left, BEAT_S))):
                return
            if left <= 0:
                raise no_quorum(self.books, self._follower.picture, limit, oldest)

    def _http(self) -> Wire:
        with self._lock:
            if self._wire is None:
                self._wire = kind(facts_of(self._follower.picture).engine).wire()
            return self._wire


class _Driver:
    """The loop of one call: send what may fly, wait for an answer or for a change of the picture, repeat."""

    def __init__(self, rollouts: Rollouts, round_: Round, timeout_s: float) -> None:
        self._rollouts = rollouts
        self._round = round_
        self._timeout_s = timeout_s
        self._mail: SimpleQueue[Letter | None] = SimpleQueue()
        self._running: dict[int, Future[None]] = {}

    def run(self) -> None:
        rollouts, round_ = self._rollouts, self._round
        stop = rollouts._follower.listen(lambda: self._mail.put(None))
        try:
            while not round_.done:
                now, picture = rollouts._clock(), rollouts._follower.picture
                limit = facts_of(picture).quorum_timeout_s + QUORUM_GRACE_S
                dead, sent = round_.turn(now, picture, limit)
                for flight in dead:
                    self._forget(flight)
                for flight, asked in sent:
                    self._running[flight.id] = rollouts._io.submit(self._fly(flight, asked))
                rollouts._beat()
                self._receive(round_.pause(now))
        except BaseException:
            round_.give_up()
            raise
        finally:
            stop()
            for future in self._running.values():
                future.cancel()

    def _receive(self, pause: float) -> None:
        """Wait for one letter (at most so long, to beat), then take all that have come."""
        try:
            letter = self._mail.get(timeout=pause)
            while True:
                if letter is not None:
                    self._running.pop(letter[0].id, None)
                    self._round.take(letter, self._rollouts._clock())
                letter = self._mail.get_nowait()
        except Empty:
            return

    def _forget(self, flight: Flight) -> None:
        future = self._running.pop(flight.id, None)
        if future is not None:
            future.cancel()

    async def _fly(self, flight: Flight, asked: Asked) -> None:
        self._mail.put(await flown(self._rollouts._http(), flight, asked, self._timeout_s))


async def flown(wire: Wire, flight: Flight, asked: Asked, timeout_s: float) -> Letter:
    """Send a flight; how it ended."""
    try:
        return (flight, await wire.generate(flight.target, asked, timeout_s))
    except RequestFailed as error:
        return (flight, error)
    except Exception as error:  # Whatever nobody has classified is DATA: bounded by its budget, and never silent.
        return (flight, RequestFailed(FailureClass.DATA, f"{type(error).__name__}: {error}"))
