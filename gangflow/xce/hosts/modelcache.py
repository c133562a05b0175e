"""A node's cache of models on disk: content by checksum, whole or not there, pinned by claims, evicted by size.

`entries/<sha256>/` has what is whole: `content` (a file or folder, not writable), `as/<name>` (a link to it by its source's
name: some programs look at endings), `meta.json` and `used`. `pins/<sha256>/` has a file for each claim that wants it, renewed
now and then; `making/` what is being made, each under a lock of its own. Several agents, of several clusters of one user, may
share one cache: everything that is decided is decided under `lock`, and copying is not.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from gangflow.xce.hosts.checksums import Item, NotCacheable, combined, items, read_file

PIN_S = 86_400.0
"""A pin that nobody renewed for so long is none: its controller, or the release of its claim, never reached this node again."""
BUSY_S = 0.2
"""Between two looks at a model that another agent is making."""
MIB = 1 << 20


class CacheError(Exception):
    """A model could not be made, and why."""


class Abandoned(Exception):
    """Nobody wants it any more."""


@dataclass
class Progress:
    """How far a copy is; whoever watches it may end it."""

    done: int = 0
    total: int = 0
    ended: bool = False

    def add(self, count: int) -> None:
        """So many bytes more. Raises Abandoned when it was ended."""
        self.done += count
        if self.ended:
            raise Abandoned


class ModelCache:
    """One cache. Every method may wait for the disk: not for the event loop."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self._root = root
        self._clock = clock

    # --- what is there ------------------------------------------------------------------------------------------------

    def pin(self, sha256: str, pin: str, name: str) -> str:
        """Pin a model, and its path if it is there and whole: it is not evicted from here on. Empty: it has to be made."""
        self._root.mkdir(parents=True, exist_ok=True, mode=0o755)
        with self._locked():
            self._renew(self._root / "pins" / sha256 / quote(pin, safe=""))
            entry = self._entry(sha256)
            if not entry.is_dir():
                return ""
            if _damage(entry):
                self._aside(entry)
                return ""
            self._renew(entry / "used")
            link = entry / "as" / name
            with contextlib.suppress(FileExistsError):
                link.symlink_to("../content")
            return str(link)

    def drop(self, pin: str) -> None:
        """A claim's pins go."""
        for found in self._pins(pin):
            found.unlink(missing_ok=True)

    def check(self, pin: str) -> str:
        """What is wrong with what a claim has pinned; empty: nothing. Renews its pin."""
        found = self._pins(pin)
        if not found:
            return "nothing is pinned for it"
        for each in found:
            entry = self._entry(each.parent.name)
            if not entry.is_dir():
                return f"{entry} is not there any more"
            if wrong := _damage(entry):
                return wrong
            self._renew(each)
        return ""

    def unlike(self, sha256: str, source: Path) -> str:
        """How a source is not what is kept under its checksum, by kind, names and sizes.

        Empty: it is like it, or cannot be read any more; then the checksum alone says what is meant. Reads no content.
        """
        try:
            there = {item.path: item.size for item in items(source)}
            noted = json.loads((self._entry(sha256) / "meta.json").read_text())["files"]
        except NotCacheable as error:
            return f"{source}: {error}"
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        kept = {path: size for path, size, _ in noted}
        if ("" in there) != ("" in kept):
            what = ("a folder", "a file")
            return f"{source} is {what['' in there]}, and {sha256} is the checksum of {what['' in kept]} that is cached"
        for path in sorted({*there, *kept}, key=os.fsencode):
            if there.get(path) != kept.get(path):
                sizes = [f"{size} bytes" if size is not None else "not there" for size in (there.get(path), kept.get(path))]
                return f"{source / path}: {sizes[0]}, in what is cached under the checksum {sha256} {sizes[1]}"
        return ""

    def sizes(self) -> dict[str, int]:
        """Checksum → bytes of everything that is there."""
        return {entry.name: _bytes(entry) for entry in self._entries()}

    # --- making -------------------------------------------------------------------------------------------------------

    def make(self, source: Path, sha256: str, limit: int, most: int, progress: Progress) -> None:
        """Copy a source into the cache, verified before it appears. If another agent is at it, or was, that one's is taken.

        Args:
            limit: bytes that the cache may hold in all.
            most: bytes that the source may have; 0: any number.

        Raises:
            CacheError: the source is not as it should be, or there is no room.
            Abandoned: `progress` was ended.
        """
        making = self._root / "making"
        making.mkdir(parents=True, exist_ok=True)
        with _own(making / f"{sha256}.lock", progress):
            if self._entry(sha256).is_dir():
                return
            aside = making / sha256
            _remove(aside)
            try:
                self._copy(source, sha256, limit, most, progress, aside)
            except NotCacheable as error:
                raise CacheError(f"{source}: {error}") from error
            except OSError as error:
                raise CacheError(f"{error.filename or source}: {error.strerror or error}") from error
            finally:
                _remove(aside)
                (making / f"{sha256}.size").unlink(missing_ok=True)

    def _copy(self, source: Path, sha256: str, limit: int, most: int, progress: Progress, aside: Path) -> None:
        files = items(source)
        progress.total = sum(item.size for item in files)
        if most and progress.total > most:
            raise CacheError(f"{source} has {_mib(progress.total)}, more than its `size`, {_mib(most)}")
        self._reserve(sha256, progress.total, limit)
        content = aside / "content"
        sums = [(item, _copy_file(source, content, item, progress)) for item in files]
        found = combined(sums)
        if found != sha256:
            raise CacheError(f"{source} has the checksum {found}, not {sha256}")
        if not files:
            content.mkdir(parents=True)
        if content.is_dir():
            for folder, _, _ in os.walk(content, topdown=False):
                os.chmod(folder, 0o555)  # noqa: S103 — for reading only
                _sync(Path(folder))
        (aside / "as").mkdir()
        seen = [(item.path, *_stamp(content / item.path if item.path else content)) for item in files]
        (aside / "meta.json").write_text(json.dumps({"bytes": progress.total, "files": seen}))
        self._renew(aside / "used")
        _sync(aside / "meta.json")
        _sync(aside)
        with self._locked():
            entry = self._entry(sha256)
            entry.parent.mkdir(exist_ok=True)
            aside.rename(entry)
            _sync(entry.parent)

    # --- room ---------------------------------------------------------------------------------------------------------

    def _reserve(self, sha256: str, size: int, limit: int) -> None:
        """Room for a model that is about to be made: what nobody pins goes, least recently used first."""
        if size > limit:
            raise CacheError(f"it has {_mib(size)}, and the cache holds {_mib(limit)} at most")
        with self._locked():
            self._tidy()
            held = {entry: _bytes(entry) for entry in self._entries()}
            coming = sum(_reserved(note) for note in (self._root / "making").glob("*.size") if note.stem != sha256)
            unpinned = sorted((entry for entry in held if not self._pinned(entry.name)), key=_last_used)
            while sum(held.values()) + coming + size > limit:
                if not unpinned:
                    pinned = _mib(sum(held.values()) + coming)
                    raise CacheError(
                        f"no room for {_mib(size)}: the cache holds {_mib(limit)} at most, of which {pinned} are in use"
                    )
                oldest = unpinned.pop(0)
                del held[oldest]
                self._aside(oldest)
            (self._root / "making" / f"{sha256}.size").write_text(str(size))

    def _tidy(self) -> None:
        """Remove what agents that died in the middle of it left behind."""
        for left in _listed(self._root / "making"):
            if left.name.startswith("trash-"):
                _remove(left)
            elif left.is_dir() and (lock := _taken(left.with_name(f"{left.name}.lock"))) is not None:
                _remove(left)
                os.close(lock)

    def _pinned(self, sha256: str) -> bool:
        """Whether anybody wants it. Pins that nobody renewed are removed."""
        found = False
        for pin in _listed(self._root / "pins" / sha256):
            if self._clock() - pin.stat().st_mtime > PIN_S:
                pin.unlink(missing_ok=True)
            else:
                found = True
        return found

    def _aside(self, entry: Path) -> None:
        """Take an entry away, at once for everybody; whoever has its files open keeps them."""
        trash = self._root / "making" / f"trash-{secrets.token_hex(4)}"
        trash.parent.mkdir(exist_ok=True)
        entry.rename(trash)
        _remove(trash)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _entry(self, sha256: str) -> Path:
        return self._root / "entries" / sha256

    def _entries(self) -> list[Path]:
        return _listed(self._root / "entries")

    def _pins(self, pin: str) -> list[Path]:
        name = quote(pin, safe="")
        return [folder / name for folder in _listed(self._root / "pins") if (folder / name).exists()]

    def _renew(self, note: Path) -> None:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()
        os.utime(note, (self._clock(), self._clock()))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


