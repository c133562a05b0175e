"""The actor's side of the reward and reference servers: asked patiently (see `services.asking`), and checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gangflow.errors import GangflowError
from gangflow.recipes.grpo.policy import Floats
from gangflow.recipes.grpo.task import ANSWER_DIGITS, Digits
from gangflow.recipes.grpo.wire import pack, unpack
from gangflow.recipes.services.asking import Asking, ServiceFailed


class WrongReference(GangflowError):
    """The reference server holds another policy than this run's first: a POLICY failure."""

    code = "wrong_reference"
    remedy = "start actor and ref with the same seed"


class Judges:
    """Asks the group's `reward` and `ref` members."""

    def __init__(
        self,
        endpoints: Callable[[str], Sequence[str]],
        *,
        reference: str,
        patience_s: float,
        waiting: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`endpoints`, `patience_s` and `waiting`: see `Asking`; `reference` is the fingerprint that ref's policy must have."""
        self._reference = reference
        self._asking = Asking(endpoints, patience_s=patience_s, waiting=waiting)

    @property
    def repeated(self) -> int:
        """Requests that had to be asked again."""
        return self._asking.repeated

    def close(self) -> None:
        self._asking.close()

    def rewards(self, prompts: Digits, answers: Digits) -> Floats:
        """The reward (n,) of each answer. ServiceFailed when nobody answers in time."""
        found = self._asking.ask("reward", "/score", {"prompts": pack(prompts), "answers": pack(answers)})
        return _of_length(unpack(found["rewards"], np.float32), len(prompts), "reward")

    def reference(self, prompts: Digits, answers: Digits) -> Floats:
        """Log-probabilities (n, 3) under the frozen first policy. WrongReference when ref holds another one."""
        found = self._asking.ask("ref", "/logprobs", {"prompts": pack(prompts), "answers": pack(answers)})
        if found["policy"] != self._reference:
            raise WrongReference(f"ref serves the policy {found['policy'][:12]}, this run's is {self._reference[:12]}")
        return _of_length(unpack(found["logprobs"], np.float32, ANSWER_DIGITS), len(prompts), "ref")


def _of_length(found: Floats, count: int, member: str) -> Floats:
    if len(found) != count:
        raise ServiceFailed(f"{member} judged {len(found)} answers of {count}")
    return found
