"""Recovery: the newest image that can be believed, then every decision after it; what was passed over is said."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangflow.errors import JournalCorrupt, JournalError
from gangflow.xce.core.events import CommandAnswered, Event, HostChanged, HostExcluded, HostRegistered
from gangflow.xce.core.evolve import apply_all
from gangflow.xce.core.state import Answer, HostFacts, HostState, State
from gangflow.xce.journal import image
from gangflow.xce.journal.image import Image
from gangflow.xce.journal.record import Batch
from gangflow.xce.journal.recovery import recover
from gangflow.xce.journal.sqlite import SqliteJournal


def answered(seq: int) -> Event:
    return CommandAnswered(f"key {seq}", Answer("digest", seq, 200, "{}"))


class Story:
    """A journal, and the state as it was after every batch of it."""

    def __init__(self, path: Path, batches: int, images: tuple[int, ...] = ()) -> None:
        self.path = path
        self.journal = SqliteJournal(path)
        self.states = {0: State()}
        for number in range(1, batches + 1):
            first = self.journal.seq + 1
            events = tuple(answered(seq) for seq in range(first, first + number % 3 + 1))
            batch = self.journal.append(Batch(first, 1, number * 10, (), events))
            self.states[batch.last_seq] = apply_all(self.states[first - 1], events, batch.now_ms)
            if number in images:
                self.save_image(batch.last_seq)

    def save_image(self, seq: int) -> None:
        self.journal.save_image(seq, image.encode(Image(self.states[seq], seq, self.journal.digest_at(seq))), keep=5)

    def tamper(self, statement: str, *values: object) -> None:
        db = sqlite3.connect(self.path)
        with db:
            db.execute(statement, values)
        db.close()


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    made = Story(tmp_path / "journal.db", 9, images=(3, 6))
    yield made
    made.journal.close()


def test_an_empty_journal_is_an_empty_state(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    assert recover(journal).state == State()
    journal.close()


def test_the_newest_image_and_what_came_after_it(story: Story) -> None:
    found = recover(story.journal)
    assert (found.seq, found.state) == (story.journal.seq, story.states[story.journal.seq])
    assert (found.image_seq, found.batches, found.notes) == (story.journal.image_seqs()[0], 3, ())


def test_a_damaged_image_falls_back_to_an_older_one_and_says_so(story: Story) -> None:
    newest, older = story.journal.image_seqs()
    story.tamper("UPDATE images SET image = substr(image, 1, 60) || zeroblob(8) || substr(image, 69) WHERE seq = ?", newest)
    found = recover(story.journal)
    assert (found.image_seq, found.batches) == (older, 6)
    assert found.state == story.states[story.journal.seq]
    assert len(found.notes) == 1
    assert "falling back" in found.notes[0]


def test_without_any_good_image_the_journal_alone_is_enough(story: Story) -> None:
    story.tamper("UPDATE images SET image = x'00'")
    found = recover(story.journal)
    assert (found.image_seq, found.batches, len(found.notes)) == (0, 9, 2)
    assert found.state == story.states[story.journal.seq]


def test_an_image_of_another_journal_is_not_believed(story: Story, tmp_path: Path) -> None:
    other = Story(tmp_path / "other.db", 6)
    seq = other.journal.seq
    foreign = image.encode(Image(State(term=77), seq, other.journal.digest_at(seq)))
    other.journal.close()
    story.journal.save_image(seq, foreign, keep=5)
    found = recover(story.journal)
    assert found.state == story.states[story.journal.seq]
    assert "does not belong to this journal" in found.notes[0]


def test_images_that_are_needed_and_damaged_are_an_error_that_says_so(story: Story) -> None:
    story.journal.forget(before_ms=1_000)
    story.tamper("UPDATE images SET image = x'00'")
    with pytest.raises(JournalCorrupt, match="no state image can be used") as caught:
        recover(story.journal)
    assert caught.value.seq == story.journal.horizon > 0


def test_a_damaged_record_before_the_image_does_no_harm(story: Story) -> None:
    story.tamper("UPDATE batches SET record = 'x' WHERE first_seq = 1")
    assert recover(story.journal).state == story.states[story.journal.seq]


def test_a_damaged_record_after_the_image_stops_recovery_and_is_named(story: Story) -> None:
    bad = next(batch.first_seq for batch in story.journal.batches(after=story.journal.image_seqs()[0]))
    story.tamper("UPDATE batches SET record = 'x' WHERE first_seq = ?", bad)
    with pytest.raises(JournalCorrupt) as caught:
        recover(story.journal)
    assert caught.value.seq == bad


@pytest.mark.parametrize(
    "impossible",
    [HostExcluded("g77", "h1"), HostChanged("h1", HostState.FENCED)],
    ids=["a group that is not there", "an edge that does not exist"],
)
def test_a_decision_that_cannot_be_applied_is_said_with_who_made_it(story: Story, impossible: Event) -> None:
    before = HostRegistered(HostFacts("h1"), "boot")
    story.journal.append(Batch(story.journal.seq + 1, 1, 1_000, (), (before, impossible), code="0.0.7"))
    with pytest.raises(JournalError, match=r"decided by gangflow 0\.0\.7, cannot be applied"):
        recover(story.journal)
