"""The failure policy of a group: ordered rules, cause × member → action within a budget (design 3.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from gangflow.specs.base import Flag, Name, Spec, Whole, check, one_or_more
from gangflow.specs.faults import Fault
from gangflow.specs.quantity import Duration

CauseName = Literal[
    "app_exit",
    "signal",
    "oom",
    "start_failed",
    "not_ready",
    "run_limit",
    "host_lost",
    "agent_lost",
    "drained",
    "claim_lost",
    "unhealthy",
    "hung",
    "stale",
    "diverged",
]
"""Why a slot failed; `unhealthy`, `hung`, `stale` and `diverged` are a coordinator's verdicts."""
ActionName = Literal["tolerate", "restart_member", "restart_role", "restart_group", "fail_group"]
"""Weakest first. `restart_member` restarts the failed slot, `restart_role` every slot of its member."""

RESTARTS = ("restart_member", "restart_role", "restart_group")


class Backoff(Spec):
    """The wait before restart n: `initial · factor^(n-1)`, at most `max`."""

    initial: Duration = 1_000
    factor: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = 2.0
    max: Duration = 60_000

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        check([Fault(("max",), self.max, "at least `initial`")] if self.max < self.initial else [])
        return self


class FailureMatch(Spec):
    """What a rule matches; a key that is left out matches everything."""

    member: Name | None = None
    slot: Annotated[Whole, Field(ge=0)] | None = None
    """The replica's index; 0 for a job."""
    cause: Annotated[tuple[CauseName, ...], one_or_more] = ()
    exit_codes: tuple[Annotated[Whole, Field(ge=0, le=255)], ...] = ()
    """Only for the cause `app_exit`, which must be named."""

    @model_validator(mode="after")
    def _codes_need_exits(self) -> Self:
        if self.exit_codes and "app_exit" not in self.cause:
            check([Fault(("cause",), list(self.cause), "app_exit among the causes, since `exit_codes` are given")])
        return self


Match = FailureMatch
"""Its short name in `gangflow`."""


class FailureRule(Spec):
    """`action`, within a budget, for the failures that `match`. The first rule that matches wins."""

    positional: ClassVar[tuple[str, ...]] = ("action",)
    not_yet: ClassVar[dict[str, str]] = {"exclude_host_after": "the exclusion of hosts for a group"}

    match: FailureMatch = FailureMatch.model_construct()
    action: ActionName
    max_restarts: Annotated[Whole, Field(ge=0)] | None = None
    """Restarts within `window`; no limit when left out."""
    window: Duration = 3_600_000
    max_elapsed: Duration | None = None
    """Give up this long after the first failure, however few restarts there were."""
    backoff: Backoff = Backoff.model_construct()
    floor: Annotated[Whole, Field(ge=0)] | None = None
    """Fewest ready replicas of `match.member` that the action may leave; `min_replicas` when left out."""
    floor_grace: Duration = 0
    """Ready replicas may be below the floor for so long; without a `floor`, below `min_replicas`."""
    count_machine_losses: Flag = False
    """Let `host_lost`, `agent_lost`, `drained` and `claim_lost` spend the budget, too."""
    then: ActionName = "fail_group"
    """When the budget is spent or the floor is broken."""

    if TYPE_CHECKING:

        def __init__(self, action: str, **fields: Any) -> None: ...

    @model_validator(mode="after")
    def _budget_means_something(self) -> Self:
        faults: list[Fault] = []
        if self.action not in RESTARTS:
            for key in ("max_restarts", "max_elapsed", "count_machine_losses"):
                value = getattr(self, key)
                if value not in (None, False):
                    faults.append(Fault((key,), value, f"no `{key}`: {self.action} restarts nothing"))
        if self.action == "fail_group" and self.floor is not None:
            faults.append(Fault(("floor",), self.floor, "no `floor`: fail_group leaves no replica"))
        if self.action == "fail_group" and self.floor_grace:
            faults.append(Fault(("floor_grace",), self.floor_grace, "no `floor_grace`: fail_group leaves no replica"))
        if self.action in RESTARTS and self.then == self.action:
            faults.append(Fault(("then",), self.then, f"another action than {self.action}: it would never give up"))
        check(faults)
        return self
