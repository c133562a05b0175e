"""JSON as the standard has it: what every other reader of it can read, too."""

from __future__ import annotations

import json
from typing import Any


def strict_json(text: str | bytes) -> Any:
    """The value of a JSON text. ValueError for what Python's reader lets through (NaN, Infinity, half of a surrogate pair), and
    for nesting that it cannot follow."""
    try:
        value = json.loads(text, parse_constant=_constant)
        # Only what can be written as UTF-8 can be shown to anybody again.
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
