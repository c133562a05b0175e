"""Which prompts are asked of which rollout, and what a failure means for them. No IO, no clock: `now` is an argument.

In-flight work belongs to the client, not to an engine. A prompt's attempts grow; only its newest attempt may commit, so a
late result of an older one is counted and dropped, and a prompt's group of samples is committed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gangflow.channel import WeightsId
from gangflow.member.endpoints import Endpoint
from gangflow.member.failures import DataBudgetSpent, FailureClass, InfraExhausted, PolicyMismatch
from gangflow.member.samples import Counters, Published, Verdict

MAX_ATTEMPTS = 5
BACKOFF_S = (1.0, 30.0)
"""First and longest pause before the same rollout is asked again; another eligible one is asked at once."""
FLIGHTS_PER_ROLLOUT = 2
"""One that it works on, and one that is on its way."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one prompt: its outputs with the weights that made each, or a failure."""

    outputs: tuple[Any, ...] = ()
    weights: tuple[WeightsId | None, ...] = ()
    failure: FailureClass | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Flight:
    """Prompts on their way to one incarnation of one rollout."""

    id: int
    prompts: tuple[int, ...]
    attempt: int
    """The largest of its prompts' attempts."""
    target: Endpoint


@dataclass(frozen=True, slots=True)
class _Work:
    """Prompts that wait to be sent."""

    prompts: tuple[int, ...]
    failures: int = 0
    not_before: float = 0.0
    failed_on: tuple[tuple[int, int], ...] = ()
    """(index, incarnation) of rollouts on which it failed: asked again only when there is no other."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The group of samples of one prompt, complete and usable."""

    outputs: tuple[Any, ...]
    weights: tuple[WeightsId | None, ...]
    target: Endpoint
    attempt: int


