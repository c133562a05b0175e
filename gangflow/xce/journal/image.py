"""State images: every field of the state as bytes, so that recovery need not read the journal from its beginning.

MessagePack, because JSON has no mappings keyed by tuples (slots, values). The envelope carries the version, the place in the
journal that the image was taken at with the chain's digest there, and a digest of its own: a damaged or foreign image is
recognised and passed over, never believed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gangflow import __version__
from gangflow.errors import JournalError
from gangflow.xce.core.state import State
from gangflow.xce.journal.record import Upgrade, upgrade

VERSION = 2


def _with_extents(state: dict[str, Any]) -> dict[str, Any]:
    """1 → 2: groups had no `extents` (and no slot was ever scaled away)."""
    for group in state.get("groups", {}).values():
        extents: dict[str, int] = {}
        for member, index in group.get("slots", {}):
            extents[member] = max(extents.get(member, 0), index + 1)
        group["extents"] = list(extents.items())
    return state


UPGRADES: dict[int, Upgrade] = {1: _with_extents}
"""As `record.UPGRADES`, for the plain form of a state."""


@dataclass(frozen=True, slots=True)
class Image:
    """A state as it was right after the event `seq`."""

    state: State
    seq: int
    chain: bytes
    """The journal's digest at `seq`: binds the image to its journal."""
    code: str = __version__


class _Envelope(msgspec.Struct, array_like=True):
    version: int
    code: str
    seq: int
    chain: bytes
    digest: bytes
    body: bytes


def _plain(value: Any) -> Any:
    """Any mapping is written as a plain one, in its own order."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a state cannot hold a {type(value).__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_state = msgspec.msgpack.Decoder(State)
_any = msgspec.msgpack.Decoder()
_envelope = msgspec.msgpack.Decoder(_Envelope)


def encode(image: Image) -> bytes:
    """An image as bytes."""
    body = _encoder.encode(image.state)
    return _encoder.encode(_Envelope(VERSION, image.code, image.seq, image.chain, hashlib.sha256(body).digest(), body))


def decode(raw: bytes) -> Image:
    """The image that `encode` made, of this version or an older one; JournalError that says what is wrong with it."""
    try:
        envelope = _envelope.decode(raw)
        if hashlib.sha256(envelope.body).digest() != envelope.digest:
            raise JournalError(f"the state image at seq {envelope.seq} is damaged: its digest does not match")
        if envelope.version == VERSION:
            state = _state.decode(envelope.body)
        else:
            document = _any.decode(envelope.body)
            document = upgrade(document, envelope.version, VERSION, UPGRADES, "state image")
            state = msgspec.convert(document, State)
    except msgspec.MsgspecError as error:
        raise JournalError(f"the state image cannot be read by gangflow {__version__}: {error}") from error
    return Image(state, envelope.seq, envelope.chain, envelope.code)
