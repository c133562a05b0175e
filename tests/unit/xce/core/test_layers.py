"""Layered maps behave as dicts do, whatever is changed in which order, and share what they do not change."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from gangflow.xce.core.layers import LAYER_MAX, PLAIN_MAX, Layers, changeable, differing, first, frozen

KEYS = st.integers(0, PLAIN_MAX + 30)
ACTIONS = st.lists(st.tuples(st.sampled_from(["set", "del", "pop", "freeze", "read"]), KEYS), max_size=200)


@settings(max_examples=200, deadline=None)
@given(actions=ACTIONS, size=st.sampled_from([0, 3, PLAIN_MAX, PLAIN_MAX + 1, PLAIN_MAX + 20]))
def test_it_is_a_dict_in_contents_and_order_after_anything(actions: list[tuple[str, int]], size: int) -> None:
    """Every state that was frozen on the way stays what it was."""
    model = {key: str(key) for key in range(size)}
    now: Mapping[int, str] = dict(model)
    kept: list[tuple[Mapping[int, str], dict[int, str]]] = []
    mine = changeable(now)
    for number, (action, key) in enumerate(actions):
        if action == "set":
            mine[key] = model[key] = f"{key}-{number}"
        elif action == "del" and key in model:
            del mine[key], model[key]
        elif action == "pop":
            assert mine.pop(key, None) == model.pop(key, None)
        elif action == "freeze":
            now = frozen(mine)
            kept.append((now, dict(model)))
            mine = changeable(now)
        else:
            assert (mine.get(key, "no"), key in mine) == (model.get(key, "no"), key in model)
        assert len(mine) == len(model)
    kept.append((frozen(mine), model))
    for had, expected in kept:
        assert first(had) == next(iter(expected.items()), None)
        assert list(had.items()) == list(expected.items())
        assert list(had) == list(expected)
        assert list(had.values()) == list(expected.values())
        assert had == expected
        assert expected == had


@settings(max_examples=100, deadline=None)
@given(changes=st.lists(st.tuples(KEYS, st.booleans()), max_size=2 * LAYER_MAX), between=st.integers(0, 20))
def test_what_differs_is_told_exactly_or_not_at_all(changes: list[tuple[int, bool]], between: int) -> None:
    old: Mapping[int, object] = {key: object() for key in range(PLAIN_MAX + 30)}
    new = old
    for number, (key, delete) in enumerate(changes):
        mine = changeable(new)
        if delete:
            mine.pop(key, None)
        else:
            mine[key] = object()
        new = frozen(mine)
        if number == between:
            old = new
    told = differing(new, old)
    expected = {key for key in {**old, **new} if old.get(key) is not new.get(key)}
    assert told is None or set(told) == expected


def test_a_small_change_copies_nothing_of_what_is_large() -> None:
    large = {key: key for key in range(10_000)}
    mine = changeable(large)
    mine[5] = 6
    small = frozen(mine)
    assert isinstance(small, Layers)
    assert small._base is large
    assert (large[5], small[5]) == (5, 6)
    assert differing(small, large) == [5]


def test_many_small_changes_become_one_base() -> None:
    now: Mapping[int, int] = {key: key for key in range(1_000)}
    base = now
    for key in range(LAYER_MAX + 1):
        mine = changeable(now)
        mine[key] = -1
        now = frozen(mine)
    assert isinstance(now, Layers)
    assert now._base is not base
    assert differing(now, base) is None, "compare all"


def test_missing_keys_are_missing() -> None:
    mine = changeable({key: key for key in range(100)})
    del mine[7]
    small = frozen(mine)
    for action in (lambda: small[7], lambda: small[1_000]):
        try:
            action()
        except KeyError:
            continue
        raise AssertionError("no KeyError")
    assert 7 not in small
    assert repr(small) == repr(dict(small))
