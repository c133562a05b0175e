"""What verifier and reference answer is checked before anything is learned from it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gangflow.recipes.lm import judging, measuring
from gangflow.recipes.lm.judging import Judges, WrongReference
from gangflow.recipes.services.asking import ServiceFailed


class Answers:
    """In the place of the services: what a test says."""

    repeated = 0

    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    def ask(self, member: str, path: str, body: dict[str, Any], *, first: int = 0) -> dict[str, Any]:
        return self._answer

    def close(self) -> None:
        pass


@pytest.fixture
def judges() -> Iterator[Callable[[dict[str, Any]], Judges]]:
    made: list[Judges] = []

    def make(answer: dict[str, Any]) -> Judges:
        found = Judges(lambda member: [], reference="mine", patience_s=1.0)
        made.append(found)
        found._asking = Answers(answer)  # type: ignore[assignment]
        return found

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("answer", [{}, {"rewards": [1.0]}, {"exact": [True]}, {"rewards": [], "exact": []}])
def test_a_verdict_that_is_none_is_a_failure_and_no_reward(judges: Any, answer: dict[str, Any]) -> None:
    with pytest.raises(ServiceFailed, match="reward"):
        judges(answer).verdicts([0], ["x"])


@pytest.mark.parametrize(
    ("answer", "error"),
    [({}, ServiceFailed), ({"policy": "mine"}, ServiceFailed), ({"policy": "another", "logprobs": {}}, WrongReference)],
)
def test_a_reference_that_does_not_say_which_it_is_weighs_nothing(
    judges: Any, answer: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match="ref"):
        judges(answer).reference([[1]], [[2]], 1.0)


def test_the_accuracy_of_nothing_is_none() -> None:
    """Not NaN, which no heartbeat and no JSON can hold."""
    assert measuring.accuracy(lambda problem, output: True, ["a", "b"], [None, None]) is None
    assert measuring.accuracy(lambda problem, output: problem == output, ["a", "b", "c"], ["a", None, "x"]) == 0.5


def test_who_closes_waits_for_nobody_who_asks_and_nobody_asks_or_beats_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing actor ends at once, not after `patience`."""
    monkeypatch.setattr(judging, "SCORED", 1)  # two portions, in threads
    begun, release = threading.Semaphore(0), threading.Event()
    beats: list[str] = []

    def endpoints(member: str) -> list[str]:
        begun.release()
        assert release.wait(60)
        return []

    judges = Judges(endpoints, reference="", patience_s=60.0, waiting=beats.append)
    with ThreadPoolExecutor(2) as threads:
        asks = threads.submit(judges.verdicts, [0, 1], ["x", "y"])
        assert begun.acquire(timeout=60)
        closing = threads.submit(judges.close)
        try:
            closing.result(timeout=30)
        finally:
            release.set()
        with pytest.raises(ServiceFailed, match="reward is asked no more"):
            asks.result(timeout=30)
    assert beats == []
