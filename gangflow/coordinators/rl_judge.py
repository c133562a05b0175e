"""Deadlines and verdicts of the RL coordinator: who is unhealthy, hung, stale, without quorum or progress. Pure."""

from __future__ import annotations

from dataclasses import replace

from gangflow.coordinators.rl_messages import Action, FailGroup, ReportCause
from gangflow.coordinators.rl_state import ANSWERING, Cause, RLState, Rollout, RolloutState, eligible
from gangflow.durations import lasting

ENDED = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
SATISFIED = frozenset({"RUNNING", "DEGRADED"})
"""Of a group: only then is anybody expected to make progress."""


def next_deadline(state: RLState) -> int | None:
    """When a Tick is due, if nothing else happens before; None when nothing waits for time."""
    if not state.listed or state.failed or state.group_state in ENDED:
        return None
    limits = state.limits
    times = [state.below_quorum_ms + limits.quorum_ms] if state.below_quorum_ms else []
    for rollout in state.rollouts:
        if rollout.reported is not None or rollout.state not in ANSWERING | {RolloutState.LOADING}:
            continue
        if rollout.unhealthy_since_ms:
            times.append(rollout.unhealthy_since_ms + limits.unhealthy_ms)
        if rollout.sync_since_ms:
            times.append(rollout.sync_since_ms + limits.sync_ms)
        if rollout.retry_at_ms and not rollout.health_failures:
            # One that does not answer is not asked again: its health checks are what wakes us.
            times.append(rollout.retry_at_ms)
    actor = state.actor
    if actor.alive and not actor.reported and actor.beat_ms:
        times.append(actor.beat_ms + limits.hang_ms)
    if _expects_progress(state):
        times.append(actor.progress_ms + limits.no_progress_ms)
    return min(times, default=None)


def _expects_progress(state: RLState) -> bool:
    """Whether the actor ought to get on, and its clock runs. One that was heard and then not is the hang deadline's matter."""
    actor = state.actor
    known = bool(actor.beat_ms) or not actor.beaten
    return state.group_state in SATISFIED and actor.alive and not actor.reported and known and actor.progress_ms > 0


def judge_rollout(state: RLState, rollout: Rollout, now: int) -> tuple[RLState, list[Action]]:
    """Deadlines of one rollout: unhealthy, hung, not to be synced; each is reported once per incarnation."""
    limits = state.limits
    answers = rollout.state in ANSWERING
    if rollout.reported is not None or not (answers or rollout.state is RolloutState.LOADING):
        return state, []
    cause: Cause | None = None
    message = ""
    if rollout.unhealthy_since_ms and now - rollout.unhealthy_since_ms >= limits.unhealthy_ms:
        cause, message = Cause.UNHEALTHY, f"health checks fail for {lasting(limits.unhealthy_ms)}"
    elif not answers:
        # It has not answered yet: XCE's `ready_timeout` bounds that.
        return state, []
    elif rollout.request_failures >= limits.hung_after and not rollout.health_failures:
        cause, message = Cause.HUNG, f"it answers /health, and {rollout.request_failures} requests in a row failed"
    elif rollout.sync_since_ms and now - rollout.sync_since_ms >= limits.sync_ms:
        cause = Cause.DIVERGED if rollout.diverged else Cause.STALE if rollout.failure and rollout.answered else Cause.HUNG
        message = f"no new weights within {lasting(limits.sync_ms)}: {rollout.failure or 'no answer'}"
    if cause is None:
        return state, []
    judged = replace(rollout, reported=cause, call=0, verb=None, sync_since_ms=0, retry_at_ms=0, earlier=f"{cause}: {message}")
    if answers and judged.state is not RolloutState.STALE:
        judged = judged.move(RolloutState.STALE)
    return state.put(judged), [ReportCause(limits.rollout, rollout.index, rollout.incarnation, cause, message)]


def judge_actor(state: RLState, now: int) -> tuple[RLState, list[Action]]:
    """The actor is hung when its heartbeats stop: reported once per incarnation."""
    actor, limits = state.actor, state.limits
    if not actor.alive or actor.reported or not actor.beat_ms or now - actor.beat_ms < limits.hang_ms:
        return state, []
    report = ReportCause(limits.actor, 0, actor.incarnation, Cause.HUNG, f"no heartbeat for {lasting(limits.hang_ms)}")
    return replace(state, actor=replace(actor, reported=True)), [report]


def judge_group(state: RLState, now: int) -> tuple[RLState, list[Action]]:
    """Too few eligible for too long, or no progress on the edge between rollouts and actor."""
    limits, actor = state.limits, state.actor
    expected = state.group_state in SATISFIED and actor.alive and state.goal is not None
    count = sum(eligible(state, rollout) for rollout in state.rollouts)
    if not expected or count >= limits.min_rollouts:
        state = replace(state, below_quorum_ms=0)
    elif not state.below_quorum_ms:
        state = replace(state, below_quorum_ms=now)
    cause, message = "", ""
    if state.below_quorum_ms and now - state.below_quorum_ms >= limits.quorum_ms:
        story = ", ".join(_story(rollout) for rollout in state.rollouts) or "none was ever placed"
        cause = "no_quorum"
        message = f"{count} of at least {limits.min_rollouts} rollouts eligible for {lasting(limits.quorum_ms)}: {story}"
    elif _expects_progress(state) and now - actor.progress_ms >= limits.no_progress_ms:
        cause = "no_progress"
        heard = "the actor beats, and" if actor.beaten else "the actor never sent a heartbeat, and"
        message = f"{heard} neither its step nor its samples nor its weights moved for {lasting(limits.no_progress_ms)}"
    if not cause:
        return state, []
    return replace(state, failed=f"{cause}\n{message}"), [FailGroup(cause, message)]


def _story(rollout: Rollout) -> str:
    judged = f", reported {rollout.reported}" if rollout.reported else ""
    said = rollout.failure or (rollout.earlier and f"before it was {rollout.earlier}")
    failure = f" ({said})" if said else ""
    where = f" at {rollout.url}" if rollout.url else ""
    return f"rollout[{rollout.index}] {rollout.state} in incarnation {rollout.incarnation}{where}{judged}{failure}"
