"""Names of hosts with bracket ranges: `h[0-3]`, `r[1,3-5]n[01-16]`."""

from __future__ import annotations

import itertools
import re

from gangflow.specs.base import MAX_NAME, wrong

RANGE_RULE = "a host's name (letters, digits, - and .), with ranges in brackets if it stands for several: h[0-3]"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_PART = re.compile(r"\[([0-9,-]+)\]")
_SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def expand_range(text: str, limit: int) -> tuple[str, ...]:
    """All names that `text` stands for, in order; a validation error when it is none, or more than `limit`."""
    pieces = _PART.split(text if text.isascii() else "")
    choices = [_numbers(piece, limit) if index % 2 else (piece,) for index, piece in enumerate(pieces)]
    total = 1
    for choice in choices:
        total *= len(choice)
    if not 1 <= total <= limit:
        raise wrong(f"at most {limit} hosts" if total else RANGE_RULE)
    names = tuple("".join(parts) for parts in itertools.product(*choices))
    for name in names:
        if len(name) > MAX_NAME or not _NAME.fullmatch(name):
            raise wrong(RANGE_RULE)
    return names


def _numbers(text: str, limit: int) -> tuple[str, ...]:
    numbers: list[str] = []
    for span in text.split(","):
        match = _SPAN.fullmatch(span)
        if not match:
            raise wrong(RANGE_RULE)
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first) or int(last) - int(first) >= limit:
            raise wrong(f"ranges that grow, with at most {limit} hosts")
        width = len(first) if first.startswith("0") else 0
        numbers += [str(number).zfill(width) for number in range(int(first), int(last) + 1)]
    return tuple(numbers)
