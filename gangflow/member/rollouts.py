"""`context.rollouts`: ask the eligible rollouts for samples, through deaths, restarts and new weights, each committed once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

from gangflow.errors import NoQuorum
from gangflow.member.dispatch import FLIGHTS_PER_ROLLOUT, Answer, Dispatch, Flight
from gangflow.member.endpoints import CoordinatorFacts, Endpoint, Picture
from gangflow.member.failures import FailureClass, PolicyMismatch
from gangflow.member.follow import Follower
from gangflow.member.io import CLOSE_S, IoThread
from gangflow.member.ledger import Ledger
from gangflow.member.samples import Counters, PromptSamples, Published, Sample, SampleId, Verdict
from gangflow.member.wire import Asked, HttpWire, RequestFailed, Wire

REQUEST_TIMEOUT_S = 120.0
"""For one chunk of prompts; pass `timeout_s` where generation is slower."""
NO_COORDINATOR = CoordinatorFacts()
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
        self.counters = Counters()
        self.ledger = ledger
        self._follower = follower
        self._published = published
        self._io = io
        self._beat = beat
        self._on_policy = on_policy
        self._wire = wire
        self._clock = clock
        self._lock = threading.Lock()
        self._admission = threading.Condition()
        self._open_steps: list[int] = []
        self._issued: dict[int, int] = {}
        """Step → prompts numbered so far."""
        self._unledgered = 0
        self._streaks: dict[tuple[int, int], int] = {}
        """(index, incarnation) → requests in a row that failed without a refusal."""

    def generate(
        self,
        prompts: Sequence[Any],
        samples_per_prompt: int = 1,
        params: Mapping[str, Any] | None = None,
        step: int | None = None,
        *,
        chunk: int | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> list[PromptSamples]:
        """Samples for each prompt, in the order of `prompts`; a prompt that was skipped says why and has none.

        `prompts` and `params` are JSON for the rollout's program. With a `step` (the trainer's, from 0) the samples are
        committed to the ledger: once, also over restarts, and a step that is already in the restored checkpoint is refused with
        ValueError. Without one they are for looking only (an evaluation). `chunk`: prompts per request, by default spread so
        that each eligible rollout gets two.

        Waits while fewer than `min_rollouts` are eligible, at most `quorum_timeout`: then NoQuorum. PolicyMismatch,
        DataBudgetSpent and InfraExhausted end it too; what is then neither committed nor skipped is counted as lost.
        """
        if samples_per_prompt < 1:
            raise ValueError(f"samples_per_prompt: at least 1, not {samples_per_prompt}")
        if not prompts:
            return []
        scope, first = self._number(step, len(prompts))
        member = self._facts().rollout
        with _Admitted(self, step):
            self._wait_for_quorum()
            dispatch = Dispatch(
                len(prompts), samples_per_prompt, self._published, self.counters, skip_budget=max(1, len(prompts) // 20)
            )
            dispatch.split(chunk or self._chunk(len(prompts), len(self._usable(self._follower.picture, member))))
            ids = [
                [str(SampleId(self.ledger.run, f"{scope}/{first + n}", i)) for i in range(samples_per_prompt)]
                for n in range(len(prompts))
            ]
            try:
                _Round(self, dispatch, member, prompts, ids, params or {}, timeout_s).run()
            except PolicyMismatch as error:
                self._on_policy(error)
                raise
            return [self._collect(dispatch, n, prompts[n], step, scope, first) for n in range(len(prompts))]

    def eligible(self) -> tuple[Endpoint, ...]:
        """Rollouts that may be sent work at this moment."""
        return tuple(self._usable(self._follower.picture, self._facts().rollout))

    def streaks(self) -> dict[str, list[int]]:
        """Slot → [incarnation, failed requests in a row]: the coordinator sees by it who answers /health but not requests."""
        with self._lock:
            return {str(index): [incarnation, count] for (index, incarnation), count in self._streaks.items() if count}

    def reset(self, ledger: Ledger) -> None:
        """Go on from a checkpoint: its ledger, and nothing of what was numbered since."""
        with self._lock:
            self.ledger = ledger
            self._issued.clear()

    def close(self) -> None:
        """Close connections, and end the thread that has them."""
        with self._lock:
            wire, self._wire = self._wire, None
        if wire is not None:
            self._io.submit(wire.close()).result(CLOSE_S)
        self._io.close()

    # --- numbering and committing

    def _number(self, step: int | None, count: int) -> tuple[str, int]:
        with self._lock:
            if step is None:
                self._unledgered += count
                return "look", self._unledgered - count
            if step < 0:
                raise ValueError(f"step: from 0, not {step}")
            if self.ledger.finished(step):
                raise ValueError(f"step {step} is in the checkpoint already: go on with the step after `resume().step`")
            first = self._issued.get(step, 0)
            self._issued[step] = first + count
            return str(step), first

    def _collect(self, dispatch: Dispatch, n: int, prompt: Any, step: int | None, scope: str, first: int) -> PromptSamples:
        committed = dispatch.results.get(n)
        if committed is None:
            return PromptSamples(n, prompt, (), dispatch.skipped[n])
        with self._lock:
            if step is not None:
                if not self.ledger.commit(step, first + n):
                    self.counters.duplicates += len(committed.outputs)
                    return PromptSamples(n, prompt, (), "committed before")
                self.counters.committed += len(committed.outputs)
        return PromptSamples(
            n,
            prompt,
            tuple(
                Sample(
                    SampleId(self.ledger.run, f"{scope}/{first + n}", i),
                    output,
                    weights,
                    committed.target.index,
                    committed.target.incarnation,
                    committed.attempt,
                )
                for i, (output, weights) in enumerate(zip(committed.outputs, committed.weights, strict=True))
            ),
        )

    # --- who may be asked

    def _facts(self) -> CoordinatorFacts:
        return self._follower.picture.coordinator or NO_COORDINATOR

    def _usable(self, picture: Picture, member: str) -> list[Endpoint]:
        """Eligible by the coordinator's word, and by this actor's own newest weights, which it may not have seen yet."""
        endpoints = picture.endpoints(member)
        if picture.coordinator is None:
            return [endpoint for endpoint in endpoints if endpoint.url]
        return [endpoint for endpoint in endpoints if self._published.judge(endpoint.weights) == Verdict.USABLE]

    def _wait_for_quorum(self) -> None:
        facts = self._facts()
        limit = facts.quorum_timeout_s + QUORUM_GRACE_S
        deadline = self._clock() + limit
        while True:
            left = deadline - self._clock()
            self._beat()
            if self._follower.wait(
                lambda picture: len(self._usable(picture, facts.rollout)) >= facts.min_rollouts, max(0.0, min(left, 1.0))
            ):
                return
            if left <= 0:
                raise NoQuorum(
                    f"{len(self._usable(self._follower.picture, facts.rollout))} rollouts are eligible, "
                    f"{facts.min_rollouts} are needed, for {limit:.0f} s: {self._story()}"
                )

    def _story(self) -> str:
        eligible = self._follower.picture.eligible
        if self._follower.picture.coordinator is None:
            return "no rollout is READY"
        if eligible is None:
            return "the coordinator has not said yet who is eligible"
        return f"the coordinator names {len(eligible.rollouts)} eligible of {len(eligible.holding)} live ones"

    @staticmethod
    def _chunk(prompts: int, eligible: int) -> int:
        return -(-prompts // max(1, eligible * FLIGHTS_PER_ROLLOUT))

    def _http(self) -> Wire:
        with self._lock:
            if self._wire is None:
                self._wire = HttpWire()
            return self._wire

    def _note(self, flight: Flight, error: RequestFailed | None) -> None:
        with self._lock:
            key = flight.target.key
            if error is None or error.failure is not FailureClass.INFRA:
                self._streaks.pop(key, None)
            elif not error.refused:
                self._streaks[key] = self._streaks.get(key, 0) + 1
            # An incarnation that was replaced says nothing about the present one.
            for old in [k for k in self._streaks if k[0] == key[0] and k[1] < key[1]]:
                del self._streaks[old]


class _Admitted:
    """The admission bound: steps whose samples are being made at once, at most `max_staleness + 1`."""

    def __init__(self, rollouts: Rollouts, step: int | None) -> None:
        self._rollouts = rollouts
        self._step = step

    def __enter__(self) -> None:
        if self._step is None:
            return
        bound = self._rollouts._facts().max_staleness + 1
        steps, condition = self._rollouts._open_steps, self._rollouts._admission
        with condition:
            condition.wait_for(lambda: self._step in steps or len(set(steps)) < bound)
            steps.append(self._step)

    def __exit__(self, *_: object) -> None:
        if self._step is None:
            return
        with self._rollouts._admission:
            self._rollouts._open_steps.remove(self._step)
            self._rollouts._admission.notify_all()


class _Round:
    """The loop of one call: launch what may fly, wait for an answer or for a change of the picture, repeat."""

    def __init__(
        self,
        rollouts: Rollouts,
        dispatch: Dispatch,
        member: str,
        prompts: Sequence[Any],
        ids: Sequence[Sequence[str]],
        params: Mapping[str, Any],
        timeout_s: float,
    ) -> None:
        self._rollouts = rollouts
        self._dispatch = dispatch
        self._member = member
        self._prompts = prompts
        self._ids = ids
        self._params = params
        self._timeout_s = timeout_s
        self._mail: SimpleQueue[tuple[Flight, dict[int, Answer] | RequestFailed] | None] = SimpleQueue()
        self._running: dict[int, Future[None]] = {}

    def run(self) -> None:
        rollouts, dispatch = self._rollouts, self._dispatch
        stop = rollouts._follower.listen(lambda: self._mail.put(None))
        empty_since: float | None = None
        try:
            while not dispatch.done:
                now = rollouts._clock()
                picture = rollouts._follower.picture
                self._cancel(dispatch.abandon_dead(self._live(picture), now))
                eligible = rollouts._usable(picture, self._member)
                for flight in dispatch.launch(now, eligible):
                    self._send(flight)
                empty_since = None if eligible or dispatch.flying else (empty_since if empty_since is not None else now)
                self._check_quorum(now, empty_since)
                self._receive(now)
        except BaseException:
            dispatch.give_up()
            raise
        finally:
            stop()
            for future in self._running.values():
                future.cancel()

    def _live(self, picture: Picture) -> Iterable[tuple[int, int]]:
        """By XCE's word, and by the coordinator's, which may know of a hang what XCE cannot see."""
        eligible = picture.eligible
        return [
            (index, incarnation)
            for member, index, incarnation in picture.live
            if member == self._member and (eligible is None or (index, incarnation) in eligible.holding)
        ]

    def _check_quorum(self, now: float, empty_since: float | None) -> None:
        limit = self._rollouts._facts().quorum_timeout_s + QUORUM_GRACE_S
        if empty_since is not None and now - empty_since > limit:
            raise NoQuorum(f"no rollout was eligible for {limit:.0f} s: {self._rollouts._story()}")

    def _receive(self, now: float) -> None:
        """Wait for one letter (at most a second, to beat), then take all that have come."""
        wake = self._dispatch.wake_at(now)
        timeout = 1.0 if wake is None else min(1.0, max(0.0, wake - now))
        self._rollouts._beat()
        try:
            letter = self._mail.get(timeout=timeout)
        except Empty:
            return
        while True:
            if letter is not None:
                self._take(*letter)
            try:
                letter = self._mail.get_nowait()
            except Empty:
                return

    def _take(self, flight: Flight, answer: dict[int, Answer] | RequestFailed) -> None:
        self._running.pop(flight.id, None)
        now = self._rollouts._clock()
        if isinstance(answer, RequestFailed):
            self._rollouts._note(flight, answer)
            self._dispatch.failed(flight.id, answer.failure, answer.message, now)
        else:
            self._rollouts._note(flight, None)
            self._dispatch.answered(flight.id, answer, now)

    def _cancel(self, flights: Iterable[Flight]) -> None:
        for flight in flights:
            future = self._running.pop(flight.id, None)
            if future is not None:
                future.cancel()

    def _send(self, flight: Flight) -> None:
        asked = Asked(
            numbers=flight.prompts,
            prompts=[self._prompts[n] for n in flight.prompts],
            sample_ids=[self._ids[n] for n in flight.prompts],
            params=self._params,
            attempt=flight.attempt,
        )
        self._running[flight.id] = self._rollouts._io.submit(self._fly(flight, asked))

    async def _fly(self, flight: Flight, asked: Asked) -> None:
        try:
            self._mail.put((flight, await self._rollouts._http().generate(flight.target, asked, self._timeout_s)))
        except RequestFailed as error:
            self._mail.put((flight, error))
        except Exception as error:  # Whatever nobody has classified is DATA: bounded by its budget, and never silent.
            self._mail.put((flight, RequestFailed(FailureClass.DATA, f"{type(error).__name__}: {error}")))
