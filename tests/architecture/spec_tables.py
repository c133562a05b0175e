"""The tables of docs/spec.md, made from the models: `python -m tests.architecture.spec_tables` writes them into the page.

What a key means is the docstring below its field; pydantic does not keep those, so they are read from the source.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gangflow.specs.claims import StandaloneClaim
from gangflow.specs.cluster import ClusterSpec
from gangflow.specs.group import CoStartGroup
from gangflow.specs.member import Job, Member, ReplicaSet
from gangflow.specs.probes import Probe
from gangflow.specs.quantity import render_duration, render_memory
from gangflow.xce.admission import default_rules
from gangflow.xce.providers.rules import BUILT_IN

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spec.md"
ROOTS: tuple[type[BaseModel], ...] = (CoStartGroup, ClusterSpec, StandaloneClaim)
BASES: tuple[type[BaseModel], ...] = (Member, Probe)
TABLE = re.compile(r"<!-- table: (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)
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
BOUNDS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "min_length": "at least {}", "max_length": "at most {}"}


def models() -> list[type[BaseModel]]:
    """Every model that a document may hold, in the order in which one meets them."""
    found: dict[type[BaseModel], None] = {}

    def visit(model: type[BaseModel]) -> None:
        if model in found:
            return
        found[model] = None
        for hint in get_type_hints(model, include_extras=True).values():
            for inner in _models_in(hint):
                visit(inner)

    for root in ROOTS:
        visit(root)
    # What several kinds have in common stands once.
    return [*found, *BASES]


def table(model: type[BaseModel]) -> str:
    """The rows of one model."""
    hints = get_type_hints(model, include_extras=True)
    said = _docstrings(model)
    rows = ["| key | value | default | |", "|---|---|---|---|"]
    common = {name for base in BASES if base is not model and issubclass(model, base) for name in base.model_fields}
    for name, field in model.model_fields.items():
        if name in common:
            continue
        bounds = [*_bounds(field.metadata)]
        # Bounds may stand on the field itself or inside `… | None`: the hint has both, the field's own come twice then.
        value = _value(hints[name], bounds)
        rows.append(f"| `{name}` | {value} | {_default(model, name, field)} | {_cell(said.get(name, ''))} |")
    return "\n".join(rows) + "\n"


def filled(text: str) -> str:
    """The page with its tables as the code has them now. KeyError for a table of no model."""
    known: dict[str, Callable[[], str]] = {model.__name__: partial(table, model) for model in models()}
    known |= {"not_yet": refused, "providers": providers, "defaults": defaults}
    return TABLE.sub(lambda found: f"<!-- table: {found[1]} -->\n{known[found[1]]()}<!-- end -->", text)


def refused() -> str:
    """What is parsed and not enforced: the `not_yet` of every model."""
    rows = ["| in | key | what it is about |", "|---|---|---|"]
    for model in models():
        own = model.__dict__.get("not_yet", {})  # inherited ones stand where they come from
        rows += [f"| {model.__name__} | `{key}` | {what} |" for key, what in own.items()]
    return "\n".join(rows) + "\n"


def providers() -> str:
    """The parameters of the providers that come with XCE."""
    rows = ["| provider | parameter | value |", "|---|---|---|"]
    for name, rules in BUILT_IN.items():
        for each in rules.parameters:
            rows.append(f"| `{name}` | `{each.name}` | {_cell(each.expected)}{', *required*' if each.required else ''} |")
    return "\n".join(rows) + "\n"


def defaults() -> str:
    """The rules that admission adds."""
    rows = ["| member | cause | action | restarts | then |", "|---|---|---|---|---|"]
    for kind, member in (("job", Job(["x"])), ("replica_set", ReplicaSet(["x"]))):
        for rule in default_rules("x", member):
            causes = ", ".join(f"`{cause}`" for cause in rule.causes) or "any"
            many = f"{rule.max_restarts} in {render_duration(rule.window_ms)}" if rule.max_restarts >= 0 else ""
            counted = ", losses by the machines included" if rule.count_machine_losses else ""
            floor = " down to `min_replicas`, then `fail_group`" if rule.floor >= 0 else ""
            then = f"`{rule.then}`{floor}" if rule.max_restarts >= 0 else ""
            rows.append(f"| `{kind}` | {causes} | `{rule.action}` | {many}{counted} | {then} |")
    return "\n".join(rows) + "\n"


def _value(hint: Any, outer: Sequence[str] = ()) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        names = [getattr(getattr(each, "func", None), "__name__", "") for each in hint.__metadata__]
        kind = next((VALUES[name] for name in VALUES if name in names), "")
        bounds = [*_bounds(hint.__metadata__), *outer]
        if kind:
            return _with(kind, bounds)
        return _value(args[0], bounds)
    if origin in (Union, UnionType):
        inner = [*_models_in(hint)]
        if inner and all(issubclass(one, Probe) for one in inner):
            return "[probe](#probe)"
        kinds = [_value(arg, outer) for arg in args if arg is not NoneType]
        return " or ".join(dict.fromkeys(kinds))
    if origin is Literal:
        return ", ".join(f"`{arg}`" for arg in args)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"mapping of {_value(args[0])} to {_value(args[1])}"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"list of {_value(args[0])}"
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    plain_kinds = {bool: "`true`, `false`", int: "whole number", float: "number", str: "text"}
    return _with(plain_kinds[hint], outer)


def _with(kind: str, bounds: Sequence[str]) -> str:
    shown = {"duration": render_duration, "memory": render_memory}.get(kind)
    if shown is not None:
        bounds = [re.sub(r"\d+", lambda number: shown(int(number[0])), bound) for bound in bounds]
    return ", ".join([kind, *dict.fromkeys(bounds)])


def _bounds(metadata: Sequence[Any]) -> Iterator[str]:
    for each in metadata:
        inner = each.metadata if isinstance(each, FieldInfo) else [each]
        for one in inner:
            for key, words in BOUNDS.items():
                if (bound := getattr(one, key, None)) is not None:
                    yield words.format(bound)


def _default(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined or default is None or default in ((), {}, "") or isinstance(default, BaseModel):
        return ""
    # As a document would say it.
    return f"`{_written(model, name, default)}`"


def _written(model: type[BaseModel], name: str, default: object) -> str:
    made = model.model_construct(**{name: default})
    value = made.model_dump(mode="json", include={name})[name]
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


@cache
def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    found: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if not issubclass(owner, BaseModel) or owner is BaseModel:
            continue
        tree = ast.parse(inspect.getsource(owner)).body[0]
        assert isinstance(tree, ast.ClassDef)
        for statement, following in zip(tree.body, tree.body[1:], strict=False):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
            ):
                found[statement.target.id] = str(following.value.value)
    return found


def _models_in(hint: Any) -> Iterator[type[BaseModel]]:
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield hint
    for arg in get_args(hint) if get_origin(hint) is not Literal else ():
        yield from _models_in(arg)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
    sys.exit(0)