@contextlib.contextmanager
def _own(path: Path, progress: Progress) -> Iterator[None]:
    """The only one who makes a model: waits for whoever is at it, as long as somebody wants it."""
    while (lock := _taken(path)) is None:
        progress.add(0)
        time.sleep(BUSY_S)
    try:
        yield
    finally:
        os.close(lock)


def _copy_file(source: Path, content: Path, item: Item, progress: Progress) -> str:
    """Copy one file; its checksum, of what was read and written."""
    target = content / item.path if item.path else content
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as copy:

        def take(chunk: bytes) -> None:
            copy.write(chunk)
            progress.add(len(chunk))

        sha256 = read_file(source / item.path if item.path else source, take)
        copy.flush()
        os.fchmod(copy.fileno(), 0o444)
        os.fsync(copy.fileno())
    return sha256


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _damage(entry: Path) -> str:
    """What of an entry is not as it was made: by sizes and times, since reading all of it would take minutes."""
    try:
        for path, size, mtime_ns in json.loads((entry / "meta.json").read_text())["files"]:
            file = entry / "content" / path if path else entry / "content"
            if _stamp(file) != (size, mtime_ns):
                return f"{file} was changed"
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (ValueError, KeyError, TypeError):
        return f"{entry}/meta.json is damaged"
    return ""


def _bytes(entry: Path) -> int:
    try:
        return int(json.loads((entry / "meta.json").read_text())["bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _taken(path: Path) -> int | None:
    """A lock, as a descriptor to close; None when somebody has it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _reserved(note: Path) -> int:
    """What a model that is being made will take; 0 if nobody is at it any more."""
    lock = _taken(note.with_suffix(".lock"))
    if lock is not None:
        os.close(lock)
        return 0
    try:
        return int(note.read_text() or 0)
    except FileNotFoundError:
        return 0


def _last_used(entry: Path) -> float:
    try:
        return (entry / "used").stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _remove(path: Path) -> None:
    """Remove what we made, although it is not writable."""
    if not path.exists():
        return
    for folder, _, _ in os.walk(path):
        os.chmod(folder, stat.S_IRWXU)
    shutil.rmtree(path)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _mib(size: int) -> str:
    return f"{-(-size // MIB)} MiB"
