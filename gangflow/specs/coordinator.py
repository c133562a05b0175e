"""What the coordinator of an RL group is told. Opaque to XCE: placement, barrier and restarts do not look at it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer

from gangflow.specs.base import Name, Spec, Whole, later
from gangflow.specs.quantity import Duration


def _kind(value: object) -> object:
    if value in ("serving", "streaming"):
        raise later(f"rl: a coordinator of kind {value} is not part of this version")
    return value


def _engine(value: object) -> object:
    if value in ("vllm", "sglang"):
        raise later(f"embedded: the {value} engine adapter is not part of this version")
    return value


class RLCoordinator(Spec):
    """An RL post-training group: one trainer, a set of rollout engines, weights pushed every step (design 5.1)."""

    not_yet: ClassVar[dict[str, str]] = {"planner": "the scaling planner"}
    elsewhere: ClassVar[dict[str, str]] = {"ratio": "beside `members`, as a key of the group"}

    kind: Annotated[Literal["rl"], BeforeValidator(_kind)] = "rl"
    """Of coordinator."""
    actor: Name = "actor"
    """The trainer: a job."""
    rollout: Name = "rollout"
    """The generators: a replica set."""
    port: Name = "http"
    """The rollout's port that the engine's verbs go to."""
    engine: Annotated[Literal["embedded"], BeforeValidator(_engine)] = "embedded"
    """The adapter that speaks to the rollouts."""
    min_rollouts: Annotated[Whole, Field(ge=1)] = 1
    """Fewer eligible ones for longer than `quorum_timeout` fail the group."""
    max_staleness: Annotated[Whole, Field(ge=0)] = 0
    """Versions that a sample may lag behind the trainer; 0 is synchronous."""
    quorum_timeout: Duration = 60_000
    """Fewer than `min_rollouts` may be eligible for so long."""
    hang_timeout: Duration = 60_000
    """The actor's heartbeats may be silent for so long."""
    unhealthy_timeout: Duration = 10_000
    """A rollout may fail its health checks for so long."""
    sync_timeout: Duration = 30_000
    """For loading one version of the weights into one rollout."""
    no_progress_timeout: Duration = 600_000
    """The training step may stand still for so long."""

    @model_serializer(mode="wrap")
    def _with_its_kind(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Always written, although it is the default: `coordinator: {}` would say nothing to a reader.
        fields: dict[str, Any] = handler(self)
        return {"kind": self.kind, **fields}
