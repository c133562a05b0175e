"""Files that others read by path: written atomically, named by their content.

A model has many files, and waiting for a disk or hashing takes most of a publish: files are synced and hashed side by side.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

_AT_ONCE = 8
SEALED_BYTES = 64 << 20
"""Less is read again as fast as it is looked at."""
_TICK_S = 0.02
"""Of file systems' clocks: two changes within it may bear the same time."""
T = TypeVar("T")


def digest(path: str | os.PathLike[str]) -> str:
    """The sha256 of a file, or of a folder. OSError when unreadable.

    A folder's is that of its manifest, as for the claims' provider `model`: a line `<sha256>  <relative path>` for each file,
    sorted by their paths' bytes (docs/claims.md has it as a shell command).
    """
    root = Path(path)
    if not root.is_dir():
        return _of_file(root)
    files = {os.fsencode(file.relative_to(root)): file for file in _files(root)}
    names = sorted(files)
    found = together(_of_file, [files[name] for name in names])
    manifest = b"".join(sha256.encode() + b"  " + name + b"\n" for name, sha256 in zip(names, found, strict=True))
    return hashlib.sha256(manifest).hexdigest()


class Settled(NamedTuple):
    """Files that are on the disk, named."""

    sha256: str
    seal: str
    """By which others see, without reading them, that the files are still those that were hashed. Empty for small ones, and on
    a file system that cannot tell two changes of one second apart."""


def settle(path: str | os.PathLike[str]) -> Settled:
    """`sync_tree`, and meanwhile the digest."""
    root = Path(path)
    sealed = _size(root) >= SEALED_BYTES and _tells_times_apart(root)
    if sealed:
        # What is written from now on has another time than what is hashed now.
        time.sleep(max(0.0, min(_TICK_S, _newest_change_ns(root) / 1e9 + _TICK_S - time.time())))
    before = seal(root) if sealed else ""
    with ThreadPoolExecutor(1, "sync") as beside:
        synced = beside.submit(sync_tree, root)
        found = digest(root)
        synced.result()
    return Settled(found, before if sealed and seal(root) == before else "")


def seal(path: str | os.PathLike[str]) -> str:
    """What files are without their content: names, sizes, inodes, times of the last change, which nobody can set. OSError.

    The same for every host that sees the same file system; where it is not, they are read.
    """
    root = Path(path)
    stats = [(os.fsencode(file.relative_to(root)), file.stat()) for file in _files(root)]
    parts = sorted((name, stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in stats)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """The file is there whole or not at all, also after a crash: written beside, synced, renamed, and the rename synced."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    sync(target.parent)


def sync(path: str | os.PathLike[str]) -> None:
    """Force a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: str | os.PathLike[str]) -> None:
    """Force a file, or a folder with everything in it, to the disk."""
    root = Path(path)
    below = [each for each in root.rglob("*") if each.is_file() or (each.is_dir() and not each.is_symlink())]
    # At the same time: a disk that is told of many files writes its journal once, not once for each.
    together(sync, [*below, root, root.absolute().parent])


def _files(root: Path) -> list[Path]:
    return [file for file in root.rglob("*") if file.is_file()] if root.is_dir() else [root]


def _size(root: Path) -> int:
    return sum(file.stat().st_size for file in _files(root))


def _tells_times_apart(root: Path) -> bool:
    """Old protocols of shared folders and mounted object stores know whole seconds only, or no times of change at all."""
    return any(file.stat().st_ctime_ns % 1_000_000_000 for file in _files(root))


def _newest_change_ns(root: Path) -> int:
    return max(file.stat().st_ctime_ns for file in _files(root))


def _of_file(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def together(work: Callable[[Path], T], paths: Sequence[Path]) -> list[T]:
    """`work` of each file at the same time; what it said, in their order. The first error is raised once all have ended."""
    if len(paths) < 2:
        return [work(path) for path in paths]
    with ThreadPoolExecutor(min(_AT_ONCE, len(paths)), "files") as threads:
        return list(threads.map(work, paths))
