"""docs/states.md shows every state and every edge that the code has, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gangflow.xce.core.lifecycle import TRANSITIONS

DOC = Path(__file__).resolve().parents[2] / "docs" / "states.md"
ROW = re.compile(r"^\| `(?P<before>[A-Za-z]+)` \| (?:→ `(?P<after>[A-Za-z]+)`|—) \| (?P<when>.+) \|$")


def documented(entity: str) -> list[tuple[str, str, str]]:
    """The rows of the entity's table: state, next state (empty for a state without edges), when."""
    section = DOC.read_text().split(f"## {entity.capitalize()}\n", 1)[1].split("\n## ", 1)[0]
    rows = []
    for line in section.splitlines():
        found = ROW.match(line)
        if found:
            rows.append((found["before"], found["after"] or "", found["when"]))
    return rows


@pytest.mark.parametrize("entity", list(TRANSITIONS))
def test_the_document_has_exactly_the_edges_of_the_code(entity: str) -> None:
    edges = []
    for state, following in TRANSITIONS[entity].items():
        for after, when in following.items():
            edges.append((state.value, after.value, when))
        if not following:
            edges.append((state.value, "", END.get((entity, state.value), "not reached in this version")))
    assert documented(entity) == edges


END = {
    ("group", "SUCCEEDED"): "terminal",
    ("group", "FAILED"): "terminal",
    ("group", "CANCELLED"): "terminal",
    ("change", "DONE"): "terminal",
    ("change", "FAILED"): "terminal",
    ("task", "gone"): "the end of this incarnation's task; the next incarnation has tasks of its own",
}
