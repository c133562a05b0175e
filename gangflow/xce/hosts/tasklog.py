"""A task's stdout and stderr: plain files that it writes itself, kept within a bound by the agent, read by offset.

When a file passes its limit its last part is copied to `<stream>.1` and the file is cut to nothing; the writer appends, so it
goes on at the new beginning. Offsets count from the start of the incarnation for ever: `<stream>.base` says how many bytes
were cut so far.
"""

from __future__ import annotations

import os
from pathlib import Path

from gangflow.xce.hosts.settings import LOG_READ_LIMIT, TAIL_BYTES, TAIL_LINES
from gangflow.xce.hosts.standing import write_atomically
from gangflow.xce.ports import LogChunk

STREAMS = ("stdout", "stderr")


def base_offset(folder: Path, stream: str) -> int:
    """The offset of the first byte of the present file."""
    try:
        return int((folder / f"{stream}.base").read_text())
    except (OSError, ValueError):
        return 0


def rotate(folder: Path, stream: str, limit: int) -> bool:
    """Cut a stream that has grown past `limit` bytes; True if it did. What is written in between is lost, a few lines at
    most."""
    path = folder / stream
    try:
        with path.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= limit:
                return False
            file.seek(size - min(size, limit))
            aside = folder / f".{stream}.1"
            with aside.open("wb") as copy:
                os.chmod(aside, 0o600)
                while copy.tell() < 2 * limit and (part := file.read(1 << 20)):
                    copy.write(part)
            write_atomically(folder / f"{stream}.base", str(base_offset(folder, stream) + file.tell()))
            aside.replace(folder / f"{stream}.1")
            file.truncate(0)
    except FileNotFoundError:
        return False
    return True


def read(folder: Path, stream: str, offset: int, limit: int, *, ended: bool) -> LogChunk:
    """At most `limit` bytes from `offset` (negative: from the end). What was rotated away is skipped. FileNotFoundError if
    there is no such log."""
    if stream not in STREAMS:
        raise FileNotFoundError(f"no stream {stream!r}: stdout or stderr")
    path = folder / stream
    base = base_offset(folder, stream)
    size = path.stat().st_size
    older = folder / f"{stream}.1"
    kept = older.stat().st_size if base and older.exists() else 0
    first, end = base - kept, base + size
    at = min(max(end + offset if offset < 0 else offset, first), end)
    limit = max(1, min(limit, LOG_READ_LIMIT))
    raw = b""
    if at < base:
        with older.open("rb") as file:
            file.seek(at - first)
            raw = file.read(min(limit, base - at))
    if len(raw) < limit and at + len(raw) >= base:
        with path.open("rb") as file:
            file.seek(at + len(raw) - base)
            raw += file.read(limit - len(raw))
    over = ended and at + len(raw) >= end
    if not over:
        raw = raw[: whole_characters(raw)]
    return LogChunk(raw.decode("utf-8", "replace"), at, at + len(raw), over)


def whole_characters(raw: bytes) -> int:
    """The length of `raw` without a character that is cut at its end."""
    for back in range(1, min(4, len(raw)) + 1):
        byte = raw[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(raw) - back if need > back and len(raw) > back else len(raw)
    return len(raw)


def tail(folder: Path, stream: str = "stderr", lines: int = TAIL_LINES) -> str:
    """The last lines of a stream; empty when there are none."""
    try:
        text = read(folder, stream, -TAIL_BYTES, TAIL_BYTES, ended=True).text
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
