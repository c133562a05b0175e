"""Arrays over HTTP: exact, and refused when they are something else."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangflow.recipes.grpo.wire import WireError, pack, unpack


@given(st.lists(st.tuples(*[st.floats(width=32, allow_nan=False)] * 3), max_size=20))
def test_float32_comes_back_to_the_bit(rows: list[tuple[float, float, float]]) -> None:
    array = np.array(rows, np.float32).reshape(-1, 3)
    found = unpack(json.loads(json.dumps(pack(array))), np.float32, 3)
    assert found.dtype == np.float32
    assert found.tobytes() == array.tobytes()


def test_a_slice_is_packed_as_what_it_shows() -> None:
    array = np.arange(24, dtype=np.int8).reshape(6, 4)[::2, 1:3]
    assert np.array_equal(unpack(pack(array), np.int8, 2), array)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"dtype": "int8", "shape": [1, 3], "data": "!"},
        {"dtype": "int8", "shape": [2, 3], "data": "AAAA"},
        {"dtype": "int8", "shape": [-1, 3], "data": "AAAAAAAA"},
        {"dtype": "float32", "shape": [1, 3], "data": "AAAAAAAAAAAAAAAA"},
        {"dtype": "int8", "shape": [3], "data": "AAAA"},
        {"dtype": "int8", "shape": [1, 4], "data": "AAAAAA=="},
    ],
)
def test_what_is_not_the_expected_array_is_refused(value: object) -> None:
    with pytest.raises(WireError):
        unpack(value, np.int8, 3)
