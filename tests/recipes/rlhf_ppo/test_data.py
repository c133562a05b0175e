"""What a run learns from, and files of preference pairs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gangflow.recipes.rlhf_ppo import task
from gangflow.recipes.rlhf_ppo.config import Config
from gangflow.recipes.rlhf_ppo.data import BadPreferences, load


def _file(folder: Path, *entries: object) -> str:
    path = folder / "pairs.jsonl"
    path.write_text("".join((entry if isinstance(entry, str) else json.dumps(entry)) + "\n" for entry in entries))
    return str(path)


def _pair(prompt: str, number: int = 0) -> dict[str, str]:
    return {"prompt": prompt, "chosen": f"good {number}", "rejected": f"bad {number}"}


def test_the_counter_has_pairs_on_both_sides_and_the_truth() -> None:
    data = load(Config(pairs=50, held_out_pairs=20))
    assert (len(data.pairs), len(data.held_out_pairs)) == (50, 20)
    trained, held_out = ({problem.prompt for problem in side} for side in (data.trained, data.held_out))
    assert {pair.prompt for pair in data.pairs} <= trained
    assert {pair.prompt for pair in data.held_out_pairs} <= held_out
    assert not trained & held_out
    assert data.truth is task.quality
    numbers = [problem.number for problem in (*data.trained, *data.held_out)]
    assert sorted(numbers) == list(range(len(task.PROMPTS)))


def test_a_file_is_split_by_prompts_with_all_of_their_pairs(tmp_path: Path) -> None:
    path = _file(tmp_path, *(_pair(f"prompt {n % 10}", n) for n in range(40)))
    data = load(Config(data=path, split_seed=1))
    assert (len(data.trained), len(data.held_out)) == (8, 2)
    assert (len(data.pairs), len(data.held_out_pairs)) == (32, 8)
    assert {pair.prompt for pair in data.held_out_pairs} == {problem.prompt for problem in data.held_out}
    assert data.truth is None
    assert load(Config(data=path, split_seed=1)) == data
    assert {problem.prompt for problem in load(Config(data=path, split_seed=2)).held_out} != {
        problem.prompt for problem in data.held_out
    }
    assert len(load(Config(data=path, held_out_pairs=3)).held_out_pairs) == 3


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{", "pairs.jsonl:2: not JSON"),
        ("[1]", "pairs.jsonl:2: expected an object with `prompt`"),
        ({"prompt": "p", "chosen": "c"}, "pairs.jsonl:2: rejected: expected a text, got None"),
        ({"prompt": "", "chosen": "c", "rejected": "r"}, "pairs.jsonl:2: prompt: expected a text, got ''"),
        ({"prompt": "p", "chosen": "same", "rejected": "same"}, "expected another text than `chosen`"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, entry: object, message: str) -> None:
    path = _file(tmp_path, _pair("p"), entry)
    with pytest.raises(BadPreferences, match="pairs") as refused:
        load(Config(data=path))
    assert message in refused.value.message


def test_a_file_that_is_not_there_or_has_too_little_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadPreferences, match="no-such"):
        load(Config(data=str(tmp_path / "no-such.jsonl")))
    with pytest.raises(BadPreferences, match="1 different prompts"):
        load(Config(data=_file(tmp_path, _pair("p", 1), _pair("p", 2))))


def test_a_text_may_have_what_unicode_takes_for_the_end_of_a_line(tmp_path: Path) -> None:
    said = "one\u2028two\x85three"
    lines = (json.dumps({"prompt": f"p{n}", "chosen": said, "rejected": "no"}, ensure_ascii=False) for n in range(3))
    data = load(Config(data=_file(tmp_path, *lines)))
    assert {pair.chosen for pair in (*data.pairs, *data.held_out_pairs)} == {said}
