"""Arrays in JSON: raw little-endian bytes as base64, with type and shape. A step's 1,024 answers are 4 KB."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np
from numpy.typing import NDArray


class WireError(ValueError):
    """What arrived is not the array that was expected."""


def pack(array: NDArray[np.generic]) -> dict[str, Any]:
    """An array as a JSON object."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": base64.b64encode(little.tobytes()).decode()}


def unpack(value: Any, dtype: type[np.generic], *columns: int) -> NDArray[Any]:
    """The array (n, *columns) of that type. WireError for anything else: nothing is converted silently."""
    wanted = np.dtype(dtype)
    try:
        shape, name, raw = tuple(value["shape"]), value["dtype"], base64.b64decode(value["data"], validate=True)
        if name != wanted.name or len(shape) != 1 + len(columns) or shape[1:] != columns:
            raise WireError(f"expected {wanted.name} (n, {', '.join(map(str, columns))}), got {name} {shape}")
        if not isinstance(shape[0], int) or shape[0] < 0:
            raise WireError(f"expected a number of rows, got {shape[0]!r}")
        return np.frombuffer(raw, wanted.newbyteorder("<")).reshape(shape).astype(wanted)
    except WireError:
        raise
    except (TypeError, KeyError, ValueError, binascii.Error) as broken:
        raise WireError(f"not an array: {broken}") from broken
