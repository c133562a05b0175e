"""Values with every field set to something that is not its default, made by looking at the types."""

from __future__ import annotations

import dataclasses
import itertools
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, get_args, get_origin

_numbers = itertools.count(1_001)


def filled(kind: Any, default: Any = dataclasses.MISSING, path: str = "x") -> Any:
    """A value of type `kind`, different from `default`; deterministic but for the numbers, which never repeat."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return filled(next(each for each in arguments if each is not type(None)), default, path)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return (filled(arguments[0], path=f"{path}[0]"), filled(arguments[0], path=f"{path}[1]"))
        return tuple(filled(each, path=f"{path}.{n}") for n, each in enumerate(arguments))
    if origin is not None and issubclass(origin, Mapping):
        return {filled(arguments[0], path=f"{path}:{n}"): filled(arguments[1], path=f"{path}:{n}") for n in (0, 1)}
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        hints = typing.get_type_hints(kind)
        return kind(**{f.name: filled(hints[f.name], default_of(f), f"{path}.{f.name}") for f in dataclasses.fields(kind)})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(each for each in reversed(list(kind)) if each != default)
    if kind is bool:
        return default is not True
    if kind is int:
        return next(number for number in _numbers if number != default)
    if kind is str:
        return f"{path} ü\n"
    raise NotImplementedError(f"no rule for {kind} at {path}: a new kind of field needs one here")


def default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return dataclasses.MISSING


def instances(value: Any) -> typing.Iterator[Any]:
    """Every dataclass instance in a value, the value itself first."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield value
        for field in dataclasses.fields(value):
            yield from instances(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for each in (*value.keys(), *value.values()):
            yield from instances(each)
    elif isinstance(value, tuple):
        for each in value:
            yield from instances(each)


def kinds(kind: Any) -> set[type]:
    """Every dataclass that can occur in a value of type `kind`."""
    found: set[type] = set()
    waiting = [kind]
    while waiting:
        each = waiting.pop()
        if dataclasses.is_dataclass(each) and isinstance(each, type):
            if each in found:
                continue
            found.add(each)
            waiting.extend(typing.get_type_hints(each).values())
        else:
            waiting.extend(get_args(each))
    return found
