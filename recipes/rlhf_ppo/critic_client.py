"""The actor's side of the critic: asked for one step after the other, and brought to that step whenever it is elsewhere.

A critic that was restarted has forgotten everything since the last checkpoint. The actor has not: it keeps the requests of the
updates since then, and has them done again. They are the same updates, so the critic is what it was; that it is so is checked
by their reports (`differing`).
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gangflow.errors import GangflowError
from gangflow.recipes.lm import wire
from gangflow.recipes.services.asking import Asking
from gangflow.recipes.services.packing import floats, pack_floats

MEMBER: Final = "critic"
ATTEMPTS: Final = 5
"""To bring a critic to a step; each one is a critic that was restarted once more."""
ALIKE: Final = 1e-3
"""A repeated update's loss may differ so much, relatively: on GPUs sums are not always added up in the same order."""


class CriticFailed(GangflowError):
    """The critic cannot do its update, or was lost again and again while it was brought to its step."""

    code = "critic_failed"


class CriticClient:
    """One actor's; not for several threads at once."""

    def __init__(self, asking: Asking, actor: int) -> None:
        """`actor`: which incarnation of it asks."""
        self._asking = asking
        self._actor = actor
        self._base: tuple[int, str | None] = (0, None)
        """(step, folder) of the newest checkpoint."""
        self._since: list[tuple[Mapping[str, Any], float]] = []
        """The requests of the updates since then, each with the loss that was reported."""
        self.brought = 0
        """How often it was brought to the actor's step because it was elsewhere."""
        self.differing = 0
        """Repeated updates whose loss was another one."""

    def begin(self, step: int, checkpoint: Path | None) -> None:
        """Have the critic at that step, from the checkpoint (a folder that it wrote), or anew."""
        self._base, self._since = (step, str(checkpoint) if checkpoint else None), []
        for _ in range(ATTEMPTS):
            if self._begun():
                return
        raise CriticFailed(f"the critic did not begin at step {step}")

    def values(self, step: int, prompts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]) -> list[list[float]]:
        """The value of each reply's tokens, before the update of that step."""
        asked = {"step": step, "sequences": wire.sequences(prompts, replies)}
        flat = floats(self._ask("/values", asked, "values")["values"])
        return wire.by_answer(flat, replies, MEMBER)

    def train(
        self,
        step: int,
        prompts: Sequence[Sequence[int]],
        replies: Sequence[Sequence[int]],
        values: Sequence[float],
        returns: Sequence[float],
    ) -> dict[str, float]:
        """The update of that step; its report. `values` and `returns`: one for each token, reply after reply."""
        asked = {
            "step": step,
            "sequences": wire.sequences(prompts, replies),
            "values": pack_floats(values),
            "returns": pack_floats(returns),
        }
        report: dict[str, float] = self._ask("/train", asked, "report")["report"]
        self._since.append((asked, float(report["loss"])))
        return report

    def save(self, step: int, folder: Path) -> None:
        """Have its state of that step written there. OSError when there is no room."""
        answer = self._ask("/save", {"step": step, "folder": str(folder)}, "at")
        if "full" in answer:
            raise OSError(errno.ENOSPC, f"the critic has no room: {answer['full']}")

    def saved(self, step: int, folder: Path) -> None:
        """That checkpoint counts: what was before it need not be remembered any more."""
        self._base, self._since = (step, str(folder)), []

    # --- bringing it to its step

    def _ask(self, path: str, asked: Mapping[str, Any], wanted: str) -> dict[str, Any]:
        """The answer to a request for a step, which has the key that is wanted."""
        for attempt in range(ATTEMPTS):
            if attempt:
                self.brought += 1
                if not self._caught_up():
                    continue
            answer = self._post(path, asked)
            if "full" in answer or (wanted in answer and (wanted != "at" or answer["at"] == asked["step"])):
                return answer
        raise CriticFailed(f"the critic could not be brought to step {asked['step']} in {ATTEMPTS} attempts")

    def _begun(self) -> bool:
        step, checkpoint = self._base
        return self._post("/begin", {"step": step, "checkpoint": checkpoint}).get("at") == step

    def _caught_up(self) -> bool:
        """From the checkpoint through all updates since; False when it was lost on the way."""
        if not self._begun():
            return False
        for asked, loss in self._since:
            answer = self._post("/train", asked)
            if "report" not in answer:
                return False
            again = float(answer["report"]["loss"])
            self.differing += abs(again - loss) > ALIKE * max(abs(loss), ALIKE)
        return True

    def _post(self, path: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._asking.ask(MEMBER, path, {**asked, "actor": self._actor})
        if "broken" in answer:
            raise CriticFailed(str(answer["broken"]))
        return answer
