"""What design 3.5 says about one failure, in few lines. It imports nothing of the core: it is written from the text.

The group that it speaks of has two primary jobs, `keeper` and `actor`, three replicas `rollout`, two of them the minimum, and
one replica `side`. One of its slots fails, and one rule matches, with no budget that could be spent.
"""

from __future__ import annotations

from dataclasses import dataclass

CAUSES = [
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
ACTIONS = ["tolerate", "restart_member", "restart_role", "restart_group", "fail_group"]
"""Weakest first: of failures that are judged together the strongest action wins."""
SLOTS = ("keeper[0]", "actor[0]", "rollout[0]", "rollout[1]", "rollout[2]", "side[0]")

MACHINES = {"host_lost", "agent_lost", "drained", "claim_lost"}
"""Losses by the machines: before the group was first RUNNING they mean a restart back to placement, and spend no budget."""
SEEN_TO_END = {"app_exit", "signal", "oom", "start_failed"}
"""The report says that every process is gone."""
ENDS_PREPARATION = SEEN_TO_END | MACHINES
"""Before the release, each of these voids the try: a lost host, a refusal, a closed host, a claim that is gone."""


@dataclass(frozen=True)
class Outcome:
    """What must be true after the failure."""

    state: str
    """Of the group, in the same batch."""
    rest: str
    """Of the group, once everybody has done as told and all that was lost has come back."""
    judged: str = ""
    """The action that was recorded; empty: the failure matched nothing."""
    again: tuple[str, ...] = ()
    """Slots that run in a new incarnation then."""
    given_up: tuple[str, ...] = ()
    cause: str = ""
    """Of a group that FAILED."""
    epochs: int = 0
    """How many more epochs of the group began."""


def outcome(group: str, slot: str, target: str, cause: str, action: str) -> Outcome:
    """`group` and `slot`: the states of the group and of the slot `target`, when `cause` comes and `action` is the rule's."""
    if group == "PREPARING":
        if cause in ENDS_PREPARATION:
            return Outcome("PENDING", "RUNNING", again=SLOTS, epochs=1)
        return Outcome("PREPARING", "RUNNING", epochs=1)
    if group in ("PENDING", "RESTARTING"):
        return Outcome(group, "RUNNING", again=SLOTS, epochs=1)
    if group in ("SUSPENDING", "STOPPING"):
        return Outcome(group, {"SUSPENDING": "SUSPENDED", "STOPPING": "CANCELLED"}[group])
    if group == "STARTING" and cause in MACHINES:
        return Outcome("RESTARTING", "RUNNING", "restart_group", again=SLOTS, epochs=1)
    if action == "fail_group":
        return Outcome("STOPPING", "FAILED", action, cause=cause)
    if action == "restart_group":
        return Outcome("RESTARTING", "RUNNING", action, again=SLOTS, epochs=1)
    member = target.split("[")[0]
    down = tuple(one for one in SLOTS if one.startswith(member)) if action == "restart_role" else (target,)
    state = "STARTING" if group == "STARTING" else satisfied(group, slot, target, cause, action, down)
    if action == "tolerate":
        return Outcome(state, "RUNNING", action, given_up=(target,))
    return Outcome(state, "RUNNING", action, again=down)


def satisfied(group: str, slot: str, target: str, cause: str, action: str, down: tuple[str, ...]) -> str:
    """Whether every minimum still holds: a job runs, or its tolerated exit is confirmed; of three replicas two are ready."""
    if group == "DEGRADED":
        return "DEGRADED"
    if not target.startswith("rollout"):
        given_up = action == "tolerate" and cause in SEEN_TO_END
        return "RUNNING" if given_up else "DEGRADED"
    left = 3 - len(set(down) | ({target} if slot != "READY" else set()))
    return "RUNNING" if left >= 2 else "DEGRADED"


def together(first: str, second: str) -> tuple[str, str]:
    """What becomes of two failures in one batch, whose rules say this: a stronger action on the whole group takes both."""
    strongest = max(first, second, key=ACTIONS.index)
    return (strongest, strongest) if strongest in ("restart_group", "fail_group") else (first, second)


def below_floor(then: str, unready: tuple[str, ...]) -> Outcome:
    """Ready `rollout` replicas were below the floor for longer than its grace, because these are not ready: `then` is applied.

    Below the floor nothing is tolerated; and what restarts one slot at a time restarts those that are not ready.
    """
    if then in ("fail_group", "tolerate"):
        return Outcome("STOPPING", "FAILED", cause="below_floor")
    if then == "restart_group":
        return Outcome("RESTARTING", "RUNNING", again=SLOTS, epochs=1)
    members = tuple(one for one in SLOTS if one.startswith("rollout"))
    return Outcome("DEGRADED", "RUNNING", again=members if then == "restart_role" else unready)


def with_budget(cause: str, action: str, then: str, *, spent: bool, counts_machines: bool) -> str:
    """What a rule that restarts does, with its budget spent or not; a `then` that restarts has the same budget once more."""
    free = cause in MACHINES and not counts_machines
    return then if spent and not free else action
