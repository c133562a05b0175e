"""What the coordinator of an RL group is told. Opaque to XCE: placement, barrier and restarts do not look at it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from gangflow.specs.base import Name, Spec, Whole, check, later, wrong
from gangflow.specs.faults import listed, nearest
from gangflow.specs.problems import Fault
from gangflow.specs.quantity import Duration, render_duration


def _kind(value: object) -> object:
    if value in ("serving", "streaming"):
        raise later(f"rl: a coordinator of kind {value} is not part of this version")
    return value


BUILT_IN_ENGINES = ("embedded", "vllm")
ENGINES = "gangflow.engines"
"""The entry point group of other engines."""


def _engine(value: str) -> str:
    if value in BUILT_IN_ENGINES:
        return value
    from importlib.metadata import entry_points  # only for a name that does not come with gangflow

    names = (*BUILT_IN_ENGINES, *sorted(entry_points(group=ENGINES).names))
    if value not in names:
        raise wrong(listed(names), nearest(value, names))
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
    engine: Annotated[Name, AfterValidator(_engine)] = "embedded"
    """What the rollouts run: `embedded`, `vllm`, or an entry point of `gangflow.engines`."""
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
    pause: Literal["wait", "keep", "abort"] = "wait"
    """What happens to running requests when new weights are brought: they end before, they go on after with the new weights
    (their samples are as old as their first token), or they end unanswered and are asked for again."""
    probe_tolerance: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-4
    """How far an engine's log-probability of any token of the probe may be from the one that the trainer published with its
    weights. In bfloat16 single tokens differ by half a nat and more: give it several, and `probe_mean_tolerance`."""
    probe_mean_tolerance: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The same for the mean over the probe's tokens, which for engines that compute in bfloat16 says more (0.15). Left out:
    only the largest is looked at."""

    @model_validator(mode="after")
    def _others_are_judged_first(self) -> Self:
        # Otherwise whoever waits, or hangs, ends the group as one without progress, whatever the rules say of him.
        longest, name = max((self.hang_timeout, "hang_timeout"), (self.quorum_timeout, "quorum_timeout"))
        if self.no_progress_timeout <= longest:
            expected = f"more than `{name}`, {render_duration(longest)}"
            check([Fault(("no_progress_timeout",), render_duration(self.no_progress_timeout), expected)])
        return self

    @model_validator(mode="after")
    def _kept_requests_are_of_use(self) -> Self:
        if self.pause == "keep":
            if self.engine == "embedded":
                check([Fault(("pause",), self.pause, "wait or abort: the embedded engine cannot freeze what runs")])
            if self.max_staleness == 0:
                check([Fault(("pause",), self.pause, "wait or abort: with `max_staleness: 0` a kept sample is too old")])
        return self

    @model_serializer(mode="wrap")
    def _with_its_kind(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Always written, although it is the default: `coordinator: {}` would say nothing to a reader.
        fields: dict[str, Any] = handler(self)
        return {"kind": self.kind, **fields}
