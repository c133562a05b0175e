"""The actor's side of reward model and reference: asked patiently, in portions, spread over replicas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gangflow.errors import GangflowError
from gangflow.recipes.lm.judging import Judges, portions
from gangflow.recipes.services.asking import ServiceFailed
from gangflow.recipes.services.packing import floats


class WrongReward(GangflowError):
    """Replies are scored by another reward model than before: scores of two cannot be compared. A POLICY failure."""

    code = "wrong_reward"
    remedy = "leave the reward model of a run as it is; a new one is a new run"


class RlhfJudges(Judges):
    """Asks the group's `reward` and `ref` members; thread-safe."""

    reward_model = ""
    """The fingerprint of the reward model that scores must come from; empty: not known yet."""

    def about(self) -> dict[str, Any]:
        """What was measured of the reward model, which is from now on the run's. WrongReward when it was another one before."""
        found = self._all("reward", "/about", [{}])[0]
        self._check(found["model"])
        self.reward_model = str(found["model"])
        report: dict[str, Any] = found["report"]
        return report

    def scores(self, prompts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]) -> list[float]:
        """Of each reply. ServiceFailed without an answer in time, or for what is no number. WrongReward for another model's."""
        bodies = [{"sequences": portion} for portion in portions(prompts, replies)]
        found: list[float] = []
        for part in self._all("reward", "/score", bodies):
            self._check(part["model"])
            found += floats(part["scores"])
        if len(found) != len(prompts):
            raise ServiceFailed(f"reward scored {len(found)} replies of {len(prompts)}")
        for number, score in enumerate(found):
            if not math.isfinite(score):  # Cut off like others, it would become the best of all.
                raise ServiceFailed(f"reward scored reply {number} of {len(found)} as {score}: expected a finite number")
        return found

    def _check(self, model: str) -> None:
        if self.reward_model and model != self.reward_model:
            raise WrongReward(f"reward serves the model {model[:12]}, this run's is {self.reward_model[:12]}")
