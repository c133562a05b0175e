"""Files that others read by path: written atomically, named by their content."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

_BLOCK = 1 << 20


def digest(path: str | os.PathLike[str]) -> str:
    """The sha256 of a file, or of a folder (its files' relative names and contents, in order). OSError when unreadable."""
    root = Path(path)
    total = hashlib.sha256()
    if root.is_dir():
        for file in sorted(file for file in root.rglob("*") if file.is_file()):
            total.update(f"{file.relative_to(root).as_posix()}\0{file.stat().st_size}\0".encode())
            _feed(total, file)
    else:
        _feed(total, root)
    return total.hexdigest()


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
    if root.is_dir():
        for below in sorted(root.rglob("*")):
            if below.is_file() or (below.is_dir() and not below.is_symlink()):
                sync(below)
    sync(root)
    sync(root.absolute().parent)


def _feed(total: hashlib._Hash, file: Path) -> None:
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            total.update(block)
