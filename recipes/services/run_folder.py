"""A run's shared folder (the claim): checkpoints, weights, metrics, result.

    checkpoints/step-000060-i1…        the learner, complete; the group's `checkpoint/head` names the newest
    weights/i1-v000061…                the policy as it was published
    metrics.jsonl                      one line per training step
    result.json                        what the run ended with

A checkpoint or a version is a file (with the suffix that the recipe gives) or a folder. Names carry the actor's incarnation:
two lives of one step never meet. Names that begin with a dot are not finished yet.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, Final

KEPT_WEIGHTS: Final = 4
"""Versions: a rollout that comes back loads the newest, and may still read the one before."""
KEPT_CHECKPOINTS: Final = 2
LEDGER: Final = ".ledger.json"
"""What `context.checkpoint` adds to the name of a checkpoint for its ledger."""


class RunFolder:
    """Paths of one run, for one incarnation of its actor."""

    def __init__(
        self,
        root: Path,
        incarnation: int,
        *,
        suffix: str = "",
        kept_weights: int = KEPT_WEIGHTS,
        kept_checkpoints: int = KEPT_CHECKPOINTS,
    ) -> None:
        """What earlier incarnations left unfinished is removed: there is one actor at a time."""
        self.root = root
        self._incarnation = incarnation
        self._suffix = suffix
        self._kept = (kept_weights, kept_checkpoints)
        self._checkpoints = root / "checkpoints"
        self._weights = root / "weights"
        self.metrics = root / "metrics.jsonl"
        self.result = root / "result.json"
        for folder in (self._checkpoints, self._weights):
            folder.mkdir(parents=True, exist_ok=True)
            for unfinished in folder.glob(".*"):
                _remove(unfinished)

    def checkpoint(self, step: int) -> Path:
        """Where this incarnation saves the learner after so many steps."""
        return self._checkpoints / f"step-{step:06}-i{self._incarnation}{self._suffix}"

    def weights(self, version: int) -> Path:
        """Where this incarnation publishes that version."""
        return self._weights / f"i{self._incarnation}-v{version:06}{self._suffix}"

    def forget_checkpoints(self, head: Path) -> None:
        """Delete all but the newest few checkpoints, and never the head."""
        self._keep_newest(self._checkpoints, self._kept[1], head)

    def forget_weights(self, head: Path) -> None:
        """Delete all but the newest few versions, and never the head."""
        self._keep_newest(self._weights, self._kept[0], head)

    def free(self, checkpoint: Path | None, weights: Path | None) -> None:
        """The disk is full: delete every checkpoint and version but these, which others may still have to read."""
        for folder, head in ((self._checkpoints, checkpoint), (self._weights, weights)):
            self._keep_newest(folder, 0, head)

    def record(self, entry: dict[str, Any]) -> None:
        """Append one step's numbers. A line that a kill cut short is ended first, so that it spoils no other."""
        with open(self.metrics, "ab+") as out:
            if out.tell() and not _ends_in_newline(self.metrics):
                out.write(b"\n")
            out.write(json.dumps(entry).encode() + b"\n")

    def recorded(self, step: int) -> dict[str, Any] | None:
        """The numbers of a step as they were recorded last, whichever life of the actor did; None when there are none."""
        if not self.metrics.exists():
            return None
        for line in reversed(self.metrics.read_bytes().splitlines()):
            try:
                entry: dict[str, Any] = json.loads(line)
            except ValueError:  # A kill cut it short.
                continue
            if entry["step"] == step:
                return entry
        return None

    def finish(self, result: dict[str, Any]) -> None:
        """Write the result, completely or not at all."""
        part = self.result.with_name(f".result.{os.getpid()}.part")
        part.write_text(json.dumps(result, indent=2) + "\n")
        os.replace(part, self.result)

    def _keep_newest(self, folder: Path, count: int, head: Path | None) -> None:
        there = (path for path in folder.glob(f"[!.]*{self._suffix}") if not path.name.endswith(LEDGER))
        paths = sorted(there, key=lambda path: (path.stat().st_mtime_ns, path.name))
        for path in paths[: max(0, len(paths) - count)]:
            if path != head:
                _remove(path)
                _remove(path.with_name(f"{path.name}{LEDGER}"))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _ends_in_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
