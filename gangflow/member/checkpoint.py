"""`context.checkpoint` and `context.resume`: a checkpoint exists once its compare-and-set succeeded, with its ledger."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gangflow.channel import CHECKPOINT, WeightsId
from gangflow.member.digest import digest, settle, write_atomically
from gangflow.member.failures import CheckpointDamaged
from gangflow.member.ledger import Ledger
from gangflow.member.weights import Cell, Values


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The newest durable state of the trainer."""

    step: int
    """The last step that is in it: go on with the next."""
    path: str
    sha256: str
    incarnation: int
    """Of the actor that saved it."""
    weights: WeightsId | None
    """What was published last when it was saved. Publish again after `resume`: that id belongs to another incarnation."""
    ledger: str
    """The file of its ledger."""
    ledger_sha256: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    def render(self) -> str:
        document = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({**document, "weights": self.weights.document() if self.weights else None, "extra": dict(self.extra)})

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """ValueError when it is not one."""
        try:
            document = json.loads(text)
            weights = WeightsId.parse(document.pop("weights")) if document.get("weights") else document.pop("weights", None)
            return cls(weights=weights, **document)
        except (TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"{CHECKPOINT} is not a checkpoint: {text[:200]}") from error


class Checkpoints:
    """One writer per incarnation of the actor."""

    def __init__(self, values: Values, group: str, incarnation: int) -> None:
        self._incarnation = incarnation
        self._lock = threading.Lock()
        self.cell = Cell(values, group, CHECKPOINT, self._newer)

    def save(
        self, step: int, path: str | os.PathLike[str], ledger: Ledger, weights: WeightsId | None, extra: Mapping[str, Any]
    ) -> Checkpoint:
        """Sync the files, write the ledger beside, then make it the newest. A crash before the end leaves the one before."""
        with self._lock:
            saved = self.written(step, path, ledger, weights, extra)
            self.cell.write(saved.render())
            return saved

    def newest(self) -> tuple[Checkpoint, Ledger] | None:
        """None when none was ever saved; CheckpointDamaged when its files are not what was saved."""
        text = self.cell.read()
        return None if text is None else self.verified(text)

    # --- the steps of both; the asynchronous form takes the same

    def written(
        self, step: int, path: str | os.PathLike[str], ledger: Ledger, weights: WeightsId | None, extra: Mapping[str, Any]
    ) -> Checkpoint:
        """Put the files and the ledger on the disk; what is to be made the newest."""
        sha256 = settle(path).sha256
        ledger_path = f"{os.path.abspath(path)}.ledger.json"
        write_atomically(ledger_path, ledger.render().encode())
        return Checkpoint(
            step, os.path.abspath(path), sha256, self._incarnation, weights, ledger_path, digest(ledger_path), extra
        )

    def verified(self, text: str) -> tuple[Checkpoint, Ledger]:
        """The checkpoint that this text names, with its ledger; CheckpointDamaged when its files are not what was saved."""
        saved = Checkpoint.parse(text)
        for path, sha256 in ((saved.path, saved.sha256), (saved.ledger, saved.ledger_sha256)):
            try:
                found = digest(path)
            except OSError as error:
                raise CheckpointDamaged(f"step {saved.step}: {path} cannot be read: {error}") from error
            if found != sha256:
                raise CheckpointDamaged(f"step {saved.step}: {path} has sha256 {found[:12]}, saved was {sha256[:12]}")
        with open(saved.ledger, encoding="utf-8") as file:
            return saved, Ledger.parse(file.read())

    def _newer(self, text: str) -> bool:
        try:
            return Checkpoint.parse(text).incarnation > self._incarnation
        except ValueError:
            return False
