"""What disks and people do to a journal, for real: each has its own error, and nothing acknowledged is lost."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gangflow.errors import JournalCorrupt, JournalFull, JournalLocked
from gangflow.xce.core.events import HostExcluded
from gangflow.xce.journal.record import Batch
from gangflow.xce.journal.sqlite import SqliteJournal

PADDING = "x" * 2_000
WRITER = """
import sys
from pathlib import Path
from gangflow.xce.core.events import HostExcluded
from gangflow.xce.journal.record import Batch
from gangflow.xce.journal.sqlite import SqliteJournal

journal = SqliteJournal(Path(sys.argv[1]))
while True:
    first = journal.seq + 1
    journal.append(Batch(first, 1, first, (), tuple(HostExcluded("g1", f"h{first + n}") for n in range(3))))
    print(journal.seq, flush=True)
"""


def append(journal: SqliteJournal, count: int = 1) -> int:
    for _ in range(count):
        first = journal.seq + 1
        journal.append(Batch(first, 1, first, (), (HostExcluded("g1", f"h{first}"), HostExcluded("g1", PADDING))))
    return journal.seq


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """The kernel refuses to let any file of this process grow past `limit` bytes, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def writer(path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=30)
        assert process.stdout is not None
        process.stdout.close()


def test_a_full_disk_loses_nothing_and_passes(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    append(journal, 5)
    wal = path.with_name("journal.db-wal")
    with file_size_limit(wal.stat().st_size + 20_000):
        with pytest.raises(JournalFull) as caught:
            append(journal, 100)
        full_at = journal.seq
        assert 10 <= full_at < 210, "it went on while there was space, and stopped when there was none"
        for _ in range(3):
            with pytest.raises(JournalFull):
                append(journal)
        assert journal.seq == full_at
        assert journal.events(full_at, 10) == [], "nothing half-written can be seen"
    assert (caught.value.exit_code, "goes on by itself" in caught.value.advice) == (5, True)
    assert append(journal) == full_at + 2, "space is back"
    journal.close()
    again = SqliteJournal(path)
    assert [batch.first_seq for batch in again.batches()] == list(range(1, full_at + 2, 2))
    again.close()


def test_sqlites_own_word_for_full_is_the_same_error(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    pages = journal._writer.execute("PRAGMA page_count").fetchone()[0]
    journal._writer.execute(f"PRAGMA max_page_count={pages + 3}")
    with pytest.raises(JournalFull, match="database or disk is full"):
        append(journal, 100)
    full_at = journal.seq
    journal._writer.execute("PRAGMA max_page_count=1073741823")
    assert append(journal) == full_at + 2
    assert len(list(journal.batches())) == (full_at + 2) // 2
    journal.close()


def test_a_journal_on_a_full_disk_cannot_be_made_and_says_so(tmp_path: Path) -> None:
    with file_size_limit(0), pytest.raises(JournalFull):
        SqliteJournal(tmp_path / "journal.db")
    journal = SqliteJournal(tmp_path / "journal.db")
    append(journal)
    journal.close()


def test_a_second_controller_is_kept_out_until_the_first_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with writer(path) as first:
        assert first.stdout is not None
        assert first.stdout.readline()
        with pytest.raises(JournalLocked, match=f"in use by process {first.pid}"):
            SqliteJournal(path)
        first.send_signal(signal.SIGKILL)
        first.wait(timeout=30)
        journal = SqliteJournal(path)
        assert journal.seq >= 3
        journal.close()


def test_somebody_elses_transaction_on_the_file_is_an_error_that_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3

    monkeypatch.setattr("gangflow.xce.journal.sqlite.BUSY_MS", 50)
    journal = SqliteJournal(tmp_path / "journal.db")
    append(journal)
    stranger = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    stranger.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalLocked, match="another program"):
        append(journal)
    stranger.execute("ROLLBACK")
    stranger.close()
    assert append(journal) == 4
    journal.close()


@pytest.mark.parametrize("after", [1, 7, 40])
def test_what_was_acknowledged_before_a_kill_is_there(tmp_path: Path, after: int) -> None:
    path = tmp_path / "journal.db"
    with writer(path) as process:
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(after)]
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
        acknowledged += [int(line) for line in process.stdout if line.endswith("\n")]
    journal = SqliteJournal(path)
    batches = list(journal.batches())
    assert journal.seq >= acknowledged[-1]
    assert journal.seq % 3 == 0, "whole batches only"
    assert [batch.last_seq for batch in batches][: len(acknowledged)] == acknowledged
    journal.close()


def _flip(path: Path, offset: int, count: int = 16) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        old = file.read(count)
        file.seek(offset)
        file.write(bytes(byte ^ 0xFF for byte in old))
        os.fsync(file.fileno())


def test_flipped_bytes_of_a_record_name_its_seq_and_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    append(journal, 30)
    journal.close()
    at = path.read_bytes().index(b'"host":"h21"')
    _flip(path, at + 8, 3)
    damaged = path.read_bytes()
    again = SqliteJournal(path)
    with pytest.raises(JournalCorrupt) as caught:
        list(again.batches())
    again.close()
    assert (caught.value.seq, caught.value.exit_code) == (21, 7)
    assert path.read_bytes() == damaged


def test_a_torn_page_is_the_same_error(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    append(journal, 60)
    journal.close()
    content = path.read_bytes()
    page = content.index(b'"host":"h61"') // 4096
    _flip(path, page * 4096, 64)
    again = SqliteJournal(path)
    with pytest.raises(JournalCorrupt) as caught:
        list(again.batches())
    again.close()
    assert 1 <= caught.value.seq <= 62


def test_a_destroyed_file_is_the_same_error(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    append(journal, 3)
    journal.close()
    _flip(path, 0, 100)
    with pytest.raises(JournalCorrupt, match="not a database"):
        SqliteJournal(path)
