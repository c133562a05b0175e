"""`renew.replace` means what `dataclasses.replace` means, for every class of the core's state."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from gangflow.xce import renew
from gangflow.xce.core import events, inputs, plan, state
from tests.unit.xce.journal.filled import filled

CLASSES = [
    found
    for module in (state, plan, events, inputs)
    for _, found in inspect.getmembers(module, dataclasses.is_dataclass)
    if found.__module__ == module.__name__
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_field_is_copied_and_can_be_changed(kind: type[Any]) -> None:
    one = filled(kind)
    copy = renew.replace(one)
    assert copy == one
    assert copy is not one
    assert type(copy) is kind
    for field in dataclasses.fields(kind):
        marker = object()
        changed = renew.replace(one, **{field.name: marker})
        assert getattr(changed, field.name) is marker
        others = [other.name for other in dataclasses.fields(kind) if other is not field]
        assert all(getattr(changed, name) is getattr(one, name) for name in others)
    assert copy == one, "the old one is as it was"


def test_a_field_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="Slot has no field 'colour'"):
        renew.replace(state.Slot("a", 0), colour="red")


@dataclasses.dataclass(frozen=True)
class Loose:
    """Without slots."""

    number: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Checked:
    """With something to do after it is made."""

    number: int = 1

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("negative")


def test_other_classes_are_copied_as_dataclasses_does_it() -> None:
    assert renew.replace(Loose(), number=2) == Loose(2)
    with pytest.raises(ValueError, match="negative"):
        renew.replace(Checked(), number=-1)
