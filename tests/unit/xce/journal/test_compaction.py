"""Compaction: the same state from less, verified; what goes is said to whoever asks for it; a death in between does no harm."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from gangflow.errors import Gone, JournalCorrupt, JournalError, JournalLocked, SpecError
from gangflow.xce.controller.feed import Feed
from gangflow.xce.journal import image
from gangflow.xce.journal.compaction import compact
from gangflow.xce.journal.image import Image
from gangflow.xce.journal.recovery import recover
from gangflow.xce.journal.replay import replay
from gangflow.xce.journal.sqlite import SqliteJournal
from gangflow.xce.journal.sqlite_records import SqliteRecords
from tests.property.kept import Kept
from tests.unit.xce.journal.test_replay import story

ROOT = Path(__file__).resolve().parents[4]
LATER = 10**15
STATE = Kept(story()).states[-1]
END = story()[-1].last_seq


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The story, with an image after its eighth batch."""
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path, cluster_id="test-cluster")
    states = Kept(story()).states
    for number, batch in enumerate(story()):
        journal.append(batch)
        if number == 7:
            seq = batch.last_seq
            journal.save_image(seq, image.encode(Image(states[number], seq, journal.digest_at(seq))), keep=2)
    journal.close()
    return path


def recovered(path: Path) -> SqliteJournal:
    """The journal, which recovers the story's end."""
    journal = SqliteJournal(path)
    found = recover(journal)
    assert (found.state, found.seq, found.notes) == (STATE, END, ())
    return journal


def test_the_state_is_the_same_and_the_older_image_bears_what_is_kept(file: Path) -> None:
    """Property 41."""
    done = compact(file, LATER)
    older = story()[7].last_seq
    assert (done.seq, done.images, done.horizon_before, done.horizon) == (END, (END, older), 0, older)
    assert (done.records_before, done.records) == (len(story()), len(story()) - 8)
    journal = recovered(file)
    assert [batch.first_seq for batch in journal.batches()] == [batch.first_seq for batch in story()[8:]]
    journal.close()


def test_a_damaged_newest_image_is_no_loss_after_it(file: Path) -> None:
    compact(file, LATER)
    db = sqlite3.connect(file)
    with db:
        db.execute("UPDATE images SET image = x'00' WHERE seq = ?", (END,))
    db.close()
    journal = SqliteJournal(file)
    found = recover(journal)
    assert (found.state, found.image_seq) == (STATE, story()[7].last_seq)
    journal.close()


async def test_whoever_watches_from_before_is_told_that_it_is_gone(file: Path) -> None:
    done = compact(file, LATER)
    journal = recovered(file)
    feed = Feed(journal)
    with pytest.raises(Gone) as caught:
        await anext(feed.after(done.horizon - 1))
    assert caught.value.seq == END
    got = []
    async for stamped in feed.after(done.horizon):
        got.append(stamped.seq)
        if stamped.seq == END:
            break
    assert got == list(range(done.horizon + 1, END + 1))
    feed.close()
    journal.close()


def test_a_replay_says_from_where_it_can_begin(file: Path) -> None:
    done = compact(file, LATER)
    journal = SqliteRecords(file)
    found = replay(journal)
    assert (found.divergence, found.state, found.began_after) == (None, STATE, done.horizon)
    assert f"of seq {done.horizon}" in found.notes[0]
    with pytest.raises(JournalError) as caught:
        replay(journal, after=3)
    assert f"--from {done.horizon + 1} is the earliest" in caught.value.advice
    with pytest.raises(SpecError, match=f"a seq from {done.horizon} on.*seq 3 is not kept any more"):
        replay(journal, until=3)
    assert replay(journal, until=done.horizon).seq == done.horizon
    journal.close()


def test_what_is_young_enough_stays(file: Path) -> None:
    done = compact(file, story()[2].now_ms + 1)
    assert done.horizon <= story()[7].last_seq
    kept = [batch for batch in story() if batch.now_ms > story()[2].now_ms]
    assert done.records == len(kept)
    assert done.horizon == kept[0].first_seq - 1
    assert compact(file, 0).horizon == done.horizon, "nothing comes back, and nothing more goes"


