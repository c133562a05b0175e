"""The actor's side of verifier and reference: asked patiently (`services.asking`), in portions, spread over replicas."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from gangflow.errors import GangflowError
from gangflow.recipes.lm import wire
from gangflow.recipes.services.asking import Asking, ServiceFailed
from gangflow.recipes.services.lanes import Lanes
from gangflow.recipes.services.packing import floats

SCORED: Final = 1_024
"""Answers in one request to the verifier."""
WEIGHED: Final = 256
"""Sequences in one request to a model (reference, reward model), at most."""
WEIGHED_TOKENS: Final = 32_768
"""Their tokens, at most: half a minute of a model of 70B, a few seconds of one of 8B."""
AT_ONCE: Final = 16
"""Requests of one question that are under way at the same time, at most, however many replicas there are."""
THREADS: Final = 4 * AT_ONCE
"""For several questions at the same time: of two members, and of steps that overlap."""


class WrongReference(GangflowError):
    """The reference server holds another policy than this run's: a POLICY failure."""

    code = "wrong_reference"
    remedy = "give actor and ref the same model folder"


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What the verifier says, answer by answer."""

    rewards: list[float]
    exact: list[bool]


class Judges:
    """Asks the group's `reward` and `ref` members; thread-safe."""

    def __init__(
        self,
        endpoints: Callable[[str], Sequence[str]],
        *,
        reference: str,
        patience_s: float,
        request_timeout_s: float = 60.0,
        waiting: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`reference`: the fingerprint that ref's weights must have; the others: see `Asking`."""
        self._endpoints = endpoints
        self._waiting = waiting
        self._reference = reference
        self._asking = Asking(endpoints, patience_s=patience_s, request_timeout_s=request_timeout_s, waiting=waiting)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="judges")
        self._lanes = {member: Lanes(partial(self._replicas, member)) for member in ("reward", "ref")}

    @property
    def repeated(self) -> int:
        """Requests that had to be asked again."""
        return self._asking.repeated

    def close(self) -> None:
        """Ask no more; nobody waits for threads that still do."""
        self._asking.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def verdicts(self, problems: Sequence[int], texts: Sequence[str]) -> Verdicts:
        """Of a text for each problem (by number). ServiceFailed when nobody answers in time: never a reward of 0."""
        bodies = [
            {"problems": list(problems[low : low + SCORED]), "texts": list(texts[low : low + SCORED])}
            for low in range(0, len(texts), SCORED)
        ]
        found = self._all("reward", "/score", bodies)
        rewards = [float(reward) for part in found for reward in _part(part, "rewards", "reward")]
        exact = [bool(value) for part in found for value in _part(part, "exact", "reward")]
        if len(rewards) != len(texts) or len(exact) != len(texts):
            raise ServiceFailed(f"reward judged {len(rewards)} answers of {len(texts)}")
        return Verdicts(rewards, exact)

    def reference(
        self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], temperature: float
    ) -> list[list[float]]:
        """Log-probabilities of each answer's tokens under the reference. WrongReference when ref holds other weights."""
        bodies = [{**portion, "temperature": temperature} for portion in portions(prompts, answers)]
        flat: list[float] = []
        for part in self._all("ref", "/logprobs", bodies):
            policy = str(_part(part, "policy", "ref"))
            if policy != self._reference:
                raise WrongReference(f"ref serves the policy {policy[:12]}, this run's is {self._reference[:12]}")
            flat += floats(_part(part, "logprobs", "ref"))
        return wire.by_answer(flat, answers, "ref")

    def _all(self, member: str, path: str, bodies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """One request each: as many at the same time as the member has replicas, each one of which has one of them to do.

        The first failure ends it. With several, each answer is told to `waiting`: that is what the actor is about meanwhile.
        """
        lanes = self._lanes[member]
        if len(bodies) == 1:
            with lanes.one() as lane:
                return [self._asking.ask(member, path, bodies[0], first=lane)]
        found: dict[int, dict[str, Any]] = {}
        left = list(enumerate(bodies))[::-1]
        lock, failed = threading.Lock(), threading.Event()

        def work() -> None:
            while not failed.is_set():
                with lanes.one() as lane:
                    with lock:
                        if not left or failed.is_set():
                            return
                        number, body = left.pop()
                    try:
                        answer = self._asking.ask(member, path, body, first=lane)
                    except BaseException:
                        failed.set()
                        raise
                with lock:
                    found[number] = answer
                    self._waiting(f"{member} has answered {len(found)} of {len(bodies)} requests")

        working = [self._threads.submit(work) for _ in range(min(len(bodies), AT_ONCE))]
        for each in working:
            each.result()
        return [found[number] for number in range(len(bodies))]

    def _replicas(self, member: str) -> int:
        return len(self._endpoints(member))


def portions(prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> Iterator[dict[str, Any]]:
    """What a model is asked about prompts and their answers: the part of each request that has them."""
    for some, theirs in wire.portions(prompts, answers, rows=WEIGHED, tokens=WEIGHED_TOKENS):
        yield wire.sequences(some, theirs)


def _part(answer: dict[str, Any], key: str, member: str) -> Any:
    """ServiceFailed when it is not there: somebody else answers at that address, or an older version of the program."""
    if key not in answer:
        raise ServiceFailed(f"{member} answered without `{key}`; it has {', '.join(sorted(answer)) or 'nothing'}")
    return answer[key]
