"""Committed once, over restarts, in a few bytes."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangflow.member.ledger import Intervals, Ledger


def test_a_prompt_is_committed_once() -> None:
    ledger = Ledger("g1")
    assert ledger.commit(3, 0)
    assert not ledger.commit(3, 0)
    assert ledger.commit(3, 1)
    assert ledger.commit(4, 0)


def test_the_ledger_of_a_long_run_is_small() -> None:
    ledger = Ledger("g1")
    for step in range(1_000):
        for prompt in range(64):
            ledger.commit(step, prompt)
    assert len(ledger.through(999).render()) < 100


def test_a_checkpoints_ledger_has_its_steps_and_none_that_were_not_trained_on() -> None:
    ledger = Ledger("g1")
    for step in (0, 1, 2):
        ledger.commit(step, 0)
    saved = Ledger.parse(ledger.through(1).render())
    assert saved.finished(1)
    assert not saved.finished(2)
    assert saved.commit(2, 0), "step 2 is generated again after a resume"
    assert not ledger.commit(2, 0), "and is still committed in this life"


def test_a_rewound_checkpoint_forgets_later_steps() -> None:
    ledger = Ledger("g1")
    ledger.commit(5, 0)
    ledger.through(5)
    assert not ledger.through(4).finished(5)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"run": "g", "finished": 3, "open": {}}', '{"run":"g","finished":[[2,1]],"open":{}}']
)
def test_what_is_no_ledger(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Ledger.parse(text)


@given(st.lists(st.integers(0, 60)))
def test_intervals_are_a_set(numbers: list[int]) -> None:
    intervals = Intervals()
    seen: set[int] = set()
    for number in numbers:
        assert intervals.add(number) == (number not in seen)
        seen.add(number)
    assert [number for number in range(62) if number in intervals] == sorted(seen)
    assert len(intervals) == len(seen)
    spans = intervals.spans()
    assert all(before[1] < after[0] for before, after in pairwise(spans)), "as few as possible"


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 8)), max_size=30), st.integers(0, 4))
def test_rendering_loses_nothing(commits: list[tuple[int, int]], finished: int) -> None:
    ledger = Ledger("g1")
    for step, prompt in commits:
        ledger.commit(step, prompt)
    ledger.finish(finished)
    again = Ledger.parse(ledger.render())
    assert again.render() == ledger.render()
    assert json.loads(again.render())["run"] == "g1"
    for step, prompt in commits:
        assert not again.commit(step, prompt)
