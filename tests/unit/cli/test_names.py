"""Names on the command line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangflow.cli.names import Name, group_only, parse
from gangflow.errors import SpecError

PART = st.from_regex(r"[a-z][a-z0-9-]{0,10}", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("g1", Name("g1")),
        ("my-run", Name("my-run")),
        ("g1.actor", Name("g1", "actor")),
        (" g1.rollout[2] ", Name("g1", "rollout", 2)),
        ("my-run.rollout[12]", Name("my-run", "rollout", 12)),
    ],
)
def test_groups_members_and_slots(text: str, name: Name) -> None:
    assert parse(text) == name


@given(PART, st.one_of(st.just(""), PART), st.integers(min_value=-1, max_value=10**9 - 1))
def test_what_is_printed_is_read_back(group: str, member: str, index: int) -> None:
    name = Name(group, member, index if member else -1)
    assert parse(str(name)) == name


@pytest.mark.parametrize(
    "text", ["", ".", "g1.", "g1.a[", "g1.a[]", "g1.a[x]", "g1[2]", "g1.a.b", "g1 g2", "g1.a[-1]", "g1.a[1]x"]
)
def test_anything_else_is_said_to_be_none(text: str) -> None:
    with pytest.raises(SpecError, match=r"g1\.rollout\[2\]"):
        parse(text)


def test_only_a_group() -> None:
    assert group_only("g1") == Name("g1")
    with pytest.raises(SpecError, match=r"a group; `x` is for a member .*did you mean 'g1'"):
        group_only("g1.actor", "`x` is for a member")
