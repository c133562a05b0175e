"""What the source and the types say of a model's fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from gangflow.specs.base import Name, Spec, Text, Whole
from gangflow.specs.fields import Said, kinds, models_in, said, written
from gangflow.specs.quantity import Cpu, Duration, Memory


class Inner(Spec):
    first: Duration = 1
    """Of the base,
    over two lines."""


class Outer(Inner):
    plain: int

    # --- of some kind: a-b ----------------
    told: Text = ""
    """It says something."""
    silent: Annotated[Whole, Field(ge=1)] | None = None
    # A comment that is no section.
    late: Annotated[Duration, Field(ge=60_000)] = 60_000
    """With a | bar."""

    # --- the rest ---
    mem: Annotated[Memory, Field(le=4_096)] = 1
    part: Annotated[float, Field(gt=0, lt=1)] = 0.5
    word: Literal["a", "b"] = "a"
    on: bool = False
    names: tuple[Name, ...] = ()
    inner: Inner | None = None
    by_name: Mapping[str, Inner | Cpu] = {}
    last: str = ""


def test_a_field_has_the_docstring_below_it_and_the_section_above_it() -> None:
    texts = said(Outer)
    assert texts["first"] == Said("Of the base, over two lines.", "")
    assert texts["plain"] == Said("", "")
    assert texts["told"] == Said("It says something.", "of some kind: a-b")
    assert texts["silent"] == Said("", "of some kind: a-b")
    assert texts["late"] == Said("With a | bar.", "of some kind: a-b")
    assert texts["mem"] == texts["last"] == Said("", "the rest")
    assert list(texts) == list(Outer.model_fields)


def test_a_class_within_something_is_read_as_well() -> None:
    class Within(BaseModel):
        # --- here ---
        one: int = 1
        """Its text."""

    assert said(Within) == {"one": Said("Its text.", "here")}


def test_kinds_of_values_with_their_bounds() -> None:
    assert kinds(Outer) == {
        "first": "duration",
        "plain": "whole number",
        "told": "text",
        "silent": "whole number, ≥ 1",
        "late": "duration, ≥ 1m",
        "mem": "memory, ≤ 4GiB",
        "part": "number, > 0, < 1",
        "word": "`a`, `b`",
        "on": "`true`, `false`",
        "names": "list of name",
        "inner": "Inner",
        "by_name": "mapping of text to Inner or CPUs",
        "last": "text",
    }
    assert kinds(Outer, lambda model: f"<{model.__name__}>")["by_name"] == "mapping of text to <Inner> or CPUs"


def test_a_value_is_written_as_a_document_has_it() -> None:
    assert written(Outer, "late", 90_000) == "90s"
    assert written(Outer, "mem", 2_048) == "2GiB"
    assert written(Outer, "on", True) is True


def test_every_model_that_a_type_mentions() -> None:
    assert list(models_in(Mapping[str, tuple[Inner, ...] | Outer])) == [Inner, Outer]
    assert not list(models_in(Literal["a"]))
