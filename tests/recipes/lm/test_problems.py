"""Problem sets: what is read, what is refused, which are held out, and what an answer is worth."""

import json
from pathlib import Path
from typing import Any

import pytest

from gangflow.recipes.lm.problems import BEST_REWARD, BadProblems, exact, load, reward, split


def _file(folder: Path, *lines: Any) -> str:
    path = folder / "set.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return str(path)


def test_the_shipped_set_has_a_split_of_its_own_without_a_word_twice() -> None:
    trained, held_out = split(load("spell_backward"))
    assert (len(trained), len(held_out)) == (5_000, 500)
    assert len({problem.prompt for problem in (*trained, *held_out)}) == 5_500
    assert split(load("spell_backward"), 7) == (trained, held_out)  # a seed does not change what the file says
    first = trained[0]
    word = first.prompt.removesuffix(">")
    assert (first.answer, first.question) == (word[::-1], f"Spell this word backward (example: sun -> nus): {word}")


def test_the_license_of_the_shipped_set_is_shipped() -> None:
    folder = Path(load.__code__.co_filename).with_name("data")
    text = (folder / "LICENSE").read_text()
    assert "Apache License 2.0" in text
    assert all(file.name in text for file in folder.glob("*.jsonl"))


def test_a_file_that_does_not_say_is_split_by_the_seed(tmp_path: Path) -> None:
    name = _file(tmp_path, *({"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(20)))
    trained, held_out = split(load(name), 3)
    assert (len(trained), len(held_out)) == (16, 4)
    assert not set(trained) & set(held_out)
    assert split(load(name), 3) == (trained, held_out)
    assert split(load(name), 4) != (trained, held_out)


def test_templates_say_what_a_line_does_not(tmp_path: Path) -> None:
    name = _file(
        tmp_path,
        {"templates": {"prompt": "{a}+{b}=", "question": "What is {a} plus {b}, {c}?"}},
        {"a": 1, "b": 2, "answer": "3"},
        {"a": 1, "b": 2, "answer": "3", "prompt": "say three: "},
    )
    first, second = load(name)
    assert (first.prompt, first.question) == ("1+2=", "What is 1 plus 2, {c}?")
    assert second.prompt == "say three: "
    assert (first.number, second.number) == (0, 1)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "has no problems"),
        (["{"], ":1: not JSON"),
        (["[]"], ":1: expected an object"),
        ([{"prompt": "1+1=", "answer": "2"}, {"prompt": "1+2="}], r":2: answer: expected a text, got None"),
        ([{"prompt": "", "answer": "2"}], r":1: prompt: expected a text, got ''"),
        ([{"prompt": "x", "answer": "2", "question": 3}], "question: expected a text, got 3"),
        ([{"prompt": "x", "answer": "2", "split": "test"}], "split: expected train or held_out, got 'test'"),
        ([{"prompt": "x", "answer": "2", "split": "train"}, {"prompt": "y", "answer": "2"}], "in some lines only"),
        ([{"templates": {"prompt": 3}}, {"answer": "2"}], ":1: templates: expected texts"),
        ([{"templates": {"prompt": "{a}"}}, {"a": 1, "answer": 2}], ":2: answer: expected a text, got 2"),
    ],
)
def test_a_bad_file_says_where_and_what(tmp_path: Path, lines: list[Any], said: str) -> None:
    with pytest.raises(BadProblems, match=said):
        load(_file(tmp_path, *lines))


def test_an_unknown_set_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(BadProblems, match="did you mean 'spell_backward'"):
        load("spell_backwards")
    with pytest.raises(BadProblems, match="no problem set"):
        load(str(tmp_path / "nothing.jsonl"))


def test_both_parts_have_problems(tmp_path: Path) -> None:
    with pytest.raises(BadProblems, match="1 problems to train on and 0 held out"):
        split(load(_file(tmp_path, {"prompt": "x", "answer": "y"})))


@pytest.mark.parametrize(
    ("text", "worth"),
    [
        ("nus", BEST_REWARD),
        (" nus\n", BEST_REWARD),
        ("nu", 2 / 3),
        ("sun", 1 / 3),
        ("", 0.0),
        ("nusnus", 3 / 6),
        ("let me see </think> nus", BEST_REWARD),
        ("It is <answer>sun</answer>, no: <answer>nus</answer>.", BEST_REWARD),
    ],
)
def test_an_answer_is_worth_its_characters_and_being_right(text: str, worth: float) -> None:
    assert reward("nus", text) == pytest.approx(worth)
    assert exact("nus", text) == (worth == BEST_REWARD)


def test_a_text_may_have_what_unicode_takes_for_the_end_of_a_line(tmp_path: Path) -> None:
    said = "one\u2028two\x85three"
    name = _file(tmp_path, json.dumps({"prompt": said, "answer": "a"}, ensure_ascii=False))
    assert [problem.prompt for problem in load(name)] == [said]