def test_the_oldest_go_when_they_are_too_many_bytes(file: Path) -> None:
    before = compact(file, 0)
    assert before.horizon == 0
    done = compact(file, 0, keep_bytes=before.bytes - 1)
    assert 0 < done.horizon < story()[7].last_seq, "as few as that takes"
    done = compact(file, 0, keep_bytes=1)
    assert done.horizon == story()[7].last_seq
    recovered(file).close()


def test_it_can_be_done_again_and_again(file: Path) -> None:
    first = compact(file, LATER)
    again = compact(file, LATER)
    assert (again.horizon, again.records, again.images) == (first.horizon, first.records, first.images)
    last = compact(file, LATER, images=1)
    assert (last.horizon, last.records, last.images) == (END, 0, (END,))
    journal = recovered(file)
    journal.append(story()[0].__class__(END + 1, 2, LATER - 1, (), story()[0].events))
    journal.close()
    assert compact(file, LATER, images=1).records == 0


def test_an_empty_journal_stays_empty(tmp_path: Path) -> None:
    SqliteJournal(tmp_path / "journal.db").close()
    done = compact(tmp_path / "journal.db", LATER)
    assert (done.seq, done.images, done.horizon) == (0, (), 0)


def test_the_file_becomes_smaller(tmp_path: Path, file: Path) -> None:
    journal = SqliteJournal(file)
    seq = END
    for number in range(400):
        batch = story()[1].__class__(seq + 1, 2, LATER - 1_000 + number, story()[1].inputs * 5, story()[1].events)
        seq = journal.append(batch).last_seq
    journal.close()
    done = compact(file, LATER, images=1)
    assert done.bytes < done.bytes_before / 3
    assert file.stat().st_size == done.bytes


def test_a_journal_in_use_is_left_alone(file: Path) -> None:
    held = SqliteJournal(file)
    with pytest.raises(JournalLocked):
        compact(file, LATER)
    assert (held.horizon, len(held.image_seqs())) == (0, 1)
    held.close()


def test_what_cannot_be_trusted_is_not_thrown_away(file: Path) -> None:
    """Recovery would pass over it, as an image covers it: but it would be gone for good."""
    db = sqlite3.connect(file)
    with db:
        db.execute("UPDATE batches SET record = replace(record, 'h0', 'h1') WHERE first_seq = ?", (story()[3].first_seq,))
    db.close()
    with pytest.raises(JournalCorrupt) as caught:
        compact(file, LATER)
    assert caught.value.seq == story()[3].first_seq
    journal = SqliteJournal(file)
    assert (journal.horizon, len(journal.image_seqs())) == (0, 1)
    journal.close()


DIE = """
import os, shutil, sys
from pathlib import Path
from gangflow.xce.journal import sqlite as room
from gangflow.xce.journal.compaction import compact

file = Path(sys.argv[1])
connect = room.SqliteJournal._connect

def die_before(left, copy):
    def dying(self):
        db = connect(self)
        def count(statement):
            nonlocal left
            left -= 1
            if left == 0:
                os._exit(9)
        db.set_trace_callback(count)
        return db
    room.SqliteJournal._connect = dying
    compact(copy, 10**15)

for statement in range(1, 200):
    copy = file.with_name(f"copy-{statement}.db")
    shutil.copy(file, copy)
    child = os.fork()
    if not child:
        die_before(statement, copy)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(statement, code)
    if code != 9:
        break
"""


def test_a_death_at_any_statement_leaves_a_journal_that_recovers(file: Path) -> None:
    """Killed before each SQL statement in turn, until it gets through: what is left is the same state, and can be compacted."""
    words = [sys.executable, "-c", DIE, str(file)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(words, env=environment, check=True, timeout=120, capture_output=True, text=True)
    codes = dict(tuple(map(int, line.split())) for line in ended.stdout.splitlines())
    assert list(codes.values()) == [9] * (len(codes) - 1) + [0]
    assert len(codes) > 15
    for statement in codes:
        copy = file.with_name(f"copy-{statement}.db")
        recovered(copy).close()
        if statement % 5 == 0:
            assert compact(copy, LATER).records == len(story()) - 8
