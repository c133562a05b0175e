"""Problem sets: prompts with right answers, split into trained and held-out ones, and how an answer is scored. No torch.

A set is a file of JSON lines: `prompt`, `answer`, optionally `question` (the prompt in words, for models that chat) and `split`
(`train` or `held_out`). Its first line may be {"templates": {"prompt": "{word}>", …}}: what a line does not say itself is made
of its other fields by these. The sets that the recipes ship are in `data/`, where LICENSE says where they come from.
"""

from __future__ import annotations

import difflib
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gangflow.recipes.services.ending import BadInput

SHIPPED: Final = Path(__file__).with_name("data")
HELD_OUT: Final = 0.2
"""The fraction of a file's problems that is held out, where the file itself does not say which."""
_FIELD = re.compile(r"\{(\w+)\}")
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
BEST_REWARD: Final = 2.0
"""Of an exact answer: 1 for being exact, and 1 for having every character in its place."""


class BadProblems(BadInput):
    """A problem set that is not there, or has something else in it."""

    code = "bad_problems"


class BadPrompt(BadProblems):
    """A prompt of no token, or of more than `max_prompt_tokens`."""

    code = "bad_prompt"


@dataclass(frozen=True, slots=True)
class Problem:
    """One line of a problem set."""

    number: int
    """Its place in the file, from 0: how programs name it to each other."""
    prompt: str
    """What the model continues."""
    answer: str
    question: str = ""
    """The same in words; models with a chat template are asked this, if it is there."""
    held_out: bool | None = None
    """None: the file does not say."""


def load(name: str) -> tuple[Problem, ...]:
    """A shipped set by its name, or the file of an absolute path. BadProblems names the line and what is wrong with it."""
    path = Path(name) if name.startswith("/") else SHIPPED / f"{name}.jsonl"
    try:
        lines = json_lines(path)
    except FileNotFoundError:
        if name.startswith("/"):
            raise BadProblems(f"no problem set {name!r}: no such file on this host") from None
        there = sorted(file.stem for file in SHIPPED.glob("*.jsonl"))
        near = difflib.get_close_matches(name, there, 1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise BadProblems(f"no problem set {name!r}: an absolute path, or one of {', '.join(there)}{meant}") from None
    except (OSError, UnicodeDecodeError) as broken:
        raise BadProblems(f"{path}: {broken}") from broken
    documents = [_object(f"{path}:{number}", line) for number, line in enumerate(lines, 1)]
    templates = _templates(f"{path}:1", documents[0]) if documents and "templates" in documents[0] else None
    first = 0 if templates is None else 1
    problems = tuple(
        _problem(f"{path}:{first + number + 1}", number, {**_made(templates or {}, document), **document})
        for number, document in enumerate(documents[first:])
    )
    if not problems:
        raise BadProblems(f"{path} has no problems")
    if len({problem.held_out is None for problem in problems}) > 1:
        raise BadProblems(f"{path}: `split` in some lines only; say it in all or in none")
    return problems


def json_lines(path: Path) -> list[str]:
    """A file's lines, which may have what Unicode takes for the end of one (U+2028, say). OSError, UnicodeDecodeError."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return lines if lines[-1] else lines[:-1]


def split(problems: Sequence[Problem], seed: int = 0) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    """(trained, held out): as the file says, else a seeded fifth of it is held out. BadProblems when either is empty."""
    if problems[0].held_out is not None:
        chosen = {problem.number for problem in problems if problem.held_out}
    else:
        order = list(range(len(problems)))
        random.Random(seed).shuffle(order)
        chosen = set(order[: round(len(problems) * HELD_OUT)])
    trained = tuple(problem for problem in problems if problem.number not in chosen)
    held_out = tuple(problem for problem in problems if problem.number in chosen)
    if not trained or not held_out:
        raise BadProblems(f"{len(trained)} problems to train on and {len(held_out)} held out: at least one of each")
    return trained, held_out


def check_length(which: str, tokens: int, limit: int) -> None:
    """BadPrompt, which names it, when a prompt has no token or more than the limit."""
    if not 0 < tokens <= limit:
        raise BadPrompt(f"{which}: {tokens} tokens; expected 1 to `max_prompt_tokens`, {limit}")


def final(text: str) -> str:
    """What a text gives as its answer: what stands in its last `<answer>…</answer>`, else all of it after the thinking.

    Blanks around it do not count.
    """
    tagged = _TAGGED.findall(text)
    return (tagged[-1] if tagged else text.rpartition("</think>")[2]).strip()


def exact(answer: str, text: str) -> bool:
    """Whether the final answer of a text is the answer."""
    return final(text) == answer


def reward(answer: str, text: str) -> float:
    """0 … 2: one for being exact, and one for the fraction of characters that stand where they should.

    The longer of both counts: an answer that goes on and on gains nothing by it.
    """
    text = final(text)
    places = max(len(answer), len(text), 1)
    right = sum(wanted == written for wanted, written in zip(answer, text, strict=False))
    return float(text == answer) + right / places


def _object(where: str, line: str) -> dict[str, Any]:
    try:
        found: Any = json.loads(line)
    except json.JSONDecodeError as broken:
        raise BadProblems(f"{where}: not JSON: {broken}") from broken
    if not isinstance(found, dict):
        raise BadProblems(f"{where}: expected an object with `prompt` and `answer`, got {line[:100]}")
    return found


def _templates(where: str, document: dict[str, Any]) -> dict[str, str]:
    found = document["templates"]
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise BadProblems(f"{where}: templates: expected texts by name, got {found!r}")
    return found


def _made(templates: dict[str, str], document: dict[str, Any]) -> dict[str, str]:
    """What the templates say of a line: `{word}` stands for its field `word`."""
    return {
        name: _FIELD.sub(lambda match: str(document.get(match[1], match[0])), template) for name, template in templates.items()
    }


def _problem(where: str, number: int, found: dict[str, Any]) -> Problem:
    for key in ("prompt", "answer"):
        if not isinstance(found.get(key), str) or not found[key]:
            raise BadProblems(f"{where}: {key}: expected a text, got {found.get(key)!r}")
    question, part = found.get("question", ""), found.get("split")
    if not isinstance(question, str):
        raise BadProblems(f"{where}: question: expected a text, got {question!r}")
    if part not in {None, "train", "held_out"}:
        raise BadProblems(f"{where}: split: expected train or held_out, got {part!r}")
    return Problem(number, found["prompt"], found["answer"], question, None if part is None else part == "held_out")
