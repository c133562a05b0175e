"""One call of `generate`, without its waiting: what is to be sent now, what an answer means, when it has lasted too long.

The blocking form and the asynchronous form drive the same round; they differ in how they wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gangflow.errors import NoQuorum
from gangflow.member.books import Books
from gangflow.member.dispatch import FLIGHTS_PER_ROLLOUT, Answer, Dispatch, Flight
from gangflow.member.endpoints import CoordinatorFacts, Picture
from gangflow.member.follow import BEAT_S
from gangflow.member.samples import PromptSamples
from gangflow.member.wire import Asked, RequestFailed

NO_COORDINATOR = CoordinatorFacts()
Letter = tuple[Flight, dict[int, Answer] | RequestFailed]
"""How a flight ended."""


def facts_of(picture: Picture) -> CoordinatorFacts:
    """What holds in this group."""
    return picture.coordinator or NO_COORDINATOR


def has_quorum(books: Books, picture: Picture, oldest: int) -> bool:
    """Whether enough rollouts may be asked to begin."""
    facts = facts_of(picture)
    return len(books.usable(picture, facts.rollout, oldest)) >= facts.min_rollouts


def no_quorum(books: Books, picture: Picture, limit: float, oldest: int) -> NoQuorum:
    """Too few for too long, and why."""
    facts = facts_of(picture)
    eligible = len(books.usable(picture, facts.rollout, oldest))
    wanted = f" with version {oldest} or newer" if oldest else ""
    return NoQuorum(
        f"{eligible} rollouts{wanted} are eligible, {facts.min_rollouts} are needed, for {limit:.0f} s: {story(picture)}"
    )


def story(picture: Picture) -> str:
    """Who is eligible, by whose word."""
    if picture.coordinator is None:
        return "no rollout is READY"
    if picture.eligible is None:
        return "the coordinator has not said yet who is eligible"
    return f"the coordinator names {len(picture.eligible.rollouts)} eligible of {len(picture.eligible.holding)} live ones"


class Round:
    """The prompts of one call. Begun when there is a quorum."""

    def __init__(
        self,
        books: Books,
        picture: Picture,
        prompts: Sequence[Any],
        samples: int,
        params: Mapping[str, Any] | None,
        numbered: tuple[int | None, str, int],
        chunk: int | None,
        oldest: int,
    ) -> None:
        """`numbered`: the step, and the scope and first number that `Books.number` gave. `oldest`: the first usable version."""
        self._books = books
        self._prompts = prompts
        self._params = params or {}
        self._oldest = oldest
        self._step, self._scope, self._first = numbered
        self._member = facts_of(picture).rollout
        self._empty_since: float | None = None
        self._dispatch = Dispatch(
            len(prompts), samples, books.published, books.counters, skip_budget=max(1, len(prompts) // 20), oldest=oldest
        )
        usable = len(books.usable(picture, self._member, oldest))
        self._dispatch.split(chunk or _spread(len(prompts), max(usable, _answering(picture))))
        self._ids = books.sample_ids(self._scope, self._first, len(prompts), samples)

    @property
    def done(self) -> bool:
        return self._dispatch.done

    def turn(self, now: float, picture: Picture, limit: float) -> tuple[list[Flight], list[tuple[Flight, Asked]]]:
        """Flights to cancel, and those to send. NoQuorum when nobody could be asked for longer than `limit` seconds."""
        dead = self._dispatch.abandon_dead(self._live(picture), now)
        eligible = self._books.usable(picture, self._member, self._oldest)
        flights = self._dispatch.launch(now, eligible)
        if eligible or self._dispatch.flying:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = now
        elif now - self._empty_since > limit:
            raise NoQuorum(f"no rollout was eligible for {limit:.0f} s: {story(picture)}")
        return dead, [(flight, self._asked(flight)) for flight in flights]

    def pause(self, now: float) -> float:
        """How long to wait for a letter at most, in seconds."""
        wake = self._dispatch.wake_at(now)
        return BEAT_S if wake is None else min(BEAT_S, max(0.0, wake - now))

    def take(self, letter: Letter, now: float) -> None:
        """An answer, or a failed request. Raises what ends the call."""
        flight, answer = letter
        if isinstance(answer, RequestFailed):
            self._books.note(flight, answer)
            self._dispatch.failed(flight.id, answer.failure, answer.message, now)
        else:
            self._books.note(flight, None)
            self._dispatch.answered(flight.id, answer, now)

    def give_up(self) -> None:
        """Whatever is neither committed nor skipped is lost."""
        self._dispatch.give_up()

    def results(self) -> list[PromptSamples]:
        """Commit everything, in one go, and give it out."""
        return [
            self._books.collect(self._dispatch, n, prompt, self._step, self._scope, self._first)
            for n, prompt in enumerate(self._prompts)
        ]

    def _live(self, picture: Picture) -> Iterable[tuple[int, int]]:
        """By XCE's word, and by the coordinator's, which may know of a hang what XCE cannot see."""
        eligible = picture.eligible
        return [
            (index, incarnation)
            for member, index, incarnation in picture.live
            if member == self._member and (eligible is None or (index, incarnation) in eligible.holding)
        ]

    def _asked(self, flight: Flight) -> Asked:
        return Asked(
            numbers=flight.prompts,
            prompts=[self._prompts[n] for n in flight.prompts],
            sample_ids=[self._ids[n] for n in flight.prompts],
            params=self._params,
            attempt=flight.attempt,
        )


def _answering(picture: Picture) -> int:
    """Engines that answer, with whatever weights: those that are just getting new ones will take their share of the work."""
    return len(picture.eligible.members) if picture.eligible is not None else 0


def _spread(prompts: int, rollouts: int) -> int:
    return -(-prompts // max(1, rollouts * FLIGHTS_PER_ROLLOUT))
