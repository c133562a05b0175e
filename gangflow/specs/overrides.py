"""`key=value` overrides onto any pydantic model: `barrier.timeout=5m`, `members.a.job.tasks=4`, `failure[0].then=…`.

The value is read as YAML. An unknown key is an error that names the nearest known one, also where the model would ignore it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from gangflow.errors import SpecError
from gangflow.specs.document import read, validate
from gangflow.specs.faults import MISSING, Fault, Loc, fault_error, listed, nearest, path
from gangflow.specs.problems import models_in, type_at

M = TypeVar("M", bound=BaseModel)
_PART = re.compile(r"([^.\[\]=\s]+)|\[(\d{1,6})\]")
_PATH = re.compile(r"[^.\[\]=\s]+(?:\.[^.\[\]=\s]+|\[\d{1,6}\])*")


def apply(model: M, overrides: Sequence[str]) -> M:
    """The model with `key=value` texts applied in order, validated as a whole; SpecError names what does not fit."""
    if not overrides:
        return model
    data = _plain(model)
    for text in overrides:
        loc, value = split(text)
        _place(type(model), model, data, loc, value)
    return validate(type(model), data)


def split(text: str) -> tuple[Loc, Any]:
    """`a.b[0]=5` → (("a", "b", 0), 5)."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not _PATH.fullmatch(key):
        raise fault_error([Fault((), text, "an override: key=value, with dots in the key for what is inside")])
    loc: Loc = tuple(int(index) if index else _digits(name) for name, index in _PART.findall(key))
    try:
        return loc, read(value)[0] if value.strip() else ""
    except SpecError as error:
        raise fault_error([Fault(loc, value, error.problems[0].expected)]) from None


def _digits(name: str) -> int | str:
    return int(name) if name.isdecimal() and name.isascii() and len(name) <= 6 else name


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        # Only what was set: what a model derives from left-out fields is derived again after the override.
        return value.model_dump(mode="json", exclude_unset=True)
    return value


def _place(root: type[BaseModel], model: BaseModel, data: Any, loc: Loc, value: Any) -> None:
    here: Any = data
    live: Any = model
    for depth, step in enumerate(loc):
        part = str(step) if isinstance(here, dict) else step
        last = depth == len(loc) - 1
        if isinstance(here, list):
            if not isinstance(part, int):
                expected = f"an index below {len(here)} before it, as in {path((*loc[:depth], 0))}"
                raise fault_error([Fault(loc[: depth + 1], part, expected)])
            if part >= len(here):
                raise fault_error([Fault(loc[: depth + 1], part, f"an index below {len(here)}")])
        elif isinstance(here, dict):
            _known(root, here, loc[:depth], str(part), last)
        else:
            raise fault_error([Fault(loc[:depth], here, "something with keys inside")])
        live = _inside(live, part)
        if last:
            here[part] = value
            return
        if isinstance(here, dict) and not isinstance(here.get(part), (dict, list)):
            # The field was left out: begin with its default, as a whole, so that nothing else in it changes.
            default = live.model_dump(mode="json") if isinstance(live, BaseModel) else live
            here[part] = default if isinstance(default, (dict, list)) else _long(root, loc[: depth + 1], here.get(part))
        here = here[part]


def _long(root: type[BaseModel], loc: Loc, value: Any) -> dict[str, Any]:
    """What an earlier override may have given in short: `container=image` before `container.mounts=…`."""
    shorts = [short for short in (getattr(model, "short", "") for model in models_in(type_at(root, loc))) if short]
    return {shorts[0]: value} if shorts and isinstance(value, str) else {}


def _known(root: type[BaseModel], here: Mapping[str, Any], loc: Loc, part: str, last: bool) -> None:
    kind = type_at(root, loc) if loc else root
    models = models_in(kind)
    known = [name for owner in models for name in owner.model_fields]
    tags = [tag for tag in (getattr(owner, "tag", "") for owner in models) if tag]
    if tags and loc and loc[-1] not in tags:
        _tagged(here, loc, part, models, tags)
        return
    later = {key for owner in models for key in getattr(owner, "not_yet", {})}
    if models and part not in (*known, *tags, *later):
        raise fault_error([Fault((*loc, part), MISSING, "a known key: " + listed(known), nearest(part, known))])
    if not models and not last and part not in here and here:
        raise fault_error([Fault((*loc, part), MISSING, listed(here), nearest(part, here))])


def _tagged(here: Mapping[str, Any], loc: Loc, part: str, models: Sequence[type[BaseModel]], tags: Sequence[str]) -> None:
    """Where the kind stands as the only key: `{job: {…}}`. Another one cannot be put beside it."""
    kinds = [tag for tag in tags if tag in here] or list(tags)
    if part in kinds:
        return
    inside = [tag for tag, model in zip(tags, models, strict=True) if tag in kinds and part in model.model_fields]
    close = f"{inside[0]}.{part}" if inside else nearest(part, kinds)
    expected = listed(kinds) if len(kinds) > 1 else f"`{kinds[0]}`, which it is"
    raise fault_error([Fault((*loc, part), MISSING, expected, close)])


def _inside(live: Any, part: int | str) -> Any:
    if isinstance(live, BaseModel):
        return live if getattr(live, "tag", "") == part else getattr(live, str(part), None)
    if isinstance(live, Mapping):
        return live.get(part)
    if isinstance(live, Sequence) and not isinstance(live, str) and isinstance(part, int) and part < len(live):
        return live[part]
    return None
