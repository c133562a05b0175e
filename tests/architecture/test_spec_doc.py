"""docs/spec.md has every key that a document may hold, and no other."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from pydantic import BaseModel

from gangflow.specs.claims import StandaloneClaim
from gangflow.specs.cluster import ClusterSpec
from gangflow.specs.document import load
from gangflow.specs.failure import ActionName, CauseName
from gangflow.specs.fields import said
from gangflow.specs.group import CoStartGroup
from gangflow.xce.admission import admit
from gangflow.xce.core.plan import Cause
from tests.architecture.spec_tables import PAGE, TABLE, filled, models

TEXT = PAGE.read_text()
BLOCKS = re.findall(r"```yaml\n# (\w+): .*?\n(.*?)```", TEXT, re.DOTALL)
KINDS: dict[str, type[BaseModel]] = {"group": CoStartGroup, "cluster": ClusterSpec, "claim": StandaloneClaim}
OTHER_WORDS = {"gpu_model"}
"""Words with an underscore that are no key: what `select` knows."""


def test_every_table_is_as_the_code_has_it() -> None:
    assert filled(TEXT) == TEXT, "run `python -m tests.architecture.spec_tables`"


def test_every_model_has_its_table_and_its_heading() -> None:
    tables = [found[1] for found in TABLE.finditer(TEXT)]
    assert len(tables) == len(set(tables))
    names = {model.__name__ for model in models()}
    assert names <= set(tables)
    headings = set(re.findall(r"^#+ (\w+)$", TEXT, re.MULTILINE))
    assert names <= headings


@pytest.mark.parametrize("model", models(), ids=lambda model: model.__name__)
def test_every_key_says_what_it_means(model: type[BaseModel]) -> None:
    assert not [name for name, what in said(model).items() if not what.text]


@pytest.mark.parametrize(("kind", "text"), BLOCKS)
def test_every_example_is_one(kind: str, text: str) -> None:
    made = load(text, KINDS[kind])
    if isinstance(made, CoStartGroup):
        admit(made)


def test_all_kinds_have_examples() -> None:
    assert {kind for kind, _ in BLOCKS} == set(KINDS)
    assert TEXT.count("```yaml") == len(BLOCKS)


def test_the_text_names_no_key_that_does_not_exist() -> None:
    known = {name for model in models() for name in model.model_fields}
    known |= {key for model in models() for key in getattr(model, "not_yet", {})}
    known |= {getattr(model, "tag", "") for model in models()}
    known |= {*get_args(CauseName), *get_args(ActionName), *OTHER_WORDS}
    spans = re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`", TEXT)
    assert not sorted(set(spans) - known)


def test_the_text_has_every_cause() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ", TEXT.split("### FailureMatch")[1].split("### Defaults")[0], re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert set(get_args(CauseName)) <= set(named)
    assert {cause.value for cause in Cause} == set(get_args(CauseName))


def test_every_link_within_the_page_leads_somewhere() -> None:
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", line.lower()).strip().replace(" ", "-") for line in re.findall(r"^#+ (.+)$", TEXT, re.M)
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", TEXT)) <= anchors
