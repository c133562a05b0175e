"""The checksum of a file or folder, as the `model` provider verifies it: `python -m gangflow.xce.hosts.checksums PATH`.

A file's is its SHA-256. A folder's is the SHA-256 of its manifest: for each file one line `<sha256>  <path>`, with paths
relative to the folder and sorted by their bytes. Links to files count as what they point to; empty folders, times and modes do
not count.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

CHUNK = 1 << 20


class NotCacheable(ValueError):
    """Something in the source is no file: a link to a folder, a socket, a name that no manifest can have."""


@dataclass(frozen=True, slots=True)
class Item:
    """One file of a source."""

    path: str
    """Relative to the source, with `/`; empty: the source itself is the file."""
    size: int


def items(source: Path) -> list[Item]:
    """Every file of a source, in the order of the manifest. Raises NotCacheable or OSError."""
    found = os.stat(source)
    if stat.S_ISREG(found.st_mode):
        return [Item("", found.st_size)]
    if not stat.S_ISDIR(found.st_mode):
        raise NotCacheable(f"{source} is neither a file nor a folder")
    return sorted(_below(str(source), ""), key=lambda item: os.fsencode(item.path))


def _below(root: str, folder: str) -> Iterator[Item]:
    with os.scandir(os.path.join(root, folder)) as entries:
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if "\n" in entry.name or "\\" in entry.name:
                raise NotCacheable(f"{path!r}: a name with a line break or a backslash cannot stand in a manifest")
            if entry.is_dir(follow_symlinks=False):
                yield from _below(root, path)
            elif entry.is_file():
                yield Item(path, entry.stat().st_size)
            else:
                what = "a link to a folder, or to nothing" if entry.is_symlink() else "no file"
                raise NotCacheable(f"{path!r} is {what}")


def read_file(path: Path, take: Callable[[bytes], object] = lambda chunk: None) -> str:
    """The SHA-256 of a file; each piece of it is handed to `take` as it is read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            take(chunk)
    return digest.hexdigest()


def combined(sums: Iterable[tuple[Item, str]]) -> str:
    """The checksum of a source whose files have these, in the order of `items`."""
    manifest = hashlib.sha256()
    for item, sha256 in sums:
        if not item.path:
            return sha256
        manifest.update(sha256.encode() + b"  " + os.fsencode(item.path) + b"\n")
    return manifest.hexdigest()


def checksum(source: str | os.PathLike[str]) -> str:
    """The checksum of a file or folder: 64 hexadecimal digits. Raises NotCacheable or OSError."""
    root = Path(source)
    return combined((item, read_file(root / item.path if item.path else root)) for item in items(root))


def main(arguments: list[str]) -> int:
    """Print the checksums of files and folders, as sha256sum does; the exit code."""
    if not arguments or any(argument.startswith("-") for argument in arguments):
        sys.stderr.write("usage: python -m gangflow.xce.hosts.checksums PATH…\n")
        return 2
    for argument in arguments:
        try:
            sys.stdout.write(f"{checksum(argument)}  {argument}\n")
        except (OSError, NotCacheable) as error:
            sys.stderr.write(f"{argument}: {error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
