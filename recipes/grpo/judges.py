"""The actor's side of the reward and reference servers.

A server that does not answer is asked again, wherever it is by then, until `patience_s` is over: a failure to judge is never
a reward of 0. An answer that says that the request was wrong, or another reference than the actor's own, is not asked again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import httpx
import numpy as np

from gangflow.errors import GangflowError
from gangflow.recipes.grpo.policy import Floats
from gangflow.recipes.grpo.task import ANSWER_DIGITS, Digits
from gangflow.recipes.grpo.wire import pack, unpack

REQUEST_TIMEOUT_S: Final = 5.0
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0


class JudgeFailed(GangflowError):
    """A reward or reference server did not answer for too long, or refused what it was asked."""

    code = "judge_failed"


class WrongReference(GangflowError):
    """The reference server holds another policy than this run's first: a POLICY failure."""

    code = "wrong_reference"
    remedy = "start actor and ref with the same seed"


class Judges:
    """Asks the group's `reward` and `ref` members over kept-open connections."""

    def __init__(
        self,
        endpoints: Callable[[str], Sequence[str]],
        *,
        reference: str,
        patience_s: float,
        waiting: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`endpoints` gives a member's URLs as they are now; `reference` is the fingerprint that ref's policy must have.

        `waiting` is called before each further attempt, with the reason: the actor tells its coordinator that it lives.
        """
        self._endpoints = endpoints
        self._reference = reference
        self._patience_s = patience_s
        self._waiting = waiting
        self._http = httpx.Client(timeout=REQUEST_TIMEOUT_S, trust_env=False)
        self.repeated = 0
        """Requests that had to be asked again."""

    def close(self) -> None:
        self._http.close()

    def rewards(self, prompts: Digits, answers: Digits) -> Floats:
        """The reward (n,) of each answer. JudgeFailed when nobody answers in time."""
        found = self._ask("reward", "/score", {"prompts": pack(prompts), "answers": pack(answers)})
        return _of_length(unpack(found["rewards"], np.float32), len(prompts), "reward")

    def reference(self, prompts: Digits, answers: Digits) -> Floats:
        """Log-probabilities (n, 3) under the frozen first policy. WrongReference when ref holds another one."""
        found = self._ask("ref", "/logprobs", {"prompts": pack(prompts), "answers": pack(answers)})
        if found["policy"] != self._reference:
            raise WrongReference(f"ref serves the policy {found['policy'][:12]}, this run's is {self._reference[:12]}")
        return _of_length(unpack(found["logprobs"], np.float32, ANSWER_DIGITS), len(prompts), "ref")

    def _ask(self, member: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        deadline = time.monotonic() + self._patience_s
        pause = FIRST_PAUSE_S
        attempt = 0
        while True:
            urls = self._endpoints(member)
            reason = f"{member} has no endpoint"
            if urls:
                url = urls[attempt % len(urls)] + path
                try:
                    answer = self._http.post(url, json=body)
                except httpx.TransportError as broken:
                    reason = f"{url}: {type(broken).__name__}: {broken}"
                else:
                    if answer.status_code == httpx.codes.OK:
                        found: dict[str, Any] = answer.json()
                        return found
                    reason = f"{url}: status {answer.status_code}: {answer.text[:200]}"
                    if answer.is_client_error:
                        raise JudgeFailed(reason)
            if time.monotonic() + pause > deadline:
                raise JudgeFailed(f"{member} did not answer for {self._patience_s:g} s; last: {reason}")
            attempt += 1
            self.repeated += 1
            self._waiting(reason)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)


def _of_length(found: Floats, count: int, member: str) -> Floats:
    if len(found) != count:
        raise JudgeFailed(f"{member} judged {len(found)} answers of {count}")
    return found
