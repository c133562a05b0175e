"""What the trainer leaves for others in the run's folder: checkpoints, and weights for the engines.

Nothing half-written is ever published: folders get their name when they are whole, and are announced after that. When there is
no room, old checkpoints and versions go first; then the trainer waits, saying so, until its patience is over (DiskFull).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from gangflow.channel import Probe, WeightsId
from gangflow.member.context import Context
from gangflow.recipes.lm.ranks import Team
from gangflow.recipes.services.disk import with_room
from gangflow.recipes.services.run_folder import RunFolder

T = TypeVar("T")

PROBED: Final = 48
"""Tokens of a probe at most."""


class Trained(Protocol):
    """What is trained, by all ranks together."""

    @property
    def step(self) -> int:
        """Steps done: the version of the policy."""

    def probe(self, tokens: Sequence[int]) -> Probe: ...

    def export(self, folder: Path, tokenizer: Any = None) -> None: ...

    def save(self, folder: Path) -> None: ...


class Publisher:
    """The leader's."""

    def __init__(
        self,
        context: Context,
        folder: RunFolder,
        team: Team,
        trained: Trained,
        *,
        tokenizer: Any,
        probed: Sequence[int],
        patience_s: float,
    ) -> None:
        """`probed`: a text of the task, as tokens, of which each version's probe is made."""
        self._context = context
        self._folder = folder
        self._team = team
        self._trained = trained
        self._tokenizer = tokenizer
        self._probed = list(probed)
        self._patience_s = patience_s
        self._weights: Path | None = None
        self._checkpoint: Path | None = None

    def resumed(self, checkpoint: Path) -> None:
        """From this checkpoint: it is the newest until the next one is saved."""
        self._checkpoint = checkpoint

    def checkpoint(self) -> None:
        """Save everything that was trained, and make it the group's newest checkpoint."""
        step = self._trained.step
        path = self._folder.checkpoint(step)

        def write() -> None:
            _forget(path)  # of an attempt for which there was no room
            self._team.all(self._trained, "save", path)
            self._context.checkpoint(step - 1, path)

        self._with_room(f"checkpoint after step {step}", write)
        self._checkpoint = path
        self._folder.forget_checkpoints(path)

    def publish(self) -> WeightsId:
        """Give the policy to the engines, as the version of the steps that were done."""
        version = self._trained.step
        path = self._folder.weights(version)
        probe = self._team.all(self._trained, "probe", self._probed)

        def write() -> WeightsId:
            _forget(path)
            self._team.all(self._trained, "export", path, self._tokenizer)
            return self._context.weights.publish(version, path, probe=probe)

        found = self._with_room(f"weights of version {version}", write)
        self._weights = path
        self._folder.forget_weights(path)
        return found

    def _with_room(self, what: str, write: Callable[[], T]) -> T:
        return with_room(
            what,
            write,
            free=lambda: self._folder.free(self._checkpoint, self._weights),
            waiting=lambda reason: self._context.heartbeat(waiting=reason[:200]),
            patience_s=self._patience_s,
        )


def probe_text(prompts: Iterable[Sequence[int]], max_model_len: int) -> list[int]:
    """A text of the task, as tokens: prompts one after the other, no more than an engine can say something of."""
    limit = min(PROBED, max_model_len - 1)  # To score a text, an engine makes one token more.
    found: list[int] = []
    for prompt in prompts:
        if len(found) < limit:
            found += prompt
    return found[:limit]


def _forget(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
