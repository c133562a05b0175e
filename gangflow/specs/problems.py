"""Validation errors as problems: the path, the value, what was expected, and the nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from gangflow.errors import NotYetError, Problem, SpecError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

Loc = tuple[int | str, ...]
MAX_VALUE = 60
"""Characters of a wrong value that are shown."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A problem that a check over several fields found; `loc` is relative to the model that was checked."""

    loc: Loc
    value: object
    expected: str
    nearest: str = ""
    later: bool = False
    """Valid, but not enforced by this version."""


class Found(ValueError):
    """Raised inside a validator: several faults at once, each with a path of its own."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(f"{path(fault.loc)}: expected {fault.expected}" for fault in faults))
        self.faults = tuple(faults)


class _Missing:
    """Stands for a value that is not there."""


MISSING = _Missing()


def path(loc: Loc) -> str:
    """`("failure", 0, "then")` → `failure[0].then`; the root is `.`."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "."


def short(value: object) -> str:
    """A short repr of a value; empty for a missing one."""
    if value is MISSING:
        return ""
    text = repr(value)
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 1] + "…"


def nearest(value: object, names: Iterable[object]) -> str:
    """The valid name that `value` is probably a slip of; empty when none is near."""
    if not isinstance(value, str):
        return ""
    found = difflib.get_close_matches(value, [str(name) for name in names], n=1, cutoff=0.6)
    return found[0] if found else ""


def listed(names: Iterable[object]) -> str:
    """`one of a, b, c`."""
    return "one of " + ", ".join(str(name) for name in names)


def raise_faults(faults: Sequence[Fault], line: Callable[[Loc], int] | None = None) -> None:
    """Raise a SpecError (or a NotYetError, when all is valid but not enforced) if there are faults."""
    if faults:
        raise fault_error(faults, line)


def fault_error(faults: Sequence[Fault], line: Callable[[Loc], int] | None = None) -> SpecError:
    """The error of these faults; `line` finds the line of a path in the document."""
    problems = [
        Problem(path(f.loc), short(f.value), f.expected, f.nearest if f.nearest != f.value else "", line(f.loc) if line else 0)
        for f in faults
    ]
    return NotYetError(problems) if all(fault.later for fault in faults) else SpecError(problems)


def spec_error(error: ValidationError, model: type[BaseModel], line: Callable[[Loc], int] | None = None) -> SpecError:
    """pydantic's error as a SpecError. All problems are told at once."""
    faults: list[Fault] = []
    for item in error.errors(include_url=False):
        for fault in _faults(dict(item), model):
            if fault not in faults:
                faults.append(fault)
    return fault_error(faults, line)


def _faults(item: dict[str, Any], model: type[BaseModel]) -> list[Fault]:
    kind, loc, value = item["type"], tuple(item["loc"]), item["input"]
    if loc and loc[-1] == "[key]":  # a key of a mapping is wrong: pydantic's own marker says nothing to a user
        loc = loc[:-1]
    context = item.get("ctx", {})
    inner = context.get("error")
    if isinstance(inner, Found):
        return [Fault(loc + f.loc, f.value, f.expected, f.nearest, f.later) for f in inner.faults]
    if isinstance(inner, SpecError):
        return [Fault((*loc, p.path), value, p.expected, p.nearest, isinstance(inner, NotYetError)) for p in inner.problems]
    if kind == "expected":
        return [Fault(loc, value, context["expected"], context.get("nearest", ""))]
    if kind == "not_enforced":
        return [Fault(loc, value, context["expected"], later=True)]
    if kind == "extra_forbidden":
        return [_unknown_key(loc, value, model)]
    if kind == "missing":
        return [Fault(loc, MISSING, "a value: it is required")]
    if kind == "literal_error":
        choices = choices_at(model, loc)
        return [Fault(loc, value, listed(choices), nearest(value, choices))]
    if kind == "union_tag_not_found":
        tags = [tag for tag in (getattr(choice, "tag", "") for choice in models_in(type_at(model, loc))) if tag]
        key = next(iter(value), "") if isinstance(value, Mapping) else value
        return [Fault(loc, value, "exactly " + listed(tags), nearest(key, tags))]
    return [Fault(loc, value, _EXPECTED[kind].format(**context) if kind in _EXPECTED else item["msg"])]


_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "too_short": "at least {min_length} item(s)",
    "too_long": "at most {max_length} items",
    "string_too_short": "at least {min_length} character(s)",
    "string_too_long": "at most {max_length} characters",
    "invalid_key": "keys that are text",
}


def _unknown_key(loc: Loc, value: object, model: type[BaseModel]) -> Fault:
    key = loc[-1]
    owners = models_in(type_at(model, loc[:-1]))
    for owner in owners:
        what = getattr(owner, "not_yet", {}).get(key)
        if what:
            return Fault(loc, value, f"no `{key}`: {what} is not enforced by this version", later=True)
    known = [name for owner in owners for name in owner.model_fields]
    return Fault(loc, value, "a known key: " + listed(known), nearest(key, known))


def type_at(kind: Any, loc: Loc) -> Any:
    """The declared type at a path below `kind`; None where the path leaves what is declared."""
    for part in loc:
        kind = _step(kind, part)
    return kind


def _step(kind: Any, part: int | str) -> Any:
    for choice in _choices(kind):
        origin, args = get_origin(choice), get_args(choice)
        fields = getattr(choice, "model_fields", None)
        if fields is not None:
            if getattr(choice, "tag", "") == part:
                return choice
            if part in fields:
                return fields[part].annotation
        elif isinstance(origin, type) and issubclass(origin, Mapping):
            return args[1]
        elif isinstance(origin, type) and issubclass(origin, Sequence) and isinstance(part, int):
            return args[0]
    return None


def _choices(kind: Any) -> list[Any]:
    """The alternatives of a declared type, without annotations and None."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _choices(get_args(kind)[0])
    if origin in (Union, UnionType):
        return [choice for arg in get_args(kind) for choice in _choices(arg)]
    return [] if kind in (None, NoneType) else [kind]


def models_in(kind: Any) -> list[type[BaseModel]]:
    """The models that a declared type allows."""
    return [choice for choice in _choices(kind) if hasattr(choice, "model_fields")]


def choices_at(model: type[BaseModel], loc: Loc) -> list[str]:
    """The allowed words of the literal at a path."""
    return [str(arg) for choice in _choices(type_at(model, loc)) if get_origin(choice) is Literal for arg in get_args(choice)]
