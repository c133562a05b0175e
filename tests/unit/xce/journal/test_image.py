"""State images: the identity on every field (I15), and never believed when damaged."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import msgspec
import pytest

from gangflow.errors import JournalError
from gangflow.xce.core.state import Group, KeyValue, Slot, State
from gangflow.xce.journal import image
from gangflow.xce.journal.image import Image
from tests.unit.xce.journal.filled import default_of, filled, instances, kinds


def _ordered(value: Any) -> Any:
    """Mappings as lists of pairs: their order is part of the state (member order, then index)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [type(value), *((f.name, _ordered(getattr(value, f.name))) for f in dataclasses.fields(value))]
    if isinstance(value, dict):
        return [(key, _ordered(each)) for key, each in value.items()]
    if isinstance(value, tuple):
        return ("tuple", *map(_ordered, value))
    return (type(value), value)


def test_every_field_of_every_entity_comes_back() -> None:
    """Property 22 (I15): enumerate every field of every state dataclass, give it another value than its default, require it
    back."""
    state = filled(State)
    seen = set()
    for each in instances(state):
        seen.add(type(each))
        for field in dataclasses.fields(each):
            assert getattr(each, field.name) != default_of(field), f"{type(each).__name__}.{field.name} has its default"
    assert seen == kinds(State), "some entity does not occur in the filled state"
    back = image.decode(image.encode(Image(state, 12, b"chain"))).state
    assert back == state
    assert _ordered(back) == _ordered(state)


def test_defaults_and_absent_values_come_back() -> None:
    assert image.decode(image.encode(Image(State(), 0, b""))) == Image(State(), 0, b"")


def test_mappings_keyed_by_tuples_keep_keys_and_order() -> None:
    group = dataclasses.replace(filled(Group), slots={("b", 1): filled(Slot), ("a", 0): filled(Slot)})
    state = State(groups={"g1": group}, values={("g1", "weights/head"): KeyValue("1", 3)})
    back = image.decode(image.encode(Image(state, 1, b""))).state
    assert list(back.groups["g1"].slots) == [("b", 1), ("a", 0)]
    assert back == state


def test_any_mapping_can_stand_in_the_state() -> None:
    from types import MappingProxyType

    state = State(values=MappingProxyType({("g", "k"): KeyValue("v", 1)}))
    assert image.decode(image.encode(Image(state, 1, b""))).state.values == {("g", "k"): KeyValue("v", 1)}


@pytest.mark.parametrize("at", [0, 1, 20, -1, -40])
def test_one_flipped_byte_is_noticed(at: int) -> None:
    raw = bytearray(image.encode(Image(State(cluster_id="c" * 40, term=3), 9, b"\x01" * 32)))
    raw[at] ^= 0x40
    try:
        found = image.decode(bytes(raw))
    except JournalError:
        return
    # The envelope's own numbers are compared with the journal by recovery; the state itself must be what it was.
    assert found.state == State(cluster_id="c" * 40, term=3)
    assert (found.seq, found.chain) != (9, b"\x01" * 32) or found.code != image.Image(State(), 0, b"").code


def test_a_cut_image_is_noticed() -> None:
    raw = image.encode(Image(filled(State), 9, b"x"))
    with pytest.raises(JournalError, match="cannot be read"):
        image.decode(raw[: len(raw) // 2])


def enveloped(version: int, plain: Any, seq: int = 5) -> bytes:
    """An image of that version with a state as plain data."""
    body = msgspec.msgpack.encode(plain)
    return msgspec.msgpack.encode([version, "0.0.1", seq, b"c", hashlib.sha256(body).digest(), body])


def test_an_image_of_an_older_version_is_upgraded(monkeypatch: pytest.MonkeyPatch) -> None:
    state = filled(State)
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(state))
    plain["machines"] = plain.pop("hosts")
    old = enveloped(image.VERSION, plain)
    monkeypatch.setattr(image, "VERSION", image.VERSION + 1)
    with pytest.raises(JournalError, match="too old"):
        image.decode(old)
    monkeypatch.setitem(image.UPGRADES, image.VERSION - 1, lambda document: {**document, "hosts": document["machines"]})
    assert image.decode(old) == Image(state, 5, b"c", "0.0.1")


def test_an_image_of_before_groups_could_be_scaled_has_their_extents() -> None:
    slots = {("actor", 0): filled(Slot), ("rollout", 0): filled(Slot), ("rollout", 1): filled(Slot)}
    group = dataclasses.replace(filled(Group), slots=slots, extents=(("actor", 1), ("rollout", 2)))
    state = State(groups={"g1": group})
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(state))
    del plain["groups"]["g1"]["extents"]
    assert image.decode(enveloped(1, plain)).state == state


def test_an_image_of_a_newer_version_is_refused() -> None:
    envelope = msgspec.msgpack.decode(image.encode(Image(State(), 5, b"c")))
    with pytest.raises(JournalError, match="newer gangflow"):
        image.decode(msgspec.msgpack.encode([99, *envelope[1:]]))
