"""When time alone will next change something. The shell sends a Tick then; every wait has its deadline here."""

from __future__ import annotations

from gangflow.xce.core.changes import open_change
from gangflow.xce.core.claim_ids import claims_of
from gangflow.xce.core.counts import ACTIVE, RUNS, at_rest
from gangflow.xce.core.floors import floor_deadline
from gangflow.xce.core.layers import first
from gangflow.xce.core.limits import ANSWERS_KEPT_MS, ENDED_KEPT_MS, FORGET_EVERY_MS
from gangflow.xce.core.runtime_limit import limit_of, warn_at
from gangflow.xce.core.state import Claim, ClaimState, Group, GroupState, HostState, PendCode, Reason, SlotState, State

REPORTED = frozenset({SlotState.PLACED, SlotState.PREPARED, SlotState.STARTING, SlotState.RUNNING})
"""States whose `until_ms` is the deadline of a report: it does not pass in the grace after a controller's start."""
TIMED = REPORTED | {SlotState.PENDING, SlotState.BACKOFF, SlotState.DRAINING}
"""States whose `until_ms` is a deadline of their own. In STOPPING, RELEASING and LOST it is kept for the state after."""
REPORTED_GROUP = frozenset({GroupState.PREPARING, GroupState.STARTING})
CLAIM_TIMED = frozenset({ClaimState.PROVISIONING, ClaimState.FAILED, ClaimState.LOST})


def group_deadline(state: State, group: Group) -> int:
    """When time alone next changes this group; 0 means never."""
    if group.state.terminal:
        if any(claim.state is not ClaimState.GONE for claim in claims_of(state.claims, group)):
            # Kept until its last obligation is met, which is no matter of time.
            return 0
        return group.ended_ms + ENDED_KEPT_MS + FORGET_EVERY_MS
    grace = state.grace_until_ms
    times: list[int] = []
    for slot in group.slots.values():
        if slot.until_ms and slot.state in TIMED:
            times.append(max(slot.until_ms, grace) if slot.state in REPORTED else slot.until_ms)
        if slot.run_until_ms and slot.state in RUNS and group.state in ACTIVE:
            times.append(max(limit_of(slot), grace))
            due = warn_at(group.plan.member(slot.member), slot)
            if due:
                times.append(due)
    if group.until_ms and group.state is not GroupState.STOPPING:
        times.append(max(group.until_ms, grace) if group.state in REPORTED_GROUP else group.until_ms)
    for claim in claims_of(state.claims, group) if group.plan.claims else ():
        if claim.until_ms and claim.state in CLAIM_TIMED:
            times.append(claim.until_ms)
    if not_reached(group):
        # Due at once: the next session goes on where the last one ended, also if nothing else happens.
        times.append(max(1, group.since_ms))
    change = open_change(group)
    if change is not None:
        times.append(max(change.until_ms, grace))
    floor = floor_deadline(group)
    if floor:
        times.append(max(floor, grace))
    return min(times, default=0)


def claim_deadline(claim: Claim) -> int:
    """When time alone next changes a standalone claim; 0 means never."""
    return claim.until_ms if not claim.group and claim.state in CLAIM_TIMED else 0


def not_reached(group: Group) -> bool:
    """Whether a session ended before it came to what this group asks for: nothing that comes back would wake it."""
    if group.state in ACTIVE:
        return any(slot.state is SlotState.PENDING and _passed_over(slot.reason) for slot in group.slots.values())
    if group.state is GroupState.PENDING:
        # It asks for nothing before its pause is over and its last places are given back.
        return not group.until_ms and _passed_over(group.reason) and at_rest(group)
    return group.state is GroupState.RESTARTING and not group.until_ms and _passed_over(group.reason)


def _passed_over(reason: Reason | None) -> bool:
    # A session names the group that it came to last.
    return reason is not None and reason.code is PendCode.WAITING_TURN and bool(reason.blocker)


def answers_deadline(state: State) -> int:
    """When the oldest remembered answer is forgotten; 0 means there is none."""
    oldest = first(state.answers)
    # In order of time. A little late, so that many are forgotten by one event.
    return oldest[1].at_ms + ANSWERS_KEPT_MS + FORGET_EVERY_MS if oldest is not None else 0


def next_deadline(state: State) -> int | None:
    """When a Tick is next needed, in ms since the epoch; None: time alone will not change this state."""
    times = [group_deadline(state, group) for group in state.groups.values()]
    times += [host.until_ms for host in state.hosts.values() if host.state is HostState.LOST]
    times += [claim_deadline(claim) for claim in state.claims.values()]
    times += [answers_deadline(state), state.offer_ms]
    return min((time for time in times if time), default=None)
