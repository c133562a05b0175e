"""Faults of a spec before they are an error: where, what stands there, what was expected. Knows no pydantic."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

from gangflow.errors import NotYetError, Problem, SpecError

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


def loc_of(text: str) -> Loc:
    """The way back: `failure[0].then` → `("failure", 0, "then")`."""
    parts = re.findall(r"([^.\[\]]+)|\[(\d+)\]", text)
    return tuple(int(index) if index else name for name, index in parts)


def short(value: object) -> str:
    """A value as a document writes it, text in quotes, not too long; empty for a missing one."""
    if value is MISSING:
        return ""
    text = _written(value)
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 1] + "…"


def _written(value: object, depth: int = 2) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    # More of it than is shown is not looked at.
    if depth and type(value) in (list, tuple):
        parts = islice(cast("Sequence[object]", value), MAX_VALUE)
        return f"[{', '.join(_written(part, depth - 1) for part in parts)}]"
    if depth and type(value) is dict:
        pairs = islice(value.items(), MAX_VALUE)
        return f"{{{', '.join(f'{key}: {_written(part, depth - 1)}' for key, part in pairs)}}}"
    return repr(value)


def nearest(value: object, names: Iterable[object]) -> str:
    """The valid name that `value` is probably a slip of, or else the first that begins with it; empty when none is near."""
    if not isinstance(value, str):
        return ""
    import difflib  # only where something is wrong

    known = [str(name) for name in names]
    found = difflib.get_close_matches(value, known, n=1, cutoff=0.6)
    # `8b` is as far from `8b-1-host` as one name can be from another, and yet it is what was meant.
    return next(iter(found or (name for name in known if len(value) > 1 and name.startswith(value))), "")


def listed(names: Iterable[object]) -> str:
    """`one of a, b, c`."""
    return "one of " + ", ".join(str(name) for name in names)


def fault_error(faults: Sequence[Fault], line: Callable[[Loc], int] | None = None) -> SpecError:
    """The error of these faults; `line` finds the line of a path in the document: then they are told in its order."""
    problems = [
        Problem(path(f.loc), short(f.value), f.expected, f.nearest if f.nearest != f.value else "", line(f.loc) if line else 0)
        for f in faults
    ]
    problems.sort(key=lambda problem: problem.line)
    return NotYetError(problems) if all(fault.later for fault in faults) else SpecError(problems)
