"""Numbers in JSON, to the bit."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangflow.recipes.services.packing import floats, pack_floats, pack_whole, whole


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_floats_arrive_to_the_bit(values: list[float]) -> None:
    assert [struct.pack("<f", value) for value in floats(pack_floats(values))] == [struct.pack("<f", value) for value in values]


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_whole_numbers_arrive(values: list[int]) -> None:
    assert whole(pack_whole(values)) == values


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError):
        pack_whole([2**31])


@pytest.mark.parametrize("text", ["?", "AAA=", "AAAA", None, 3, [1.0]])
def test_anything_else_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="packed numbers"):
        floats(text)
