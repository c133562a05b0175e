"""Samples made before they are needed."""

import threading

import pytest

from gangflow.recipes.lm.ahead import Ahead

DEADLINE_S = 20.0


class Maker:
    """Makes a step's samples when the test lets it."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.threads: list[str] = []
        self.let = {step: threading.Event() for step in range(10)}
        self._lock = threading.Condition()

    def __call__(self, step: int) -> str:
        with self._lock:
            self.begun.append(step)
            self.threads.append(threading.current_thread().name)
            self._lock.notify_all()
        if not self.let[step].wait(DEADLINE_S):
            raise TimeoutError
        return f"samples of {step}"

    def wait_begun(self, count: int) -> list[int]:
        with self._lock:
            assert self._lock.wait_for(lambda: len(self.begun) >= count, DEADLINE_S)
            return sorted(self.begun)


def test_a_synchronous_run_makes_them_when_they_are_needed() -> None:
    maker = Maker()
    maker.let[0].set()
    ahead = Ahead(maker, 0, 3, 0)
    ahead.published(0)
    assert not maker.begun
    assert ahead.take(0) == "samples of 0"
    assert maker.threads == [threading.current_thread().name]


def test_no_step_is_begun_whose_samples_could_become_too_old() -> None:
    """Those of step s are made by version s − ahead at the oldest."""
    maker = Maker()
    ahead = Ahead(maker, 0, 4, 1)
    ahead.published(0)
    assert maker.wait_begun(2) == [0, 1]
    maker.let[1].set()
    maker.let[0].set()
    assert ahead.take(0) == "samples of 0"
    assert maker.begun.count(2) == 0
    ahead.published(1)
    assert maker.wait_begun(3) == [0, 1, 2]
    ahead.published(2)
    ahead.published(3)
    assert maker.wait_begun(4) == [0, 1, 2, 3]
    for step in (2, 3):
        maker.let[step].set()
    assert [ahead.take(step) for step in (1, 2, 3)] == ["samples of 1", "samples of 2", "samples of 3"]


def test_a_resumed_run_begins_where_it_is() -> None:
    maker = Maker()
    ahead = Ahead(maker, 5, 10, 2)
    ahead.published(5)
    assert maker.wait_begun(3) == [5, 6, 7]
    for step in (5, 6, 7):
        maker.let[step].set()
        ahead.take(step)


def test_what_went_wrong_is_raised_where_the_samples_are_needed() -> None:
    def broken(step: int) -> str:
        raise LookupError(f"no samples of {step}")

    ahead = Ahead(broken, 0, 3, 1)
    ahead.published(0)
    with pytest.raises(LookupError, match="no samples of 1"):
        ahead.take(1)


def test_who_leaves_waits_for_what_is_under_way_but_not_for_ever() -> None:
    maker = Maker()
    ahead = Ahead(maker, 0, 3, 1)
    ahead.published(0)
    maker.wait_begun(2)
    ahead.leave(0.01)
    for step in (0, 1):
        maker.let[step].set()
    ahead.leave(DEADLINE_S)
    assert [ahead.take(step) for step in (0, 1)] == ["samples of 0", "samples of 1"]
