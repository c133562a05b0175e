"""Numbers in JSON without their cost: base64 of little-endian bytes. Standard library only; floats arrive to the bit."""

from __future__ import annotations

import base64
import binascii
import sys
from array import array
from collections.abc import Iterable
from typing import Any


def pack_floats(values: Iterable[float]) -> str:
    """As float32."""
    return _text(array("f", values))


def pack_whole(values: Iterable[int]) -> str:
    """As int32. OverflowError for what does not fit."""
    return _text(array("i", values))


def floats(text: Any) -> list[float]:
    """What `pack_floats` made. ValueError for anything else."""
    return _numbers("f", text).tolist()


def whole(text: Any) -> list[int]:
    """What `pack_whole` made. ValueError for anything else."""
    return _numbers("i", text).tolist()


def _text(numbers: array[Any]) -> str:
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()


def _numbers(kind: str, text: Any) -> array[Any]:
    if not isinstance(text, str):
        raise ValueError(f"packed numbers are a text, not {type(text).__name__}")
    found: array[Any] = array(kind)
    try:
        found.frombytes(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as broken:
        raise ValueError(f"not packed numbers: {broken}") from broken
    if sys.byteorder == "big":
        found.byteswap()
    return found
