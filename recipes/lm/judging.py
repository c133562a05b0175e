"""The actor's side of verifier and reference: asked patiently (`services.asking`), in portions, spread over replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from gangflow.errors import GangflowError
from gangflow.recipes.lm import wire
from gangflow.recipes.services.asking import Asking, ServiceFailed
from gangflow.recipes.services.packing import floats

SCORED: Final = 1_024
"""Answers in one request to the verifier."""
WEIGHED: Final = 256
"""Sequences in one request to the reference."""
AT_ONCE: Final = 8


class WrongReference(GangflowError):
    """The reference server holds another policy than this run's: a POLICY failure."""

    code = "wrong_reference"
    remedy = "give actor and ref the same model folder"


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What the verifier says, answer by answer."""

    rewards: list[float]
    exact: list[bool]


class Judges:
    """Asks the group's `reward` and `ref` members; thread-safe."""

    def __init__(
        self,
        endpoints: Callable[[str], Sequence[str]],
        *,
        reference: str,
        patience_s: float,
        request_timeout_s: float = 60.0,
        waiting: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`reference`: the fingerprint that ref's weights must have; the others: see `Asking`."""
        self._reference = reference
        self._asking = Asking(endpoints, patience_s=patience_s, request_timeout_s=request_timeout_s, waiting=waiting)
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="judges")

    @property
    def repeated(self) -> int:
        """Requests that had to be asked again."""
        return self._asking.repeated

    def close(self) -> None:
        """Ask no more; nobody waits for threads that still do."""
        self._asking.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def verdicts(self, problems: Sequence[int], texts: Sequence[str]) -> Verdicts:
        """Of a text for each problem (by number). ServiceFailed when nobody answers in time: never a reward of 0."""
        bodies = [
            {"problems": list(problems[low : low + SCORED]), "texts": list(texts[low : low + SCORED])}
            for low in range(0, len(texts), SCORED)
        ]
        found = self._all("reward", "/score", bodies)
        rewards = [float(reward) for part in found for reward in _part(part, "rewards", "reward")]
        exact = [bool(value) for part in found for value in _part(part, "exact", "reward")]
        if len(rewards) != len(texts) or len(exact) != len(texts):
            raise ServiceFailed(f"reward judged {len(rewards)} answers of {len(texts)}")
        return Verdicts(rewards, exact)

    def reference(
        self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], temperature: float
    ) -> list[list[float]]:
        """Log-probabilities of each answer's tokens under the reference. WrongReference when ref holds other weights."""
        bodies = [
            {**wire.sequences(prompts[low : low + WEIGHED], answers[low : low + WEIGHED]), "temperature": temperature}
            for low in range(0, len(prompts), WEIGHED)
        ]
        flat: list[float] = []
        for part in self._all("ref", "/logprobs", bodies):
            policy = str(_part(part, "policy", "ref"))
            if policy != self._reference:
                raise WrongReference(f"ref serves the policy {policy[:12]}, this run's is {self._reference[:12]}")
            flat += floats(_part(part, "logprobs", "ref"))
        wanted = sum(len(answer) for answer in answers)
        if len(flat) != wanted:
            raise ServiceFailed(f"ref weighed {len(flat)} tokens of {wanted}")
        return wire.by_answer(flat, answers)

    def _all(self, member: str, path: str, bodies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """One request each, at the same time, the n-th beginning with the member's n-th replica."""
        if len(bodies) == 1:
            return [self._asking.ask(member, path, bodies[0])]
        asked = [self._threads.submit(self._asking.ask, member, path, body, first=n) for n, body in enumerate(bodies)]
        return [answer.result() for answer in asked]


def _part(answer: dict[str, Any], key: str, member: str) -> Any:
    """ServiceFailed when it is not there: somebody else answers at that address, or an older version of the program."""
    if key not in answer:
        raise ServiceFailed(f"{member} answered without `{key}`; it has {', '.join(sorted(answer)) or 'nothing'}")
    return answer[key]
