"""The three-phase specification of co-start groups holds together, and what it says is done has the tests that it names."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/specs/co-start-groups"
PATTERN = re.compile(
    r"(?:WHEN|WHILE|WHERE) .+ THE System SHALL .+\.|(?:WHERE .+, )?IF .+ THEN THE System SHALL .+\."
)  # fmt: skip
NUMBER = r"\d+\.\d+"


@dataclass(frozen=True, slots=True)
class Property:
    """A Correctness Property, and the criteria that it validates."""

    number: int
    name: str
    validates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """A line of tasks.md; one of the first level names neither requirements nor properties."""

    number: str
    done: bool
    requirements: tuple[str, ...]
    properties: tuple[int, ...]


def _text(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text()


@cache
def criteria() -> dict[str, str]:
    """Number → text, in the order of the document."""
    return dict(re.findall(rf"^- \*\*({NUMBER})\*\* (.+)$", _text("requirements"), re.M))


@cache
def properties() -> dict[int, Property]:
    """By number."""
    found = {}
    for part in re.split(r"^### ", _text("design"), flags=re.M)[1:]:
        head = re.match(r"Property (\d+): (.+)", part)
        assert head, part[:60]
        validates = re.search(rf"^\*\*Validates:\*\* ((?:{NUMBER}(?:, )?)+)$", part, re.M)
        assert validates, f"{head[0]} validates nothing"
        found[int(head[1])] = Property(int(head[1]), head[2], tuple(re.findall(NUMBER, validates[1])))
    return found


@cache
def table() -> dict[str, tuple[str, ...]]:
    """Criterion → the tests that the table at the end of design.md names for it."""
    found: dict[str, tuple[str, ...]] = {}
    for numbers, tests in re.findall(rf"^\| ((?:{NUMBER}(?:, )?)+) \| (.+) \|$", _text("design"), re.M):
        for number in re.findall(NUMBER, numbers):
            assert number not in found, f"{number} has two rows"
            found[number] = tuple(re.findall(r"`([^`]+)`", tests))
            assert found[number], f"{number} names no test"
    return found


@cache
def tasks() -> dict[str, Task]:
    """By number, in the order of the document."""
    found = {}
    lines = _text("tasks").splitlines()
    for place, line in enumerate(lines):
        head = re.match(rf"^(?:- \[( |x)\] (\d+)\.|  - \[( |x)\] ({NUMBER})) \S", line)
        if head is None:
            assert not line.lstrip().startswith("- ["), line
            continue
        number, done = head[2] or head[4], (head[1] or head[3]) == "x"
        named = re.match(
            rf"^    _Requirements: ((?:{NUMBER}(?:, )?)+)(?: · Properties: ((?:\d+(?:, )?)+))?_$", lines[place + 1]
        )
        assert (named is not None) == ("." in number), f"task {number}: {lines[place + 1]!r}"
        requirements = tuple(re.findall(NUMBER, named[1])) if named else ()
        found[number] = Task(number, done, requirements, tuple(map(int, re.findall(r"\d+", named[2] or ""))) if named else ())
        assert len([*found]) == len({*found}), number
    return found


@cache
def carried() -> dict[int, list[str]]:
    """Property → the test files that carry its number."""
    found: dict[int, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if path == Path(__file__):
            continue
        for listed in re.findall(r"Propert(?:y|ies) ((?:\d+(?:, | and )?)+)", path.read_text()):
            for number in re.findall(r"\d+", listed):
                found.setdefault(int(number), []).append(str(path.relative_to(ROOT)))
    return found


def done(criterion: str) -> bool:
    """Every task that names it is ticked."""
    naming = [task for task in tasks().values() if criterion in task.requirements]
    return bool(naming) and all(task.done for task in naming)


def exists(test: str) -> bool:
    """A file, or a function in one: `tests/….py::test_name`."""
    path, _, name = test.partition("::")
    place = ROOT / path
    return place.is_file() and (
        not name or re.search(rf"^(?:async )?def {re.escape(name)}\(", place.read_text(), re.M) is not None
    )


def test_criteria_are_numbered_without_gaps() -> None:
    counts = Counter(int(number.split(".")[0]) for number in criteria())
    assert [*counts] == [int(number) for number in re.findall(r"^### Requirement (\d+): \S", _text("requirements"), re.M)]
    assert [*counts] == list(range(1, len(counts) + 1))
    assert [*criteria()] == [f"{group}.{n}" for group, count in counts.items() for n in range(1, count + 1)]
    assert _text("requirements").count("\n- **") == len(criteria()), "a number stands twice, or a line is no criterion"


def test_every_requirement_has_a_story() -> None:
    parts = re.split(r"^### ", _text("requirements"), flags=re.M)[1:]
    story = re.compile(r"^\*\*User story:\*\* As .+?, I want .+?,\sso\sthat\s.+?\.\n\n- ", re.M | re.S)
    assert not [part.splitlines()[0] for part in parts if not story.search(part)]


def test_every_criterion_has_a_pattern_of_ears_and_one_shall() -> None:
    assert not [number for number, text in criteria().items() if not PATTERN.fullmatch(text) or text.count("SHALL") != 1]


def test_properties_are_numbered_without_gaps() -> None:
    assert [*properties()] == list(range(1, len(properties()) + 1))
    assert len(re.findall(r"^### Property", _text("design"), re.M)) == len(properties())


def test_every_property_validates_criteria_that_are_there() -> None:
    assert not {p.number: unknown for p in properties().values() if (unknown := [*{*p.validates} - {*criteria()}])}


def test_every_criterion_is_covered_by_a_property_or_a_named_test() -> None:
    covered = {number for each in properties().values() for number in each.validates} | {*table()}
    assert [number for number in criteria() if number not in covered] == []
    assert [number for number in table() if number not in criteria()] == []


def test_tasks_are_numbered_without_gaps_and_two_levels_deep() -> None:
    tops = [number for number in tasks() if "." not in number]
    assert tops == [str(n) for n in range(1, len(tops) + 1)]
    for top in tops:
        below = [number for number in tasks() if number.startswith(f"{top}.")]
        assert below == [f"{top}.{n}" for n in range(1, len(below) + 1)]
        assert below, f"task {top} has none below it"
        assert tasks()[top].done == all(tasks()[number].done for number in below), f"the tick of task {top}"


def test_every_task_names_requirements_and_properties_that_are_there() -> None:
    assert not {task.number: unknown for task in tasks().values() if (unknown := [*{*task.requirements} - {*criteria()}])}
    assert not {task.number: unknown for task in tasks().values() if (unknown := [*{*task.properties} - {*properties()}])}


def test_every_requirement_and_every_property_has_a_task() -> None:
    assert not {*criteria()} - {number for task in tasks().values() for number in task.requirements}
    assert not {*properties()} - {number for task in tasks().values() for number in task.properties}


def test_every_property_whose_task_is_ticked_has_a_test_that_carries_its_number() -> None:
    ticked = {number for task in tasks().values() if task.done for number in task.properties}
    assert not [f"Property {number}: {properties()[number].name}" for number in sorted(ticked) if number not in carried()]


def test_no_test_carries_a_number_that_no_property_has() -> None:
    assert not {number: paths for number, paths in carried().items() if number not in properties()}


@pytest.mark.parametrize("criterion", [*criteria()])
def test_what_is_done_is_tested(criterion: str) -> None:
    """A criterion whose tasks are all ticked has a property that a test carries, or named tests that are all there."""
    if not done(criterion):
        return
    named = table().get(criterion, ())
    assert all(exists(test) for test in named), named
    proved = [each.number for each in properties().values() if criterion in each.validates and each.number in carried()]
    assert proved or named, f"{criterion} is ticked, and nothing shows it"
