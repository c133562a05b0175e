"""Validation errors as problems: the path, the value, what was expected, and the nearest valid name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, cast, get_args, get_origin

from gangflow.errors import NotYetError, SpecError
from gangflow.specs.faults import MISSING, Fault, Found, Loc, fault_error, listed, nearest

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

__all__ = ["Fault", "faults_of", "spec_error", "type_at"]


def spec_error(error: ValidationError, model: type[BaseModel], line: Callable[[Loc], int] | None = None) -> SpecError:
    """pydantic's error as a SpecError. All problems are told at once."""
    return fault_error(faults_of(error, model), line)


def faults_of(error: ValidationError, model: type[BaseModel]) -> list[Fault]:
    """pydantic's error as faults, each once."""
    faults: list[Fault] = []
    for item in error.errors(include_url=False):
        for fault in _faults(dict(item), model):
            if fault not in faults:
                faults.append(fault)
    return faults


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
        return [Fault(loc, value, "exactly " + listed(tags), "" if key in tags else nearest(key, tags))]
    if kind == "too_short" and isinstance(value, str):
        kind = "string_too_short"
    if kind in _BOUNDS:
        # They hold for what is kept, milliseconds or MiB; they are told as a document says them.
        told = quantity_at(model, loc)
        context = {key: told(bound) for key, bound in context.items()}
    return [Fault(loc, value, _EXPECTED[kind].format(**context) if kind in _EXPECTED else item["msg"])]


_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")


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
    for owner in owners:
        where = getattr(owner, "elsewhere", {}).get(key)
        if where:
            return Fault(loc, value, f"no `{key}` here: it goes {where}")
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


def quantity_at(model: type[BaseModel], loc: Loc) -> Callable[[Any], Any]:
    """How the quantity at a path is written in a document; as it is kept where nothing else is declared."""
    from pydantic import PlainSerializer

    for owner in models_in(type_at(model, loc[:-1])):
        field = owner.model_fields.get(str(loc[-1]))
        if field is not None:
            # Beside `| None`, what is annotated stands within the union.
            inner = [part for arg in get_args(field.annotation) for part in getattr(arg, "__metadata__", ())]
            for part in (*field.metadata, *inner):
                if isinstance(part, PlainSerializer):
                    return cast("Callable[[Any], Any]", part.func)
    return lambda value: value


def models_in(kind: Any) -> list[type[BaseModel]]:
    """The models that a declared type allows."""
    return [choice for choice in _choices(kind) if hasattr(choice, "model_fields")]


def choices_at(model: type[BaseModel], loc: Loc) -> list[str]:
    """The allowed words of the literal at a path."""
    return [str(arg) for choice in _choices(type_at(model, loc)) if get_origin(choice) is Literal for arg in get_args(choice)]
