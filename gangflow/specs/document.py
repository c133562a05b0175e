"""YAML documents ↔ models. A document and the same thing in Python mean the same, and each renders into the other.

The loader is safe and reads YAML 1.2's core schema (so `no` is text and `12:30` is no number); a key that is given twice is an
error, and every problem carries its line. JSON is YAML.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gangflow.errors import SpecError
from gangflow.specs.claims import StandaloneClaim
from gangflow.specs.cluster import ClusterSpec
from gangflow.specs.faults import Fault, Loc, fault_error, loc_of
from gangflow.specs.group import CoStartGroup
from gangflow.specs.partly import more_faults
from gangflow.specs.problems import faults_of

M = TypeVar("M", bound=BaseModel)
MAX_BYTES = 4 * 1024 * 1024
"""Of one document: a group of a thousand members is far below it."""


def load(source: str | os.PathLike[str], model: type[M] = CoStartGroup) -> M:  # type: ignore[assignment]
    """The model that a document says. A path object is read as a file; text is the document itself.

    Raises SpecError (with the file and lines) for anything that is wrong in it, OSError when the file cannot be read.
    """
    if not isinstance(source, os.PathLike):
        data, line = read(source)
        return validate(model, data, line)
    raw = Path(source).read_bytes()
    try:
        data, line = read(_decoded(raw))
        return validate(model, data, line)
    except SpecError as error:
        raise in_file(error, source) from None


def in_file(error: SpecError, source: str | os.PathLike[str]) -> SpecError:
    """The same error with the file's name in every problem: one that was found after reading it has no lines."""
    return type(error)([replace(problem, file=os.fspath(source)) for problem in error.problems])


def located(error: SpecError, source: str | os.PathLike[str]) -> SpecError:
    """The error with the file's name and lines, where its paths stand in that document: for one that XCE found in it."""
    try:
        _, line = read(_decoded(Path(source).read_bytes()))
    except (OSError, SpecError):
        return error
    problems = [replace(problem, line=problem.line or line(loc_of(problem.path))) for problem in error.problems]
    return in_file(type(error)(sorted(problems, key=lambda problem: problem.line)), source)


def _decoded(raw: bytes) -> str:
    try:
        return raw[: MAX_BYTES + 1].decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise fault_error([Fault((), raw[error.start : error.start + 8], "text in UTF-8")]) from None


def load_cluster(source: str | os.PathLike[str]) -> ClusterSpec:
    """The cluster that a document describes; as `load`."""
    return load(source, ClusterSpec)


def load_claim(source: str | os.PathLike[str]) -> StandaloneClaim:
    """The standalone claim that a document describes; as `load`."""
    return load(source, StandaloneClaim)


def validate(model: type[M], data: object, line: Callable[[Loc], int] | None = None) -> M:
    """The model that plain data (parsed YAML or JSON) says; SpecError with the paths of all that is wrong."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        faults = faults_of(error, model)
        if issubclass(model, CoStartGroup):
            faults += more_faults(data, faults)
        raise fault_error(faults, line) from None
    except RecursionError:
        raise fault_error([Fault((), "…", "less nesting")]) from None


def read(text: str) -> tuple[Any, Callable[[Loc], int]]:
    """Plain data out of YAML text, and where each path stands in it (its line, from 1)."""
    from gangflow.specs.yaml_text import compose  # PyYAML only where a document is read

    if len(text) > MAX_BYTES:
        raise fault_error([Fault((), f"{len(text)} characters", f"a document of at most {MAX_BYTES} bytes")])
    return compose(text)


def plain(model: BaseModel) -> dict[str, Any]:
    """The model as plain data without its defaults, in the words of a document: `validate` reads it back."""
    return model.model_dump(mode="json", exclude_defaults=True)


def dump(model: BaseModel) -> str:
    """The model as YAML without its defaults: `load(dump(x)) == x`."""
    from gangflow.specs.yaml_text import emit

    return emit(plain(model))
