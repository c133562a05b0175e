"""What the fields of a model are, in words: kind of value, bounds, default, the docstring below each, the section it is in.

pydantic keeps no docstrings of fields, and comments are nobody's: both are read from the source of the class.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from textwrap import dedent
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gangflow.specs.quantity import render_duration, render_memory

VALUES = {
    "duration_ms": "duration",
    "memory_mib": "memory",
    "cpu_milli": "CPUs",
    "gpu_milli": "GPUs",
    "proportion": "proportion",
    "_name": "name",
    "_word": "word",
    "_label": "label",
    "_owner": "owner",
    "_variable": "variable",
    "_signal": "signal",
    "_resreq": "requirement",
    "_range": "host name",
    "_claim_id": "claim id",
    "_path": "absolute path",
    "_target": "absolute path",
    "_http_path": "path",
    "_text": "text",
}
"""A validator's name → the kind of value that it takes. The most particular one says it."""
BOUNDS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}", "min_length": "at least {}", "max_length": "at most {}"}
_SECTION = re.compile(r"\s*# -{3,} (.+?) -*\s*")

Named = Callable[[type[BaseModel]], str]
"""How a model is named where it is a kind of value."""


@dataclass(frozen=True, slots=True)
class Said:
    """What the source says of a field."""

    text: str
    """The docstring below it; empty if there is none."""
    section: str
    """Of the last comment `# --- … ---` above it; empty if there is none."""


@cache
def said(model: type[BaseModel]) -> Mapping[str, Said]:
    """Of each field of a model, in their order. OSError where its source is not there."""
    found: dict[str, Said] = {}
    for owner in reversed(model.__mro__):
        if not issubclass(owner, BaseModel) or owner is BaseModel:
            continue
        source = dedent(inspect.getsource(owner))
        sections = {line: match[1] for line, text in enumerate(source.splitlines(), 1) if (match := _SECTION.fullmatch(text))}
        tree = ast.parse(source).body[0]
        assert isinstance(tree, ast.ClassDef)
        for statement, following in zip(tree.body, [*tree.body[1:], None], strict=True):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                above = [title for line, title in sections.items() if line < statement.lineno]
                found[statement.target.id] = Said(_text(following), above[-1] if above else "")
    return {name: found.get(name, Said("", "")) for name in model.model_fields}


def _text(statement: ast.stmt | None) -> str:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return " ".join(str(value.value).split()) if isinstance(value, ast.Constant) else ""


def kinds(model: type[BaseModel], named: Named = lambda model: model.__name__) -> dict[str, str]:
    """Field → what it takes: `whole number, ≥ 1`; words that are meant literally stand in backticks.

    KeyError for a type that no field of ours had so far.
    """
    hints = get_type_hints(model, include_extras=True)
    # Bounds may stand on the field itself or inside `… | None`: the hint has both, the field's own come twice then.
    return {name: kind(hints[name], [*bounds(field.metadata)], named) for name, field in model.model_fields.items()}


def kind(hint: Any, outer: Sequence[str] = (), named: Named = lambda model: model.__name__) -> str:
    """What a declared type takes. `outer`: bounds that are known from around it."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        names = [getattr(getattr(each, "func", None), "__name__", "") for each in hint.__metadata__]
        word = next((VALUES[name] for name in VALUES if name in names), "")
        inner = [*bounds(hint.__metadata__), *outer]
        return _with(word, inner) if word else kind(args[0], inner, named)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(kind(arg, outer, named) for arg in args if arg is not NoneType))
    if origin is Literal:
        return ", ".join(f"`{arg}`" for arg in args)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"mapping of {kind(args[0], (), named)} to {kind(args[1], (), named)}"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"list of {kind(args[0], (), named)}"
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return named(hint)
    plain_kinds = {bool: "`true`, `false`", int: "whole number", float: "number", str: "text"}
    return _with(plain_kinds[hint], outer)


def _with(word: str, bounds: Sequence[str]) -> str:
    shown = {"duration": render_duration, "memory": render_memory}.get(word)
    if shown is not None:
        bounds = [re.sub(r"\d+", lambda number: shown(int(number[0])), bound) for bound in bounds]
    return ", ".join([word, *dict.fromkeys(bounds)])


def bounds(metadata: Sequence[Any]) -> Iterator[str]:
    """The bounds among a field's metadata, in words."""
    for each in metadata:
        inner = each.metadata if isinstance(each, FieldInfo) else [each]
        for one in inner:
            for key, words in BOUNDS.items():
                if (bound := getattr(one, key, None)) is not None:
                    yield words.format(bound)


def written(model: type[BaseModel], name: str, value: Any) -> object:
    """A field's value as a document has it: milliseconds as `10m`, MiB as `2GiB`."""
    return model.model_construct(**{name: value}).model_dump(mode="json", include={name})[name]


def models_in(hint: Any) -> Iterator[type[BaseModel]]:
    """Every model that a declared type mentions, however deep; in order."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield hint
    for arg in get_args(hint) if get_origin(hint) is not Literal else ():
        yield from models_in(arg)
