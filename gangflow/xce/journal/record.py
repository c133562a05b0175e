"""One batch as one durable record, and back: JSON with its schema version in front.

A batch is what one turn of the controller made durable: the inputs it took, at which time, and what was decided. Recovery
reads the decisions (`events`); a replay feeds the inputs again and compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gangflow import __version__
from gangflow.errors import JournalError
from gangflow.xce.codec import EVENTS, INPUTS
from gangflow.xce.core.events import Event
from gangflow.xce.core.inputs import Input

VERSION = 1
"""Of the records that this code writes."""
_PRESENT = b'{"v":%d,' % VERSION
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
UPGRADES: dict[int, Upgrade] = {}
"""Version n → how a plain document of version n becomes one of n + 1. A version stays readable for as long as it is here."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One turn of the controller; `events[i]` has the sequence number `first_seq + i`."""

    first_seq: int
    term: int
    now_ms: int
    inputs: tuple[Input, ...]
    """Empty too when it was read for recovery, which needs the decisions only."""
    events: tuple[Event, ...]
    code: str = __version__
    """The version of gangflow that decided."""
    digest: str = ""
    """Hex sha256 of the previous digest and this record's bytes; filled in by the store."""

    @property
    def last_seq(self) -> int:
        return self.first_seq + len(self.events) - 1


class _Item(msgspec.Struct, gc=False):
    type: str
    data: msgspec.Raw


class _Document(msgspec.Struct):
    v: int
    first_seq: int
    term: int
    now_ms: int
    code: str
    inputs: list[_Item]
    events: list[_Item]


class _Bare(msgspec.Struct, gc=False):
    now_ms: int
    events: list[_Item]


class _Head(msgspec.Struct):
    code: str


class _Decisions(msgspec.Struct):
    first_seq: int
    term: int
    now_ms: int
    code: str
    events: list[_Item]


_encoder = msgspec.json.Encoder()
_document = msgspec.json.Decoder(_Document)
_decisions = msgspec.json.Decoder(_Decisions)
_bare = msgspec.json.Decoder(_Bare)
_head = msgspec.json.Decoder(_Head)
# One decoder a type: building one costs more than a thousand decodes.
_inputs: dict[str, msgspec.json.Decoder[Any]] = {name: msgspec.json.Decoder(kind) for name, kind in INPUTS.items()}
_events: dict[str, msgspec.json.Decoder[Any]] = {name: msgspec.json.Decoder(kind) for name, kind in EVENTS.items()}


def chain(previous: bytes, record: bytes) -> bytes:
    """The digest after `record`: of everything up to and including it."""
    return hashlib.sha256(previous + record).digest()


def encode(batch: Batch) -> bytes:
    """The canonical bytes of a batch (its digest apart). ValueError if a text in it has no UTF-8 form."""
    return _encoder.encode(
        {
            "v": VERSION,
            "first_seq": batch.first_seq,
            "term": batch.term,
            "now_ms": batch.now_ms,
            "code": batch.code,
            "inputs": [{"type": type(value).__name__, "data": value} for value in batch.inputs],
            "events": [{"type": type(value).__name__, "data": value} for value in batch.events],
        }
    )


def plain_events(events: Sequence[Event]) -> list[bytes]:
    """Each event as it stands in a record."""
    return [_encoder.encode({"type": type(value).__name__, "data": value}) for value in events]


def written_events(raw: bytes) -> list[bytes]:
    """The events of a record, byte for byte as they stand there; none where they stand in no form of this version's."""
    try:
        return [b'{"type":"%s","data":%s}' % (item.type.encode(), item.data) for item in _decisions.decode(raw).events]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []


def code_of(raw: bytes) -> str:
    """The version of gangflow that wrote a record; empty when it does not say."""
    try:
        return _head.decode(raw).code
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


def decisions(raw: bytes) -> tuple[int, list[Event]]:
    """What recovery needs of a record: its time and its events. As `decode`, at half the cost."""
    try:
        if not raw.startswith(_PRESENT):
            raw = _encoder.encode(_upgraded(raw))
        document = _bare.decode(raw)
        return document.now_ms, [_events[item.type].decode(item.data) for item in document.events]
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
        said = f"unknown record type {error}" if isinstance(error, KeyError) else str(error)
        raise JournalError(f"a record cannot be read by gangflow {__version__}: {said}") from error


def decode(raw: bytes, digest: bytes = b"", *, inputs: bool = True) -> Batch:
    """The batch that `encode` made, of this version or an older one; JournalError if this code cannot read it."""
    try:
        if not raw.startswith(_PRESENT):
            raw = _encoder.encode(_upgraded(raw))
        document = _document.decode(raw) if inputs else _decisions.decode(raw)
        given = document.inputs if isinstance(document, _Document) else []
        return Batch(
            document.first_seq,
            document.term,
            document.now_ms,
            tuple([_value(_inputs, item) for item in given]),
            tuple([_value(_events, item) for item in document.events]),
            document.code,
            digest.hex(),
        )
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise JournalError(f"a record cannot be read by gangflow {__version__}: {error}") from error


def _value(decoders: Mapping[str, msgspec.json.Decoder[Any]], item: _Item) -> Any:
    decoder = decoders.get(item.type)
    if decoder is None:
        raise msgspec.ValidationError(f"unknown record type {item.type!r}")
    return decoder.decode(item.data)


def _upgraded(raw: bytes) -> dict[str, Any]:
    document = msgspec.json.decode(raw, type=dict[str, Any])
    return upgrade(document, int(document.get("v", 0)), VERSION, UPGRADES, "record")


def upgrade(document: dict[str, Any], version: int, target: int, steps: Mapping[int, Upgrade], what: str) -> dict[str, Any]:
    """A plain document of an older version, brought to `target` step by step; JournalError if no path leads there."""
    if version > target:
        raise JournalError(
            f"a {what} of version {version} was written by a newer gangflow; {__version__} reads up to {target}",
            remedy="run the newer gangflow on this journal",
        )
    while version < target:
        step = steps.get(version)
        if step is None:
            raise JournalError(f"a {what} of version {version} is too old for gangflow {__version__} (it writes {target})")
        document = step(document)
        version += 1
        document["v"] = version
    return document
