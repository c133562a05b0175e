"""The engine port: what a coordinator and the SDK ask of a rollout engine, in eight verbs. Adapters live in integrations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from gangflow.channel import Head, WeightsId
from gangflow.errors import GangflowError

PauseMode = Literal["wait", "keep", "abort"]
"""`wait`: nothing new begins, what runs may end. `keep`: what runs stands still, and goes on after `resume` with what is loaded
then. `abort`: what runs ends now, unanswered."""


class EngineRefused(GangflowError):
    """The engine answered, and did not do it. It has `weights` now, whole; None: nobody can say what it has."""

    code = "engine_refused"

    def __init__(self, message: str, weights: WeightsId | None = None) -> None:
        super().__init__(message)
        self.weights = weights


class EngineSilent(GangflowError):
    """The engine did not answer within the deadline, or could not be reached."""

    code = "engine_silent"


class EngineFenced(GangflowError):
    """The engine has been commanded by a newer coordinator: this one must stop."""

    code = "fenced"
    exit_code = 10


class Engine(Protocol):
    """One incarnation of one rollout. Every verb is idempotent, and has a deadline in seconds: EngineSilent after it.

    Verbs that change something carry the coordinator's term (EngineFenced by a newer one) and the incarnation for which they
    are meant (EngineRefused by another one at the same address).
    """

    async def health(self, timeout_s: float) -> None:
        """Returns when it is well."""
        ...

    async def generate(self, prompts: Sequence[Any], params: Mapping[str, Any], timeout_s: float) -> list[Any]:
        """One sample for each prompt: a canary. The SDK asks for the real ones itself.

        With `params={"score": True}` a prompt is token ids, and its output {"logprobs": […]}: the log-probability of each token
        after the first, given those before it.
        """
        ...

    async def pause(self, mode: PauseMode, timeout_s: float) -> None:
        """Admit nothing more; returns when nothing runs. EngineRefused for a mode that this engine does not have."""
        ...

    async def resume(self, timeout_s: float) -> None:
        """Admit work; refused without weights."""
        ...

    async def abort(self, timeout_s: float) -> None:
        """End what runs, unanswered; admission stays as it is."""
        ...

    async def load(self, head: Head, timeout_s: float, membership_version: int) -> WeightsId:
        """Check the digest, load; returns what it has now, read back. Refused: `weights` of the error is what it has instead.

        `membership_version` is that of the set of engines to which this load belongs: a collective that was built for another
        one is refused, before anything blocks in it.
        """
        ...

    async def version(self, timeout_s: float) -> WeightsId | None:
        """What it has now."""
        ...

    async def release(self, timeout_s: float) -> None:
        """It will not be needed any more: give back what the weights occupy."""
        ...

    async def close(self) -> None:
        """Close the connection; the engine itself goes on."""
        ...


class EngineFactory(Protocol):
    """Makes an engine of one kind."""

    def __call__(self, url: str, incarnation: int, term: int) -> Engine: ...
