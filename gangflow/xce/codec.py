"""Inputs, effects and events as JSON and back: `{"type": …, "data": …}`, fields in their order of declaration.

The same encoding serves the journal, the host agents' wire and the event stream. Decoding is strict about types and unknown
variants; a field that a newer version added is ignored, one that it removed takes its default.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from gangflow.xce.core.effects import Effect
from gangflow.xce.core.events import Event
from gangflow.xce.core.inputs import Input


def variants(union: object) -> dict[str, type]:
    """The members of a union of dataclasses, by name."""
    return {kind.__name__: kind for kind in get_args(union)}


INPUTS = variants(Input)
EFFECTS = variants(Effect)
EVENTS = variants(Event)
VARIANTS = INPUTS | EFFECTS | EVENTS

_encoder = msgspec.json.Encoder()


class UnknownVariant(ValueError):
    """A record of a type that this version does not know."""


def encode(value: object) -> bytes:
    """One input, effect or event as a JSON document without line breaks."""
    return _encoder.encode({"type": type(value).__name__, "data": value})


def decode(raw: bytes | str, kinds: dict[str, type] = VARIANTS) -> Any:
    """The value that `encode` made; UnknownVariant or msgspec.ValidationError if it is not one of `kinds`."""
    document = msgspec.json.decode(raw)
    try:
        kind, data = document["type"], document["data"]
    except (KeyError, TypeError) as error:
        raise UnknownVariant("expected an object with `type` and `data`") from error
    if kind not in kinds:
        raise UnknownVariant(f"unknown record type {kind!r}")
    return msgspec.convert(data, kinds[kind])
