"""Golden histories: what any version has ever written is read, gives the state that it gave, and, where this version decides as
that one did, replays byte for byte (I14). How a version adds its own is said in `make.py`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gangflow import __version__
from gangflow.errors import OtherVersion
from gangflow.xce.codec import EVENTS, INPUTS
from gangflow.xce.core.invariants import check
from gangflow.xce.journal import image
from gangflow.xce.journal.recovery import recover
from gangflow.xce.journal.replay import DECIDES_AS, replay
from gangflow.xce.machine import effects_due
from tests.golden.make import HERE, folder
from tests.golden.stored import Stored, save
from tests.golden.worlds import WORLDS
from tests.property.kept import batches_of

FILES = sorted(HERE.glob("v*/*.jsonl.gz"))
RARE_EVENTS = {"OfferLeft"}
"""Only of a step in which more than `SESSIONS_MAX` sessions free places for one another: no world of this size has one."""


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.name.removesuffix('.jsonl.gz')}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_what_was_written_is_read_and_gives_the_state_that_it_gave(path: Path) -> None:
    """Scenario 79: a journal of an earlier version is opened by a later one."""
    stored = Stored(path)
    bare = Stored(path)
    bare.images = {}
    found, whole = recover(stored), recover(bare)
    assert found.image_seq == stored.seq
    assert found.notes == whole.notes == ()
    assert found.state == whole.state
    assert found.seq == whole.seq == stored.seq
    assert not check(found.state)
    assert effects_due(found.state) == effects_due(whole.state)
    for seq in stored.image_seqs():
        taken = image.decode(stored.image(seq))
        assert (taken.seq, taken.chain) == (seq, stored.digest_at(seq))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_what_decides_alike_replays_byte_for_byte(path: Path) -> None:
    stored = Stored(path)
    if stored.version != __version__ and stored.version not in DECIDES_AS:
        with pytest.raises(OtherVersion):
            replay(stored)
        return
    found = replay(stored)
    assert found.divergence is None, found.divergence
    assert found.seq == stored.seq
    assert found.images == sorted(stored.images)
    assert found.reworded == 0 or stored.version != __version__


def test_this_version_has_its_own() -> None:
    assert {path.name.removesuffix(".jsonl.gz") for path in FILES if path.parent == folder()} == set(WORLDS)


def test_together_they_have_every_event_and_every_input() -> None:
    """A type that no history has could be lost, or read wrongly, and nobody would see it."""
    events, inputs = set(), set()
    for path in FILES:
        if path.parent == folder():
            for each in Stored(path).kept:
                document = json.loads(each.raw)
                events |= {event["type"] for event in document["events"]}
                inputs |= {one["type"] for one in document["inputs"]}
    assert set(EVENTS) - events <= RARE_EVENTS
    assert set(INPUTS) - inputs == set()


def test_a_world_gives_the_same_history_every_time(tmp_path: Path) -> None:
    for number in (1, 2):
        save(tmp_path / f"{number}.gz", batches_of(WORLDS["start-and-finish"]()))
    assert (tmp_path / "1.gz").read_bytes() == (tmp_path / "2.gz").read_bytes()


def test_a_history_that_was_changed_is_noticed(tmp_path: Path) -> None:
    import gzip

    from gangflow.errors import JournalCorrupt

    path = FILES[0]
    lines = gzip.decompress(path.read_bytes())
    (tmp_path / "changed.gz").write_bytes(gzip.compress(lines.replace(b'"g1"', b'"g2"', 1)))
    with pytest.raises(JournalCorrupt):
        Stored(tmp_path / "changed.gz")


def test_another_decision_in_a_history_is_found() -> None:
    """The test above can fail: one field of one event, and the replay says which."""
    from gangflow.xce.core.events import BarrierReleased
    from tests.property.kept import Kept

    batches = list(Stored(folder() / "start-and-finish.jsonl.gz").batches())
    number, position = next(
        (n, p) for n, batch in enumerate(batches) for p, event in enumerate(batch.events) if type(event) is BarrierReleased
    )
    events = list(batches[number].events)
    events[position] = replace(events[position], until_ms=1)  # type: ignore[call-arg]
    batches[number] = replace(batches[number], events=tuple(events))
    found = replay(Kept(batches))
    assert found.divergence is not None
    assert [each.path for each in found.divergence.differences] == ["until_ms"]
