"""The SQLite journal: order, the chain of digests, pages, the horizon."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangflow.errors import JournalCorrupt, JournalError, JournalLocked
from gangflow.xce.core.events import HostExcluded
from gangflow.xce.core.inputs import Tick
from gangflow.xce.journal import sqlite_records
from gangflow.xce.journal.record import Batch
from gangflow.xce.journal.sqlite import SqliteJournal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def journal(path: Path) -> Iterator[SqliteJournal]:
    opened = SqliteJournal(path)
    yield opened
    opened.close()


def fill(journal: SqliteJournal, batches: int, size: int = 1) -> list[Batch]:
    made = []
    for _ in range(batches):
        first = journal.seq + 1
        events = tuple(HostExcluded("g1", f"h{seq}") for seq in range(first, first + size))
        made.append(journal.append(Batch(first, 1, first * 10, (Tick(),), events)))
    return made


def tamper(path: Path, statement: str, *values: object) -> None:
    db = sqlite3.connect(path)
    try:
        with db:
            db.execute(statement, values)
    finally:
        db.close()


@pytest.mark.parametrize("page", [1, 2, 3, 256])
@pytest.mark.parametrize("size", [1, 4])
def test_every_number_of_batches_is_read_whatever_the_page(
    path: Path, monkeypatch: pytest.MonkeyPatch, page: int, size: int
) -> None:
    """Scenario 84 found it: a journal of exactly one page of batches was called corrupt, and its controller did not start."""
    monkeypatch.setattr(sqlite_records, "PAGE", page)
    journal = SqliteJournal(path)
    try:
        made: list[Batch] = []
        for _ in range(2 * page + 2 if page < 256 else 1):
            made += fill(journal, 1 if page < 256 else page, size)
            assert list(journal.batches()) == made
            assert list(journal.batches(after=journal.seq)) == []
    finally:
        journal.close()


@pytest.mark.parametrize("made_by_others", [False, True])
def test_only_its_owner_reads_a_journal(path: Path, made_by_others: bool) -> None:
    """Whatever the umask was, now or when it was made."""
    before = os.umask(0)
    try:
        if made_by_others:
            old = SqliteJournal(path)
            fill(old, 1)
            old.close()
            path.chmod(0o644)
        opened = SqliteJournal(path)
        fill(opened, 1)
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
        opened.close()
    finally:
        os.umask(before)
    assert set(modes) >= {"journal.db", "journal.db-wal", "journal.db-shm"}
    assert set(modes.values()) == {0o600}, modes


def test_what_was_appended_is_there_after_a_restart(journal: SqliteJournal, path: Path) -> None:
    made = fill(journal, 3, size=2)
    name = journal.cluster_id
    journal.close()
    again = SqliteJournal(path)
    try:
        assert (again.cluster_id, again.seq, again.horizon) == (name, 6, 0)
        assert list(again.batches()) == made
        assert [batch.first_seq for batch in again.batches(after=2)] == [3, 5]
        assert [batch.first_seq for batch in again.batches(after=3)] == [3, 5], "the batch that holds seq 4"
    finally:
        again.close()


def test_two_journals_have_two_names(tmp_path: Path) -> None:
    one, two = SqliteJournal(tmp_path / "one.db"), SqliteJournal(tmp_path / "two.db")
    names = {one.cluster_id, two.cluster_id}
    one.close()
    two.close()
    assert len(names) == 2


def test_the_digest_covers_all_that_came_before(tmp_path: Path) -> None:
    one, two = (SqliteJournal(tmp_path / name, cluster_id="same") for name in ("one.db", "two.db"))
    assert [b.digest for b in fill(one, 3)] == [b.digest for b in fill(two, 3)]
    differing = two.append(Batch(4, 1, 41, (Tick(),), (HostExcluded("g1", "h4"),)))
    assert fill(one, 1)[0].digest != differing.digest
    assert fill(one, 1)[0].digest != fill(two, 1)[0].digest, "equal records after different ones"
    one.close()
    two.close()


@pytest.mark.parametrize("first", [0, 1, 3, 4])
def test_only_the_next_batch_can_be_appended(journal: SqliteJournal, first: int) -> None:
    fill(journal, 1)
    with pytest.raises(ValueError, match="cannot follow 1"):
        journal.append(Batch(first, 1, 1, (), (HostExcluded("g", "h"),)))
    assert journal.seq == 1


def test_a_batch_that_decided_nothing_is_refused(journal: SqliteJournal) -> None:
    with pytest.raises(ValueError, match="0 events"):
        journal.append(Batch(1, 1, 1, (Tick(),), ()))


def test_a_text_without_utf8_form_fails_before_anything_is_written(journal: SqliteJournal) -> None:
    with pytest.raises(ValueError, match="surrogates"):
        journal.append(Batch(1, 1, 1, (), (HostExcluded("g", "\udc80"),)))
    assert fill(journal, 1)[0].first_seq == 1


def test_events_come_in_pages_without_a_gap(journal: SqliteJournal) -> None:
    fill(journal, 5, size=3)
    seen: list[int] = []
    while page := journal.events(seen[-1] if seen else 0, limit=4):
        assert len(page) <= 6, "at most one batch more than asked for"
        seen.extend(stamped.seq for stamped in page)
    assert seen == list(range(1, 16))
    assert [stamped.seq for stamped in journal.events(13, limit=10)] == [14, 15]
    assert journal.events(15, limit=10) == []
    assert journal.events(1, limit=1)[0].at_ms == 10


def test_a_changed_record_is_named(journal: SqliteJournal, path: Path) -> None:
    fill(journal, 5, size=2)
    journal.close()
    tamper(path, "UPDATE batches SET record = replace(record, 'h5', 'h9') WHERE first_seq = 5")
    again = SqliteJournal(path)
    with pytest.raises(JournalCorrupt, match="seq 5") as caught:
        list(again.batches())
    assert caught.value.seq == 5
    with pytest.raises(JournalCorrupt):
        again.events(4, 10)
    assert [batch.first_seq for batch in again.batches(after=6)] == [7, 9], "what is after it is still bound to itself"
    again.close()


def test_a_record_with_a_digest_of_its_own_breaks_the_chain_after_it(journal: SqliteJournal, path: Path) -> None:
    import hashlib

    fill(journal, 3)
    journal.close()
    tamper(path, "UPDATE batches SET digest = ? WHERE first_seq = 2", hashlib.sha256(b"forged").digest())
    again = SqliteJournal(path)
    with pytest.raises(JournalCorrupt) as caught:
        list(again.batches())
    assert caught.value.seq == 2
    again.close()


def test_a_missing_record_is_named(journal: SqliteJournal, path: Path) -> None:
    fill(journal, 5)
    journal.close()
    tamper(path, "DELETE FROM batches WHERE first_seq = 3")
    again = SqliteJournal(path)
    with pytest.raises(JournalCorrupt) as caught:
        list(again.batches())
    assert caught.value.seq == 3
    again.close()


def test_a_cut_tail_is_noticed_at_once(journal: SqliteJournal, path: Path) -> None:
    """A chain is whole without its last records: the head says that they were there."""
    fill(journal, 5)
    journal.close()
    tamper(path, "DELETE FROM batches WHERE first_seq > 3")
    with pytest.raises(JournalCorrupt, match="ends at seq 3, but 5 was written") as caught:
        SqliteJournal(path)
    assert caught.value.seq == 4
    assert "--until 3" in caught.value.advice


@pytest.mark.parametrize(
    ("damage", "good"),
    [
        ("DELETE FROM batches WHERE first_seq > 3", 3),
        ("UPDATE batches SET digest = zeroblob(32) WHERE first_seq = 5", 4),
        ("UPDATE meta SET value = zeroblob(32) WHERE name = 'head_digest'", 4),
    ],
)
def test_what_is_before_a_damaged_end_can_still_be_read(journal: SqliteJournal, path: Path, damage: str, good: int) -> None:
    """Opened for reading only; who would write on is refused at once, and told what is wrong."""
    fill(journal, 5)
    journal.close()
    tamper(path, damage)
    with pytest.raises(JournalCorrupt, match="ends at seq 3" if good == 3 else "the digest of its last record, at seq 5"):
        SqliteJournal(path)
    reader = sqlite_records.SqliteRecords(path)
    read: list[int] = []
    with pytest.raises(JournalCorrupt) as caught:
        read.extend(record.last_seq for record in reader.records())
    reader.close()
    assert caught.value.seq == good + 1
    assert f"--until {good}`" in caught.value.advice


def test_a_second_opener_is_told_who_has_it(journal: SqliteJournal, path: Path) -> None:
    import os

    with pytest.raises(JournalLocked, match=str(os.getpid())) as caught:
        SqliteJournal(path)
    assert caught.value.exit_code == 6
    journal.close()
    SqliteJournal(path).close()


def test_a_failed_open_lets_go_of_the_lock(path: Path) -> None:
    path.write_bytes(b"this is not a database, " * 100)
    for _ in range(2):
        with pytest.raises(JournalCorrupt):
            SqliteJournal(path)


def test_a_newer_schema_is_refused(journal: SqliteJournal, path: Path) -> None:
    journal.close()
    tamper(path, "UPDATE meta SET value = 99 WHERE name = 'schema'")
    with pytest.raises(JournalError, match="newer gangflow"):
        SqliteJournal(path)


def test_a_crash_while_the_file_was_made_leaves_nothing_behind(path: Path) -> None:
    sqlite3.connect(path).close()
    path.touch()
    journal = SqliteJournal(path)
    assert (journal.seq, bool(journal.cluster_id)) == (0, True)
    journal.close()


def test_images_are_kept_newest_first_and_only_so_many(journal: SqliteJournal) -> None:
    fill(journal, 3)
    for seq in (1, 2, 3):
        journal.save_image(seq, b"image %d" % seq, keep=2)
    assert journal.image_seqs() == [3, 2]
    assert journal.image(2) == b"image 2"
    assert journal.image(1) == b""


def test_the_horizon_never_passes_the_oldest_image(journal: SqliteJournal, path: Path) -> None:
    fill(journal, 6)
    assert journal.forget(before_ms=10_000) == 0, "without an image every record is needed"
    journal.save_image(4, b"older", keep=2)
    journal.save_image(6, b"newer", keep=2)
    assert journal.forget(before_ms=25) == 2, "records 1 and 2 are from before 25 ms"
    assert journal.forget(before_ms=10_000) == 4
    assert [batch.first_seq for batch in journal.batches()] == [5, 6]
    assert [stamped.seq for stamped in journal.events(0, 10)] == [5, 6]
    assert journal.digest_at(4) != b""
    assert journal.digest_at(3) == b""
    fill(journal, 1)
    journal.close()
    again = SqliteJournal(path)
    assert (again.horizon, again.seq) == (4, 7)
    assert [batch.first_seq for batch in again.batches()] == [5, 6, 7], "the chain goes on from the horizon's digest"
    again.close()


def test_closing_twice_is_allowed(journal: SqliteJournal) -> None:
    journal.close()
    journal.close()


# --- reading beside a writer --------------------------------------------------------------------------------------------


def test_a_reader_sees_what_was_there_when_it_opened_and_what_came_since(journal: SqliteJournal, path: Path) -> None:
    made = fill(journal, 3)
    reader = sqlite_records.SqliteRecords(path)
    assert (reader.cluster_id, reader.seq, reader.horizon) == (journal.cluster_id, 3, 0)
    made += fill(journal, 2)
    assert list(reader.batches()) == made
    assert reader.seq == 3
    reader.close()
    reader.close()
    assert fill(journal, 1)[0].first_seq == 6


def test_a_reader_cannot_write_and_makes_no_file(tmp_path: Path, journal: SqliteJournal, path: Path) -> None:
    reader = sqlite_records.SqliteRecords(path)
    with pytest.raises(sqlite3.OperationalError):
        reader._reader.execute("DELETE FROM batches")
    reader.close()
    with pytest.raises(JournalError, match="there is no journal"):
        sqlite_records.SqliteRecords(tmp_path / "nowhere.db")
    assert not (tmp_path / "nowhere.db").exists()


@pytest.mark.parametrize("beside", [False, True])
def test_records_that_are_forgotten_while_they_are_read_are_not_called_corrupt(
    journal: SqliteJournal, path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """By a reader of the controller's own process, and by one beside it."""
    monkeypatch.setattr(sqlite_records, "PAGE", 2)
    fill(journal, 9)
    reader = sqlite_records.SqliteRecords(path) if beside else journal
    reading = reader.records()
    assert next(reading).first_seq == 1
    journal.save_image(8, b"image", keep=1)
    assert journal.forget(before_ms=10_000) == 8
    with pytest.raises(JournalError, match="records up to seq 8 were forgotten while they were read") as caught:
        list(reading)
    assert not isinstance(caught.value, JournalCorrupt)
    if beside:
        reader.close()


def test_a_record_that_is_missing_is_corrupt_for_a_reader_too(journal: SqliteJournal, path: Path) -> None:
    fill(journal, 5)
    reader = sqlite_records.SqliteRecords(path)
    tamper(path, "DELETE FROM batches WHERE first_seq = 3")
    with pytest.raises(JournalCorrupt) as caught:
        list(reader.records())
    assert caught.value.seq == 3
    reader.close()


def test_the_oldest_are_forgotten_when_there_are_too_many_bytes(journal: SqliteJournal) -> None:
    fill(journal, 60, size=40)
    assert journal.forget(before_ms=0, keep_bytes=1) == 0, "no image covers them"
    journal.save_image(1_600, b"image", keep=1)
    assert journal.forget(before_ms=0, keep_bytes=10**9) == 0
    pages, size = (journal._writer.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    some = journal.forget(before_ms=0, keep_bytes=pages * size - 20_000)
    assert 0 < some < 1_600
    assert journal.forget(before_ms=0, keep_bytes=1) == 1_600
    assert next(iter(journal.batches())).first_seq == 1_601
