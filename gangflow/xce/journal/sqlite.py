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
from typing import Any

from gangflow.errors import JournalCorrupt, JournalError, JournalFull, JournalLocked
from gangflow.xce.journal.record import Batch, chain, decode, encode
from gangflow.xce.journal.store import Stamped

SCHEMA = 1
BUSY_MS = 2_000
"""How long a foreign lock on the file (somebody looks at it with another program) is waited for."""
PAGE = 256
"""Batches read under one lock: keeps a long read from holding up the others."""

_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE batches (first_seq INTEGER PRIMARY KEY, last_seq INTEGER NOT NULL, at_ms INTEGER NOT NULL, digest BLOB NOT NULL,
                      record BLOB NOT NULL);
CREATE TABLE images (seq INTEGER PRIMARY KEY, image BLOB NOT NULL);
"""
# The casts: a value whose type was changed on disk must fail its digest, not this code.
_FROM = """SELECT first_seq, last_seq, CAST(digest AS BLOB), CAST(record AS BLOB) FROM batches
WHERE first_seq >= coalesce((SELECT max(first_seq) FROM batches WHERE first_seq <= ?), 0) ORDER BY first_seq LIMIT ?"""
# EFBIG and EDQUOT (a file-size limit, a quota) reach us as a failed write; a full tmpfs may show in the -shm file first.
_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_Row = tuple[int, int, bytes, bytes]
PRIVATE = 0o600


class SqliteJournal:
    """`store.Journal` in one file. Opens it, or makes it with a new `cluster_id`; JournalLocked if another process has it."""

    def __init__(self, path: Path | str, *, cluster_id: str = "") -> None:
        """`cluster_id` names a journal that is made here; an existing one keeps its own."""
        self.path = Path(path)
        self._cluster_id = ""
        self._seq = self._horizon = 0
        self._digest = self._base = b""
        self._closed = False
        self._writing = threading.Lock()
        self._reading = threading.Lock()
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

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def seq(self) -> int:
        return self._seq

    @property
    def horizon(self) -> int:
        return self._horizon

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

    def forget(self, before_ms: int) -> int:
        with self._writing, self._transaction() as db:
            last = db.execute(
                "SELECT last_seq, digest FROM batches WHERE at_ms < ? AND last_seq <= (SELECT min(seq) FROM images)"
                " ORDER BY first_seq DESC LIMIT 1",
                (before_ms,),
            ).fetchone()
            if last is not None:
                _set(db, "base_seq", last[0])
                _set(db, "base_digest", last[1])
                db.execute("DELETE FROM batches WHERE last_seq <= ?", (last[0],))
        if last is not None:
            self._horizon, self._base = int(last[0]), bytes(last[1])
        return self._horizon

    # --- reading ------------------------------------------------------------------------------------------------------

    def batches(self, after: int = 0, *, inputs: bool = True) -> Iterator[Batch]:
        for _, _, digest, record in self._rows(after, PAGE):
            yield decode(record, digest, inputs=inputs)

    def events(self, after: int, limit: int) -> list[Stamped]:
        found: list[Stamped] = []
        for _, _, _, record in self._rows(after, min(PAGE, limit)):
            batch = decode(record, inputs=False)
            stamped = (Stamped(seq, batch.now_ms, event) for seq, event in enumerate(batch.events, batch.first_seq))
            found.extend(each for each in stamped if each.seq > after)
            if len(found) >= limit:
                break
        return found

    def digest_at(self, seq: int) -> bytes:
        if seq == self._horizon:
            return self._base
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
        meta = dict(db.execute("SELECT name, value FROM meta").fetchall())
        if meta.get("schema", 0) > SCHEMA:
            raise JournalError(f"{self.path} has schema {meta['schema']}, made by a newer gangflow; this one reads {SCHEMA}")
        try:
            self._cluster_id = str(meta["cluster_id"])
            self._seq, self._digest = int(meta["head_seq"]), bytes(meta["head_digest"])
            self._horizon, self._base = int(meta["base_seq"]), bytes(meta["base_digest"])
        except (KeyError, TypeError, ValueError) as error:
            raise JournalCorrupt(f"{self.path}: its table of contents is damaged ({error!r})") from error
        last = db.execute("SELECT last_seq, digest FROM batches ORDER BY first_seq DESC LIMIT 1").fetchone()
        end = last or (self._horizon, self._base)
        if end != (self._seq, self._digest):
            raise JournalCorrupt(
                f"{self.path} ends at seq {end[0]}, but {self._seq} was written", seq=min(end[0], self._seq) + 1
            )

    def _rows(self, after: int, page: int) -> Iterator[_Row]:
        """The rows from the batch that holds `after + 1` on; JournalCorrupt at the first that does not continue the chain."""
        after = max(after, self._horizon)
        position: tuple[int, bytes] | None = None
        seen = -1
        while True:
            rows: list[_Row] = self._read(_FROM, (after + 1, page), after + 1)
            if rows and rows[0][0] == seen:
                # The page before was full and there is no other: nothing holds `after + 1`, so its last row was found again.
                return
            for row in rows:
                first, last, digest, record = row
                if position is None:
                    position = (first - 1, self.digest_at(first - 1))
                if first != position[0] + 1 or chain(position[1], record) != digest:
                    bad = min(first, position[0] + 1)
                    raise JournalCorrupt(
                        f"{self.path}: the record at seq {bad} does not continue the chain of digests", seq=bad
                    )
                position = (last, digest)
                if last > after:
                    yield row
            if len(rows) < page:
                return
            seen, after = rows[-1][0], rows[-1][1]

    def _read(self, query: str, values: tuple[int, ...], seq: int) -> list[Any]:
        with self._reading, self._translated(seq):
            return self._reader.execute(query, values).fetchall()

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
