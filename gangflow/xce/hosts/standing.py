"""Whom an agent obeys: (cluster_id, term, seq), the highest that it has seen, on disk.

Another cluster, an older term or a lower sequence number means that the journal behind the caller is not the one that started
what runs here. The agent then refuses and its members run on; an operator decides (design 3.8).
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Standing:
    """A position in a cluster's journal; empty before the first controller came."""

    cluster_id: str = ""
    term: int = 0
    seq: int = 0

    def objection(self, cluster_id: str, term: int, seq: int) -> str:
        """Why a caller with this journal position is refused; empty if it is not."""
        if not self.cluster_id:
            return ""
        if cluster_id != self.cluster_id:
            return f"this agent serves cluster {self.cluster_id}, not {cluster_id}: another journal than the one it knows"
        if term < self.term:
            return f"term {term} is older than {self.term}, which this agent has seen"
        if seq < self.seq:
            return f"the journal ends at {seq}, but this agent has seen {self.seq}: it is an older copy"
        return ""


class StandingFile:
    """A `Standing` that survives the agent."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.value = Standing()
        if path.exists():
            data = json.loads(path.read_text())
            self.value = Standing(str(data["cluster_id"]), int(data["term"]), int(data["seq"]))

    def advance(self, cluster_id: str, term: int, seq: int) -> None:
        """Remember a position that was not objected to; on disk before this returns, if it is a new one."""
        value = Standing(cluster_id, term, max(seq, self.value.seq))
        if value != self.value:
            # A new term is rare and worth the wait for the disk; a lost seq only weakens the check after a power cut.
            write_atomically(self._path, json.dumps(asdict(value)), sync=term != self.value.term)
            self.value = value


def write_atomically(path: Path, text: str, *, sync: bool = False) -> None:
    """Replace a small file in one step, readable by its owner only; `sync` waits for the disk (power loss, not crashes)."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        left = memoryview(text.encode())
        while left:  # a disk that is just filling up takes a part: the next call says that it is full
            left = left[os.write(fd, left) :]
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    aside.replace(path)