@dataclass(slots=True)
class Dispatch:
    """One call of `generate`: prompts 0 … n−1, each with a group of `samples` samples."""

    prompts: int
    samples: int
    published: Published
    counters: Counters
    skip_budget: int
    oldest: int = 0
    """No sample of an older version is committed, though it be young enough for the newest."""
    results: dict[int, Committed] = field(default_factory=dict)
    skipped: dict[int, str] = field(default_factory=dict)
    _waiting: list[_Work] = field(default_factory=list)
    _flights: dict[int, tuple[Flight, _Work]] = field(default_factory=dict)
    _attempts: dict[int, int] = field(default_factory=dict)
    _next_flight: int = 1

    def split(self, chunk: int) -> None:
        """Cut the prompts into pieces of at most `chunk`, in order."""
        self._waiting = [
            _Work(tuple(range(low, min(low + chunk, self.prompts)))) for low in range(0, self.prompts, max(1, chunk))
        ]

    @property
    def done(self) -> bool:
        return len(self.results) + len(self.skipped) == self.prompts

    @property
    def flying(self) -> int:
        return len(self._flights)

    def launch(self, now: float, eligible: Sequence[Endpoint]) -> list[Flight]:
        """Send what may be sent now: to the least busy eligible rollout, first to one on which it has not failed."""
        flights: list[Flight] = []
        kept: list[_Work] = []
        for work in self._waiting:
            target = self._target(work, now, eligible)
            if target is None:
                kept.append(work)
                continue
            for prompt in work.prompts:
                self._attempts[prompt] = self._attempts.get(prompt, 0) + 1
            flight = Flight(self._next_flight, work.prompts, max(self._attempts[p] for p in work.prompts), target)
            self._next_flight += 1
            self._flights[flight.id] = (flight, work)
            flights.append(flight)
        self._waiting = kept
        return flights

    def wake_at(self, now: float) -> float | None:
        """When the next backoff ends; None when none is pending."""
        return min((work.not_before for work in self._waiting if work.not_before > now), default=None)

    def abandon_dead(self, live: Iterable[tuple[int, int]], now: float) -> list[Flight]:
        """Take back what was sent to incarnations that are not live any more. Returns those flights, for cancelling."""
        alive = set(live)
        dead = [flight for flight, _ in self._flights.values() if flight.target.key not in alive]
        for flight in dead:
            self.failed(flight.id, FailureClass.INFRA, f"rollout[{flight.target.index}] is gone", now)
        return dead

    def answered(self, flight_id: int, answers: Mapping[int, Answer], now: float) -> None:
        """Answers by prompt. One that is missing failed for an unknown reason."""
        entry = self._flights.pop(flight_id, None)
        if entry is None:
            self.counters.add("late", sum(len(answer.outputs) for answer in answers.values()))
            return
        flight, work = entry
        again: list[int] = []
        infra: list[int] = []
        for prompt in flight.prompts:
            answer = answers.get(prompt, Answer(failure=FailureClass.DATA, message="the engine did not answer for it"))
            if answer.failure is None and len(answer.outputs) != self.samples:
                answer = Answer(failure=FailureClass.DATA, message=f"{len(answer.outputs)} samples instead of {self.samples}")
            if answer.failure is FailureClass.POLICY:
                raise PolicyMismatch(f"rollout[{flight.target.index}]: {answer.message}")
            if answer.failure is FailureClass.INFRA:
                infra.append(prompt)
            elif answer.failure is FailureClass.DATA:
                self._skip(prompt, answer.message)
            elif self._usable(flight, answer):
                self._commit(prompt, flight, answer)
            else:
                again.append(prompt)
        if again:
            # Not the rollout's fault and not the prompt's: the weights moved on. No attempt is charged.
            self.counters.add("stale", len(again) * self.samples)
            self._again(replace(work, prompts=tuple(again)))
        if infra:
            self._retry(replace(work, prompts=tuple(infra)), flight, "the engine could not make them", now)

    def failed(self, flight_id: int, failure: FailureClass, message: str, now: float) -> None:
        """The whole flight failed."""
        entry = self._flights.pop(flight_id, None)
        if entry is None:
            return
        flight, work = entry
        if failure is FailureClass.POLICY:
            raise PolicyMismatch(f"rollout[{flight.target.index}]: {message}")
        if failure is FailureClass.INFRA:
            self._retry(work, flight, message, now)
        elif len(work.prompts) > 1:
            # One bad prompt spoils its neighbours: ask for each alone, and skip only the one that fails again.
            for prompt in work.prompts:
                self._again(replace(work, prompts=(prompt,)))
        else:
            self._skip(work.prompts[0], message)

    def give_up(self) -> None:
        """Count everything that is still open as lost."""
        self.counters.add("lost", (self.prompts - len(self.results) - len(self.skipped)) * self.samples)

    def _target(self, work: _Work, now: float, eligible: Sequence[Endpoint]) -> Endpoint | None:
        busy: dict[tuple[int, int], int] = {}
        for flight, _ in self._flights.values():
            busy[flight.target.key] = busy.get(flight.target.key, 0) + 1
        fresh = [target for target in eligible if target.key not in work.failed_on]
        # No other rollout is left, so the same one is asked again, after a pause.
        pool = fresh or (list(eligible) if now >= work.not_before else [])
        free = [target for target in pool if busy.get(target.key, 0) < FLIGHTS_PER_ROLLOUT]
        return min(free, key=lambda target: (busy.get(target.key, 0), target.index), default=None)

    def _usable(self, flight: Flight, answer: Answer) -> bool:
        for weights in answer.weights:
            verdict = self.published.judge(weights, self.oldest)
            if verdict == Verdict.MISMATCH:
                raise PolicyMismatch(
                    f"rollout[{flight.target.index}] made samples with weights {weights}; "
                    f"under version {weights.version if weights else '?'} this actor published "
                    f"{self.published.versions.get(weights.version, 'nothing')[:8] if weights else 'other ones'}"
                )
            if verdict == Verdict.STALE:
                return False
        return True

    def _commit(self, prompt: int, flight: Flight, answer: Answer) -> None:
        if prompt in self.results or prompt in self.skipped:
            self.counters.add("late", len(answer.outputs))
            return
        self.results[prompt] = Committed(answer.outputs, answer.weights, flight.target, self._attempts[prompt])

    def _skip(self, prompt: int, message: str) -> None:
        self.skipped[prompt] = message
        self.counters.add("skipped", self.samples)
        if len(self.skipped) > self.skip_budget:
            raise DataBudgetSpent(
                f"{len(self.skipped)} of {self.prompts} prompts failed, {self.skip_budget} may be skipped; the last: {message}"
            )

    def _retry(self, work: _Work, flight: Flight, message: str, now: float) -> None:
        failures = work.failures + 1
        if failures >= MAX_ATTEMPTS:
            raise InfraExhausted(
                f"{len(work.prompts)} prompts failed {failures} times; the last on {flight.target.url}: {message}"
            )
        first, longest = BACKOFF_S
        pause = min(longest, first * 2.0 ** (failures - 1))
        failed_on = tuple(dict.fromkeys([*work.failed_on, flight.target.key]))
        self._again(replace(work, failures=failures, not_before=now + pause, failed_on=failed_on))

    def _again(self, work: _Work) -> None:
        self.counters.add("redispatched", len(work.prompts) * self.samples)
        self._waiting.append(work)
