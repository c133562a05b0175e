"""The tables of docs/spec.md, made from the models: `python -m tests.architecture.spec_tables` writes them into the page.

What a key means is the docstring below its field (`gangflow.specs.fields` reads those).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gangflow.specs.claims import StandaloneClaim
from gangflow.specs.cluster import ClusterSpec
from gangflow.specs.fields import kinds, models_in, said, written
from gangflow.specs.group import CoStartGroup
from gangflow.specs.member import Job, Member, ReplicaSet
from gangflow.specs.probes import Probe
from gangflow.specs.quantity import render_duration
from gangflow.xce.admission import default_rules
from gangflow.xce.providers.rules import BUILT_IN

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spec.md"
ROOTS: tuple[type[BaseModel], ...] = (CoStartGroup, ClusterSpec, StandaloneClaim)
BASES: tuple[type[BaseModel], ...] = (Member, Probe)
TABLE = re.compile(r"<!-- table: (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)


def models() -> list[type[BaseModel]]:
    """Every model that a document may hold, in the order in which one meets them."""
    found: dict[type[BaseModel], None] = {}

    def visit(model: type[BaseModel]) -> None:
        if model in found:
            return
        found[model] = None
        for hint in get_type_hints(model, include_extras=True).values():
            for inner in models_in(hint):
                visit(inner)

    for root in ROOTS:
        visit(root)
    # What several kinds have in common stands once.
    return [*found, *BASES]


def table(model: type[BaseModel]) -> str:
    """The rows of one model."""
    texts, takes = said(model), kinds(model, _link)
    rows = ["| key | value | default | |", "|---|---|---|---|"]
    common = {name for base in BASES if base is not model and issubclass(model, base) for name in base.model_fields}
    for name, field in model.model_fields.items():
        if name not in common:
            rows.append(f"| `{name}` | {takes[name]} | {_default(model, name, field)} | {_cell(texts[name].text)} |")
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


def _link(model: type[BaseModel]) -> str:
    if issubclass(model, Probe):
        return "[probe](#probe)"
    return f"[{model.__name__}](#{model.__name__.lower()})"


def _default(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined or default is None or default in ((), {}, "") or isinstance(default, BaseModel):
        return ""
    # As a document would say it.
    value = written(model, name, default)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
    sys.exit(0)
