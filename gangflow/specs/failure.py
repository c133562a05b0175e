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
    """Before the first restart."""
    factor: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = 2.0
    """By which it grows with each."""
    max: Duration = 60_000
    """It grows no further."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        check(
            [Fault(("max",), self.written("max"), f"at least `initial`, {self.written('initial')}")]
            if self.max < self.initial
            else []
        )
        return self


class FailureMatch(Spec):
    """What a rule matches; a key that is left out matches everything."""

    member: Name | None = None
    """Only failures of this member."""
    slot: Annotated[Whole, Field(ge=0)] | None = None
    """The replica's index; 0 for a job."""
    cause: Annotated[tuple[CauseName, ...], one_or_more] = ()
    """One or several."""
    exit_codes: tuple[Annotated[Whole, Field(ge=0, le=255)], ...] = ()
    """Only for the cause `app_exit`, which must be named."""

    @model_validator(mode="after")
    def _codes_need_exits(self) -> Self:
        if self.exit_codes and "app_exit" not in self.cause:
            check([Fault(("cause",), list(self.cause), "app_exit among the causes, since `exit_codes` are given")])
        return self


class FailureRule(Spec):
    """`action`, within a budget, for the failures that `match`. The first rule that matches wins."""

    positional: ClassVar[tuple[str, ...]] = ("action",)
    elsewhere: ClassVar[dict[str, str]] = {"exclude_host_after": "into the group's `recovery`"}

    match: FailureMatch = FailureMatch.model_construct()
    """Everything, when left out."""
    action: ActionName
    """What is done."""
    max_restarts: Annotated[Whole, Field(ge=0)] | None = None
    """Restarts within `window`; no limit when left out."""
    window: Duration = 3_600_000
    """In which `max_restarts` are counted; it slides."""
    max_elapsed: Duration | None = None
    """Give up this long after the first failure, however few restarts there were."""
    backoff: Backoff = Backoff.model_construct()
    """The wait before each restart."""
    floor: Annotated[Whole, Field(ge=0)] | None = None
    """Fewest ready replicas of `match.member` that the action may leave; `min_replicas` when left out."""
    floor_grace: Duration = 0
    """Ready replicas may be below the floor for so long; without a `floor`, below `min_replicas`."""
    count_machine_losses: Flag = False
    """Let `host_lost`, `agent_lost`, `drained` and `claim_lost` spend the budget, too."""
    then: ActionName = "fail_group"
    """When the budget is spent or the floor is broken. One that restarts has the rule's budget and backoff once more."""

    if TYPE_CHECKING:

        def __init__(self, action: str, **fields: Any) -> None: ...

    @model_validator(mode="after")
    def _budget_means_something(self) -> Self:
        faults: list[Fault] = []
        given = self.model_fields_set
        if self.action not in RESTARTS:
            # What is given and means nothing is refused, also where it says what the default is. A broken floor's `then` may
            # restart: then it is that which has a budget.
            budget = (
                ()
                if self.action == "tolerate" and self.then in RESTARTS
                else ("max_restarts", "window", "max_elapsed", "backoff")
            )
            for key in (*budget, "count_machine_losses"):
                if key in given and getattr(self, key) is not None:
                    faults.append(Fault((key,), self.written(key), f"no `{key}`: {self.action} restarts nothing"))
        if self.action == "fail_group" and "then" in given:
            faults.append(Fault(("then",), self.then, "no `then`: nothing comes after fail_group"))
        if self.action == "tolerate" and self.then == "tolerate":
            faults.append(Fault(("then",), self.then, "another action than tolerate: below the floor nothing is tolerated"))
        bounded = self.max_restarts is not None or self.max_elapsed is not None or self.floor_grace
        if self.action in RESTARTS and "then" in given and not bounded:
            expected = "no `then`: without `max_restarts`, `max_elapsed` or `floor_grace` it is never reached"
            faults.append(Fault(("then",), self.then, expected))
        if self.action == "fail_group" and self.floor is not None:
            faults.append(Fault(("floor",), self.floor, "no `floor`: fail_group leaves no replica"))
        if self.action == "fail_group" and self.floor_grace:
            faults.append(
                Fault(("floor_grace",), self.written("floor_grace"), "no `floor_grace`: fail_group leaves no replica")
            )
        if self.action in RESTARTS and self.then == self.action:
            faults.append(Fault(("then",), self.then, f"another action than {self.action}: it would never give up"))
        check(faults)
        return self
