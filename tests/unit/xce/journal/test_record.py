"""Records: every input and event comes back as it was, whatever version wrote it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gangflow.errors import JournalError
from gangflow.xce.codec import EVENTS, INPUTS
from gangflow.xce.core.events import HostExcluded
from gangflow.xce.core.inputs import Tick
from gangflow.xce.journal import record
from gangflow.xce.journal.record import Batch
from tests.unit.xce.journal.filled import filled


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_every_event_comes_back_whole(name: str) -> None:
    batch = Batch(7, 3, 1_000, (), (filled(EVENTS[name]),))
    assert record.decode(record.encode(batch)) == batch


@pytest.mark.parametrize("name", sorted(INPUTS))
def test_every_input_comes_back_whole(name: str) -> None:
    batch = Batch(7, 3, 1_000, (filled(INPUTS[name]),), (HostExcluded("g1", "h1"),))
    assert record.decode(record.encode(batch)) == batch


def test_recovery_reads_the_decisions_alone() -> None:
    batch = Batch(1, 1, 5, (Tick(),), (HostExcluded("g1", "h1"), HostExcluded("g1", "h2")))
    read = record.decode(record.encode(batch), inputs=False)
    assert (read.inputs, read.events, read.last_seq) == ((), batch.events, 2)


def _of_version_0(batch: Batch) -> bytes:
    """As a fictional older gangflow wrote it: another field name, and hosts excluded by another event."""
    document: dict[str, Any] = msgspec.json.decode(record.encode(batch))
    document["v"] = 0
    document["at"] = document.pop("now_ms")
    for event in document["events"]:
        event["type"] = "HostBanned"
    return msgspec.json.encode(document)


def test_a_record_of_an_older_version_is_upgraded(monkeypatch: pytest.MonkeyPatch) -> None:
    def upgrade(document: dict[str, Any]) -> dict[str, Any]:
        renamed = [{**event, "type": "HostExcluded"} for event in document["events"]]
        return {**document, "now_ms": document["at"], "events": renamed}

    batch = Batch(4, 2, 99, (Tick(),), (HostExcluded("g1", "h1"),), code="0.0.1")
    old = _of_version_0(batch)
    with pytest.raises(JournalError, match="version 0 is too old"):
        record.decode(old)
    monkeypatch.setitem(record.UPGRADES, 0, upgrade)
    assert record.decode(old) == batch


def test_a_record_of_a_newer_version_is_refused() -> None:
    raw = record.encode(Batch(1, 1, 1, (), (HostExcluded("g", "h"),)))
    with pytest.raises(JournalError, match="newer gangflow") as caught:
        record.decode(raw.replace(b'"v":1', b'"v":99'))
    assert "newer" in caught.value.advice


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"v":1,', b"\xff", b'{"v":1,"first_seq":"x"}'])
def test_what_is_no_record_is_said_to_be_none(raw: bytes) -> None:
    with pytest.raises(JournalError):
        record.decode(raw)


def test_an_unknown_event_is_refused() -> None:
    raw = record.encode(Batch(1, 1, 1, (), (HostExcluded("g", "h"),)))
    with pytest.raises(JournalError, match="unknown record type 'HostEaten'"):
        record.decode(raw.replace(b"HostExcluded", b"HostEaten"))


def test_equal_batches_have_equal_bytes() -> None:
    def made() -> bytes:
        return record.encode(Batch(1, 1, 1, (Tick(),), (HostExcluded("g", "h"),)))

    assert made() == made()
