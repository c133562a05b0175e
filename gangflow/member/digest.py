"""Files that others read by path: written atomically, named by their content.

A model has many files, and waiting for a disk or hashing takes most of a publish: files are synced and hashed side by side.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

_AT_ONCE = 8
T = TypeVar("T")


def digest(path: str | os.PathLike[str]) -> str:
    """The sha256 of a file, or of a folder. OSError when unreadable.

    A folder's is that of its manifest, as for the claims' provider `model`: a line `<sha256>  <relative path>` for each file,
    sorted by their paths' bytes (docs/claims.md has it as a shell command).
    """
    root = Path(path)
    if not root.is_dir():
        return _of_file(root)
    files = {os.fsencode(file.relative_to(root)): file for file in root.rglob("*") if file.is_file()}
    names = sorted(files)
    found = _together(_of_file, [files[name] for name in names])
    manifest = b"".join(sha256.encode() + b"  " + name + b"\n" for name, sha256 in zip(names, found, strict=True))
    return hashlib.sha256(manifest).hexdigest()


def synced_digest(path: str | os.PathLike[str]) -> str:
    """`sync_tree`, and meanwhile the digest."""
    with ThreadPoolExecutor(1, "sync") as beside:
        synced = beside.submit(sync_tree, path)
        found = digest(path)
        synced.result()
    return found


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
    _together(sync, [*below, root, root.absolute().parent])


def _of_file(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _together(work: Callable[[Path], T], paths: Sequence[Path]) -> list[T]:
    """`work` of each, in order; the first error is raised once all have ended."""
    if len(paths) < 2:
        return [work(path) for path in paths]
    with ThreadPoolExecutor(min(_AT_ONCE, len(paths)), "files") as threads:
        return list(threads.map(work, paths))
