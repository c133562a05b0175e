"""The embedded journal: one SQLite file in WAL mode, `synchronous=FULL`, one transaction a batch.

A batch is durable when its commit returned. A lock beside the file keeps a second controller out (the kernel drops it with
the process); readers of the same process use a connection of their own and never wait for a writer.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gangflow.errors import JournalError, JournalLocked
from gangflow.xce.journal.record import Batch, chain, encode
from gangflow.xce.journal.sqlite_records import BUSY_MS, SCHEMA, SqliteRecords

_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE batches (first_seq INTEGER PRIMARY KEY, last_seq INTEGER NOT NULL, at_ms INTEGER NOT NULL, digest BLOB NOT NULL,
                      record BLOB NOT NULL);
CREATE TABLE images (seq INTEGER PRIMARY KEY, image BLOB NOT NULL);
"""
PRIVATE = 0o600


class SqliteJournal(SqliteRecords):
    """`store.Journal` in one file. Opens it, or makes it with a new `cluster_id`; JournalLocked if another process has it."""

    def __init__(self, path: Path | str, *, cluster_id: str = "") -> None:
        """`cluster_id` names a journal that is made here; an existing one keeps its own."""
        self.path = Path(path)
        self._begin()
        self._writing = threading.Lock()
        self._lock_fd = _lock(self.path)
        try:
            _keep_private(self.path)
            with self._translated(0):
                self._writer = self._connect()
                try:
                    self._prepare(cluster_id)
                    self._reader = self._connect()
                except BaseException:
                    self._writer.close()
                    raise
        except BaseException:
            os.close(self._lock_fd)
            raise

    # --- writing ------------------------------------------------------------------------------------------------------

    def append(self, batch: Batch) -> Batch:
        with self._writing:
            if batch.first_seq != self._seq + 1 or not batch.events:
                raise ValueError(f"a batch of {len(batch.events)} events from {batch.first_seq} cannot follow {self._seq}")
            record = encode(batch)
            digest = chain(self._digest, record)
            row = (batch.first_seq, batch.last_seq, batch.now_ms, digest, record)
            with self._transaction() as db:
                db.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?)", row)
                # The head says where the chain ends: records that are cut off at the end would leave a shorter chain whole.
                _set(db, "head_seq", batch.last_seq)
                _set(db, "head_digest", digest)
            self._seq, self._digest = batch.last_seq, digest
            return replace(batch, digest=digest.hex())

    def save_image(self, seq: int, image: bytes, keep: int) -> None:
        with self._writing, self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO images VALUES (?, ?)", (seq, image))
            db.execute("DELETE FROM images WHERE seq NOT IN (SELECT seq FROM images ORDER BY seq DESC LIMIT ?)", (keep,))

    def forget(self, before_ms: int, keep_bytes: int = 0) -> int:
        with self._writing, self._transaction() as db:
            covered = db.execute("SELECT min(seq) FROM images").fetchone()[0] or 0
            old = _last_old(db, before_ms, covered)
            surplus = _last_surplus(db, _used_bytes(db) - keep_bytes, covered) if keep_bytes else None
            last = max(filter(None, (old, surplus)), default=None)
            if last is not None:
                _set(db, "base_seq", last[0])
                _set(db, "base_digest", last[1])
                db.execute("DELETE FROM batches WHERE last_seq <= ?", (last[0],))
        if last is not None:
            self._origin = last
        return self.horizon

    def shrink(self) -> None:
        """Give what is free inside the file back to the disk. Needs as much space again while it lasts; JournalFull if there is
        none, and then all is as it was."""
        with self._writing, self._translated(0):
            self._writer.execute("VACUUM")
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with self._writing, self._reading:
                self._reader.close()
                self._writer.close()
                os.close(self._lock_fd)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
        except BaseException:
            db.close()
            raise
        return db

    def _prepare(self, cluster_id: str) -> None:
        db = self._writer
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            name = cluster_id or secrets.token_hex(8)
            root = hashlib.sha256(name.encode()).digest()
            db.execute("BEGIN IMMEDIATE")
            for statement in _TABLES.split(";"):
                db.execute(statement)
            for key, value in {"cluster_id": name, "schema": SCHEMA, "head_seq": 0, "base_seq": 0}.items():
                _set(db, key, value)
            _set(db, "head_digest", root)
            _set(db, "base_digest", root)
            db.execute("COMMIT")
            _sync_folder(self.path.parent)
        self._take_contents(db)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._translated(self._seq + 1):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:  # some failures have rolled it back already
                    self._writer.execute("ROLLBACK")
                raise


def _last_old(db: sqlite3.Connection, before_ms: int, covered: int) -> tuple[int, bytes] | None:
    """(last_seq, digest) of the newest batch that is older than that, and covered by an image."""
    # From the oldest on: this looks at what goes and one more. (Times never run backwards within a journal.)
    stays = db.execute(
        "SELECT first_seq FROM batches WHERE at_ms >= ? OR last_seq > ? ORDER BY first_seq LIMIT 1", (before_ms, covered)
    ).fetchone()
    return _last_before(db, stays[0] if stays is not None else covered + 1)


def _last_surplus(db: sqlite3.Connection, surplus: int, covered: int) -> tuple[int, bytes] | None:
    """The same for the oldest batches that are so many bytes together."""
    stays = 0
    sizes = "SELECT last_seq, length(record) FROM batches WHERE last_seq <= ? ORDER BY first_seq"
    for last_seq, size in db.execute(sizes, (covered,)) if surplus > 0 else ():
        surplus -= size
        stays = last_seq + 1
        if surplus <= 0:
            break
    return _last_before(db, stays)


def _last_before(db: sqlite3.Connection, seq: int) -> tuple[int, bytes] | None:
    found = db.execute(
        "SELECT last_seq, digest FROM batches WHERE first_seq < ? ORDER BY first_seq DESC LIMIT 1", (seq,)
    ).fetchone()
    return (int(found[0]), bytes(found[1])) if found is not None else None


def _used_bytes(db: sqlite3.Connection) -> int:
    """Of the file, what is not free inside it."""
    pages, free, size = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size"))
    return int((pages - free) * size)


def _set(db: sqlite3.Connection, name: str, value: object) -> None:
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))


def _lock(path: Path) -> int:
    """An exclusive lock on a file beside the journal (closing any descriptor of the database itself would drop SQLite's)."""
    beside = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise JournalError(f"{beside}: {error.strerror}", remedy="make the journal's folder writable") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(handle, 32).decode(errors="replace").strip()
        os.close(handle)
        raise JournalLocked(f"{path} is in use by process {holder or 'unknown'}") from error
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        pass  # a full disk: the lock holds all the same, only the name of its holder is missing
    return handle


def _keep_private(path: Path) -> None:
    """Only its owner reads a journal: it has every member's command and environment. SQLite gives the files beside it the same
    mode. (Called before SQLite opens it: closing another descriptor of the file would drop SQLite's locks.)"""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE))
    except FileExistsError:
        for file in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
            try:
                status = file.stat()
                if status.st_uid == os.getuid() and status.st_mode & 0o077:
                    file.chmod(PRIVATE)
            except FileNotFoundError:
                continue
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror}", remedy="make the journal's folder writable") from error


def _sync_folder(folder: Path) -> None:
    """A new file is durable only when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
