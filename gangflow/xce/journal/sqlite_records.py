"""Reading the journal's SQLite file: every record is checked against the chain of digests on its way out.

`SqliteRecords` opens a file for reading only. It takes no lock that a writer could wait for, so it can stand beside a running
controller; each page is a transaction of its own, so it does not keep SQLite from cleaning up either.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gangflow.errors import JournalCorrupt, JournalError, JournalFull, JournalLocked
from gangflow.xce.journal.record import Batch, chain, decode
from gangflow.xce.journal.store import Record, Stamped

SCHEMA = 1
BUSY_MS = 2_000
"""How long a foreign lock on the file (somebody looks at it with another program) is waited for."""
PAGE = 256
"""Batches read under one lock: keeps a long read from holding up the others."""

# The casts: a value whose type was changed on disk must fail its digest, not this code.
_FROM = """SELECT first_seq, last_seq, CAST(digest AS BLOB), CAST(record AS BLOB) FROM batches
WHERE first_seq >= coalesce((SELECT max(first_seq) FROM batches WHERE first_seq <= ?), 0) ORDER BY first_seq LIMIT ?"""
# EFBIG and EDQUOT (a file-size limit, a quota) reach us as a failed write; a full tmpfs may show in the -shm file first.
_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_Row = tuple[int, int, bytes, bytes]


class SqliteRecords:
    """`store.Records` of one file, which somebody else may be writing."""

    def __init__(self, path: Path | str) -> None:
        """Raises JournalError when there is no journal, or it cannot be opened; JournalCorrupt when it is damaged.

        Damage at its end is told by whoever reads so far: what is before it can still be looked at.
        """
        self.path = Path(path)
        self._begin()
        if not self.path.is_file():
            raise JournalError(f"{self.path}: there is no journal", remedy="name a journal.db, or the home of a cluster")
        with self._translated(0):
            self._reader = _look_at(self.path)
            try:
                self._take_contents(self._reader, whole=False)
            except BaseException:
                self._reader.close()
                raise

    def _begin(self) -> None:
        self._cluster_id = ""
        self._seq = 0
        self._digest = b""
        self._origin = (0, b"")
        """Where the records that are kept begin, and the chain's digest there: one value, as another thread may forget some."""
        self._cut: JournalCorrupt | None = None
        """What is wrong with its end, if it was opened all the same."""
        self._closed = False
        self._reading = threading.Lock()

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def seq(self) -> int:
        """Of the last event, as of when it was opened (or written by this process)."""
        return self._seq

    @property
    def horizon(self) -> int:
        return self._origin[0]

    # --- reading ------------------------------------------------------------------------------------------------------

    def records(self, after: int = 0) -> Iterator[Record]:
        return self._records(after, PAGE)

    def batches(self, after: int = 0, *, inputs: bool = True) -> Iterator[Batch]:
        for record in self._records(after, PAGE):
            yield decode(record.raw, record.digest, inputs=inputs)

    def events(self, after: int, limit: int) -> list[Stamped]:
        found: list[Stamped] = []
        for record in self._records(after, min(PAGE, limit)):
            batch = decode(record.raw, inputs=False)
            stamped = (Stamped(seq, batch.now_ms, event) for seq, event in enumerate(batch.events, batch.first_seq))
            found.extend(each for each in stamped if each.seq > after)
            if len(found) >= limit:
                break
        return found

    def digest_at(self, seq: int) -> bytes:
        begin, digest = self._origin
        if seq == begin:
            return digest
        row = self._read("SELECT CAST(digest AS BLOB) FROM batches WHERE first_seq <= ? AND last_seq = ?", (seq, seq), seq)
        return bytes(row[0][0]) if row else b""

    def image_seqs(self) -> list[int]:
        return [seq for (seq,) in self._read("SELECT seq FROM images ORDER BY seq DESC", (), 0)]

    def image(self, seq: int) -> bytes:
        rows = self._read("SELECT CAST(image AS BLOB) FROM images WHERE seq = ?", (seq,), 0)
        return bytes(rows[0][0]) if rows else b""

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with self._reading:
                self._reader.close()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _take_contents(self, db: sqlite3.Connection, *, whole: bool = True) -> None:
        """What the table of contents says, and whether the chain ends where it says; all as of one moment.

        JournalCorrupt if it does not; where not `whole`, only reading up to there says so.
        """
        db.execute("BEGIN")
        try:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
                raise JournalError(f"{self.path}: there is no journal in this file")
            meta = dict(db.execute("SELECT name, value FROM meta").fetchall())
            last = db.execute("SELECT last_seq, digest, first_seq FROM batches ORDER BY first_seq DESC LIMIT 1").fetchone()
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")
        if meta.get("schema", 0) > SCHEMA:
            raise JournalError(f"{self.path} has schema {meta['schema']}, made by a newer gangflow; this one reads {SCHEMA}")
        try:
            self._cluster_id = str(meta["cluster_id"])
            self._seq, self._digest = int(meta["head_seq"]), bytes(meta["head_digest"])
            self._origin = (int(meta["base_seq"]), bytes(meta["base_digest"]))
        except (KeyError, TypeError, ValueError) as error:
            raise JournalCorrupt(f"{self.path}: its table of contents is damaged ({error!r})") from error
        self._cut = self._wrong_end(last)
        if self._cut is not None and (whole or (last is not None and last[0] > self._seq)):
            raise self._cut

    def _wrong_end(self, last: tuple[int, bytes, int] | None) -> JournalCorrupt | None:
        """What is wrong with the end, given the last record's (last seq, digest, first seq); None: it is what was written."""
        end, digest = last[:2] if last is not None else self._origin
        if end == self._seq:
            if digest == self._digest:
                return None
            bad = last[2] if last is not None else end
            what = f"the digest of its last record, at seq {end}, is not the one that was written"
        else:
            bad = min(end, self._seq) + 1
            what = f"it ends at seq {end}, but {self._seq} was written"
        return JournalCorrupt(f"{self.path}: {what}", seq=bad, good=bad - 1 if bad - 1 > self.horizon else 0)

    def _records(self, after: int, page: int) -> Iterator[Record]:
        """From the batch that holds `after + 1` on; JournalCorrupt at the first record that does not continue the chain."""
        begin = self.horizon
        after = max(after, begin)
        position: tuple[int, bytes] | None = None
        seen = -1
        while True:
            rows: list[_Row] = self._read(_FROM, (after + 1, page), after + 1)
            if rows and rows[0][0] == seen:
                # The page before was full and there is no other: nothing holds `after + 1`, so its last row was found again.
                break
            for row in rows:
                first, last, digest, raw = row
                if position is None:
                    position = (first - 1, self.digest_at(first - 1))
                if first != position[0] + 1 or chain(position[1], raw) != digest:
                    raise self._broken(min(first, position[0] + 1), begin)
                if self._cut is not None and last >= self._cut.seq:
                    raise self._cut
                position = (last, digest)
                if last > after:
                    yield Record(first, last, digest, raw)
            if len(rows) < page:
                break
            seen, after = rows[-1][0], rows[-1][1]
        if self._cut is not None:
            raise self._cut

    def _broken(self, bad: int, begin: int) -> JournalError:
        """Why the record at `bad` does not follow: it may have been forgotten while we read."""
        rows = self._read("SELECT value FROM meta WHERE name = 'base_seq'", (), 0)
        if rows and rows[0][0] > begin and rows[0][0] >= bad:
            remedy = "begin again: a journal's oldest records are forgotten now and then"
            return JournalError(
                f"{self.path}: records up to seq {rows[0][0]} were forgotten while they were read", remedy=remedy
            )
        good = bad - 1 if bad - 1 > begin else 0
        return JournalCorrupt(
            f"{self.path}: the record at seq {bad} does not continue the chain of digests", seq=bad, good=good
        )

    def _read(self, query: str, values: tuple[int, ...], seq: int) -> list[Any]:
        with self._reading, self._translated(seq):
            return self._reader.execute(query, values).fetchall()

    @contextmanager
    def _translated(self, seq: int) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            what = f"{self.path}: {error}"
            if code in _FULL:
                raise JournalFull(f"{what}; nothing of this batch was kept") from error
            if code is not None and code & 0xFF in _LOCKED:
                raise JournalLocked(f"{what}: another program holds a lock on the file") from error
            if code is not None and code & 0xFF in _CORRUPT:
                raise JournalCorrupt(f"{what} (at seq {seq})" if seq else what, seq=seq) from error
            raise JournalError(f"{what} ({getattr(error, 'sqlite_errorname', 'unknown')})") from error


def _look_at(path: Path) -> sqlite3.Connection:
    """A connection that cannot write. Where its folder cannot be written, SQLite cannot make the file that readers share; then
    the file is read as it stands, which is right as long as nobody writes it (who writes keeps a `-wal` file beside it)."""
    beside = path.with_name(path.name + "-wal")
    still = not os.access(path.parent, os.W_OK) and not (beside.exists() and beside.stat().st_size)
    options = "immutable=1" if still else "mode=ro"
    db = sqlite3.connect(
        f"file:{quote(str(path.resolve()))}?{options}",
        uri=True,
        timeout=BUSY_MS / 1000,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        db.execute("PRAGMA query_only=ON")
    except BaseException:
        db.close()
        raise
    return db
