"""The run's shared folder (the claim): checkpoints, weights, metrics, result.

    checkpoints/step-000060-i1.npz     the learner, complete; the group's `checkpoint/head` names the newest
    weights/i1-v000061.npz             the policy as it was published
    metrics.jsonl                      one line per training step
    result.json                        what the run ended with

Names carry the actor's incarnation: two lives of one step never meet in one file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

KEPT_WEIGHTS: Final = 4
"""Versions: a rollout that comes back loads the newest, and may still read the one before."""
KEPT_CHECKPOINTS: Final = 2


class RunFolder:
    """Paths of one run, for one incarnation of its actor."""

    def __init__(self, root: Path, incarnation: int) -> None:
        self.root = root
        self._incarnation = incarnation
        self._checkpoints = root / "checkpoints"
        self._weights = root / "weights"
        self.metrics = root / "metrics.jsonl"
        self.result = root / "result.json"
        for folder in (self._checkpoints, self._weights):
            folder.mkdir(parents=True, exist_ok=True)

    def checkpoint(self, step: int) -> Path:
        """Where this incarnation saves the learner after so many steps."""
        return self._checkpoints / f"step-{step:06}-i{self._incarnation}.npz"

    def weights(self, version: int) -> Path:
        """Where this incarnation publishes that version."""
        return self._weights / f"i{self._incarnation}-v{version:06}.npz"

    def forget_checkpoints(self, head: Path) -> None:
        """Delete all but the newest few checkpoints, and never the head."""
        _keep_newest(self._checkpoints, KEPT_CHECKPOINTS, head)

    def forget_weights(self, head: Path) -> None:
        """Delete all but the newest few versions, and never the head."""
        _keep_newest(self._weights, KEPT_WEIGHTS, head)

    def record(self, entry: dict[str, Any]) -> None:
        """Append one step's numbers. A line that a kill cut short is ended first, so that it spoils no other."""
        with open(self.metrics, "ab+") as out:
            if out.tell() and not _ends_in_newline(self.metrics):
                out.write(b"\n")
            out.write(json.dumps(entry).encode() + b"\n")

    def finish(self, result: dict[str, Any]) -> None:
        """Write the result, completely or not at all."""
        part = self.result.with_name(f".result.{os.getpid()}.part")
        part.write_text(json.dumps(result, indent=2) + "\n")
        os.replace(part, self.result)


def _ends_in_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _keep_newest(folder: Path, count: int, head: Path) -> None:
    files = sorted(folder.glob("[!.]*.npz"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    for path in files[:-count]:
        if path != head:
            for file in folder.glob(f"{path.name}*"):  # its ledger, too
                file.unlink(missing_ok=True)
