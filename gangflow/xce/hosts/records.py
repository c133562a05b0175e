"""What outlives an agent about its tasks: one small file in the task's folder, from the start until its exit is acknowledged.

With it, an agent that starts again reports how each task ended: as it ended, or as lost with the agent that watched it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gangflow.xce.core.inputs import TaskExited
from gangflow.xce.core.state import TaskKey
from gangflow.xce.hosts.standing import write_atomically

_NAME = "task.json"


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a task on disk."""

    task: TaskKey
    host: str
    pid: int
    exit: TaskExited | None = None
    """None while it runs."""
    cleanup: tuple[str, ...] = ()
    """What removes its container: if this agent dies, the next one has to."""


def write(folder: Path, record: Record) -> None:
    """Not synchronised: this is for a crash of the agent. After one of the machine no task is left to tell of."""
    write_atomically(folder / _NAME, msgspec.json.encode(record).decode())


def forget(folder: Path) -> None:
    """The exit was acknowledged: only the logs stay."""
    (folder / _NAME).unlink(missing_ok=True)


def left_behind(root: Path) -> Iterator[tuple[Path, Record]]:
    """The records of a former life. A damaged one is skipped: the inventory then tells the controller that the task is gone."""
    for path in sorted(root.glob(f"*/*/*/*/{_NAME}")):
        try:
            yield path.parent, msgspec.json.decode(path.read_bytes(), type=Record)
        except (OSError, msgspec.DecodeError):
            continue


class Retention:
    """Removes the folders of ended tasks, oldest first, beyond a number and a size."""

    def __init__(self, root: Path, keep_folders: int, keep_bytes: int) -> None:
        self._root = root
        self._keep_folders = keep_folders
        self._keep_bytes = keep_bytes

    def sweep(self, in_use: frozenset[Path]) -> int:
        """Remove what is too much; the number of folders removed. `in_use` and what is not acknowledged stays."""
        ended: list[tuple[int, int, Path]] = []
        for folder in self._root.glob("*/*/*/*"):
            if folder in in_use or (folder / _NAME).exists():
                continue
            try:
                entries = [entry.stat() for entry in folder.iterdir()]
                ended.append((folder.stat().st_mtime_ns, sum(entry.st_blocks * 512 for entry in entries), folder))
            except OSError:
                continue
        ended.sort(reverse=True)
        removed = total = 0
        for position, (_, size, folder) in enumerate(ended):
            total += size
            if position >= self._keep_folders or total > self._keep_bytes:
                shutil.rmtree(folder, ignore_errors=True)
                removed += 1
                for parent in list(folder.parents)[:3]:
                    try:
                        os.rmdir(parent)
                    except OSError:
                        break
        return removed
