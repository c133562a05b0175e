"""Prompts and answers in a request to a service."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gangflow.recipes.lm import wire
from gangflow.recipes.services.asking import ServiceFailed
from gangflow.recipes.services.packing import pack_whole

PROMPTS = [[5, 6, 7], [8], [9, 10]]
ANSWERS = [[20, 1], [21, 22, 1], [1]]


def test_sequences_arrive_as_they_were() -> None:
    sent = json.loads(json.dumps(wire.sequences(PROMPTS, ANSWERS)))
    assert wire.read(sent, 128) == (PROMPTS, ANSWERS)


def test_numbers_come_back_answer_by_answer() -> None:
    flat = [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]
    assert wire.by_answer(flat, ANSWERS, "ref") == [[0.5, 1.5], [2.5, 3.5, 4.5], [5.5]]
    for wrong in (flat[:-1], [*flat, 6.5]):
        with pytest.raises(ServiceFailed, match=f"ref answered {len(wrong)} numbers for 6 tokens"):
            wire.by_answer(wrong, ANSWERS, "ref")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": 7}, "packed numbers are a text"),
        ({"tokens": "%"}, "not packed numbers"),
        ({"lengths": [5, 4]}, "as many lengths as starts"),
        ({"lengths": 5}, "as many lengths as starts"),
        ({"lengths": [], "starts": []}, "at least one"),
        ({"starts": [0, 1, 2]}, "1 ≤ start < length"),
        ({"starts": [5, 1, 2]}, "1 ≤ start < length"),
        ({"starts": ["3", 1, 2]}, "1 ≤ start < length"),
        ({"lengths": [5, 4, 4]}, "12 tokens, but lengths of 13"),
        ({"tokens": pack_whole([-1, *range(1, 12)])}, "from 0 to 127, got -1 … 11"),
        ({"tokens": pack_whole([128, *range(1, 12)])}, "from 0 to 127, got 1 … 128"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_was_expected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        wire.read({**wire.sequences(PROMPTS, ANSWERS), **change}, 128)
    assert message in str(refused.value)


def test_what_is_left_out_is_named() -> None:
    with pytest.raises(KeyError, match="starts"):
        wire.read({"tokens": "", "lengths": []}, 128)


@pytest.mark.parametrize(
    ("rows", "tokens", "sizes"),
    [(10, 100, [3]), (2, 100, [2, 1]), (10, 9, [2, 1]), (10, 8, [1, 2]), (10, 1, [1, 1, 1])],
)
def test_portions_have_at_most_so_many_rows_and_tokens(rows: int, tokens: int, sizes: list[int]) -> None:
    """The three have 5, 4 and 3 tokens; a row that alone has more is asked about alone."""
    made = list(wire.portions(PROMPTS, ANSWERS, rows=rows, tokens=tokens))
    assert [len(prompts) for prompts, _ in made] == sizes
    assert [prompt for prompts, _ in made for prompt in prompts] == PROMPTS
    assert [answer for _, answers in made for answer in answers] == ANSWERS


def test_of_nothing_there_is_no_portion() -> None:
    assert list(wire.portions([], [], rows=1, tokens=1)) == []
