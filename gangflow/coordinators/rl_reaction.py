"""The RL coordinator's decisions: `react(state, observation, now_ms) -> (state, actions)`. Pure; the shell does the rest.

An observation changes what is known; then `_settle` compares what is with what ought to be and asks for the difference, so
that it matters neither in which order things came nor what was missed. Actions come in the order in which they must happen:
deregister, then engine verbs, then what XCE is told (the actor's SDK dispatches again as soon as a rollout is deregistered).
"""

from __future__ import annotations

from dataclasses import replace

from gangflow.channel import Head
from gangflow.coordinators.rl_judge import ENDED, SATISFIED, judge_actor, judge_group, judge_rollout
from gangflow.coordinators.rl_messages import (
    Action,
    BeatMissing,
    BeatSeen,
    BeatsUnknown,
    EngineAnswered,
    EngineCall,
    FailGroup,
    GroupSeen,
    HeadSeen,
    HealthSeen,
    Listed,
    Observation,
    PublishEligible,
    SlotSeen,
    Stop,
    Tick,
    TrainerFailed,
    VersionSeen,
)
from gangflow.coordinators.rl_state import (
    ANSWERING,
    Limits,
    RLState,
    Rollout,
    RolloutState,
    Verb,
    current,
    eligible,
    verdict,
)


def begin(limits: Limits, term: int) -> RLState:
    """A coordinator that has just taken its term, and knows nothing yet."""
    return RLState(limits=limits, term=term)


def react(state: RLState, observation: Observation, now_ms: int) -> tuple[RLState, tuple[Action, ...]]:
    """The next state, and what must be done, in that order."""
    if state.group_state in ENDED or (state.failed and not isinstance(observation, Listed | GroupSeen)):
        return state, ()
    failing = bool(state.failed)
    state = _observe(state, observation, now_ms)
    if not state.listed:
        return state, ()
    if state.group_state in ENDED:
        return state, (Stop(state.group_state),)
    # A group that was failed is only watched to its end.
    return (state, ()) if failing else _settle(state, now_ms)


# --- what is known --------------------------------------------------------------------------------------------------


def _observe(state: RLState, seen: Observation, now: int) -> RLState:
    match seen:
        case Listed():
            return _listed(state, seen, now)
        case SlotSeen():
            return _slot(state, seen, now)
        case GroupSeen(group_state, seq):
            return replace(state, group_state=group_state, group_seq=seq) if seq > state.group_seq else state
        case HeadSeen(head):
            return _head(state, head, now)
        case TrainerFailed(incarnation, message):
            return replace(state, failed=f"policy_mismatch\n{message}") if incarnation == state.actor.incarnation else state
        case EngineAnswered():
            return _engine(state, seen, now)
        case HealthSeen():
            return _health(state, seen, now)
        case VersionSeen():
            return _version(state, seen)
        case BeatSeen():
            return _beat(state, seen, now)
        case BeatMissing(age_ms):
            since = max(state.actor.beat_ms, now - age_ms)
            return replace(state, actor=replace(state.actor, beat_ms=since)) if state.actor.beaten else state
        case BeatsUnknown():
            # Of an actor that never beat, only what it publishes could say that it gets on, and nobody would have told us.
            progress_ms = state.actor.progress_ms if state.actor.beaten else 0
            return replace(state, actor=replace(state.actor, beat_ms=0, progress_ms=progress_ms))
        case Tick():
            return state


def _listed(state: RLState, seen: Listed, now: int) -> RLState:
    first = not state.listed
    if seen.seq > state.group_seq:
        state = replace(state, group_state=seen.group_state, group_seq=seen.seq)
    if first and seen.published is not None:
        state = replace(state, published=seen.published)
    if seen.head is not None:
        state = _head(state, seen.head, now)
    for slot in seen.slots:
        state = _slot(state, slot, now)
    state = replace(state, listed=True)
    return _adopt(state) if first else state


def _adopt(state: RLState) -> RLState:
    """What a predecessor admitted, and is still the same incarnation with good weights, goes on without a pause.

    This is no transition but the recovery of a durable fact; `_settle` asks the engine whether it is still true.
    """
    for serving in state.published.rollouts:
        rollout = state.rollout(serving.index)
        if rollout is None or rollout.key != serving.key or rollout.state is not RolloutState.STALE:
            continue
        if rollout.url == serving.url and current(state, serving.weights):
            state = state.put(replace(rollout, state=RolloutState.SERVING, weights=serving.weights, audit=True))
    return state


def _head(state: RLState, head: Head, now: int) -> RLState:
    old = state.head.weights if state.head else None
    if old is not None and (head.weights.actor_incarnation, head.weights.version) <= (old.actor_incarnation, old.version):
        return state
    actor = replace(state.actor, progress_ms=now) if state.actor.progress_ms else state.actor
    return replace(state, head=head, actor=actor)


def _slot(state: RLState, seen: SlotSeen, now: int) -> RLState:
    if seen.member == state.limits.actor:
        return _actor_slot(state, seen)
    if seen.member != state.limits.rollout or seen.incarnation < 1:
        return state
    rollout = state.rollout(seen.index)
    if rollout is None:
        rollout = Rollout(seen.index, seen.incarnation)
    elif seen.seq < rollout.seq or seen.incarnation < rollout.incarnation:
        return state
    elif seen.incarnation > rollout.incarnation:
        rollout = _reborn(rollout, seen.incarnation)
    rollout = replace(rollout, seq=seen.seq, url=seen.url or rollout.url)
    followed = _follow(rollout, seen.phase)
    if followed.state is RolloutState.LOADING and (rollout.state in ANSWERING or seen.unready_ms is not None):
        # XCE's probe fails where our health checks would: it is unhealthy since the first of either. Also for a coordinator
        # that was not there when it broke: "comes up" and "was ready and broke" are different facts.
        since = max(1, now - (seen.unready_ms or 0))
        followed = replace(followed, unhealthy_since_ms=rollout.unhealthy_since_ms or since)
    return state.put(followed)


def _reborn(rollout: Rollout, incarnation: int) -> Rollout:
    """A new incarnation begins anew: nothing of the old one's weights, verbs or verdicts is true of it."""
    ended = (
        rollout
        if rollout.state in {RolloutState.GONE, RolloutState.DEAD, RolloutState.RETIRED}
        else rollout.die(RolloutState.DEAD)
    )
    started = ended.move(RolloutState.STARTING)
    return Rollout(started.index, incarnation, started.state, earlier=rollout.earlier)


def _follow(rollout: Rollout, phase: str) -> Rollout:
    """Along the table to where XCE says that the incarnation is."""
    state = rollout.state
    if phase == "RETIRED":
        return rollout.die(RolloutState.RETIRED)
    if state in {RolloutState.GONE, RolloutState.DEAD, RolloutState.RETIRED}:
        return rollout
    if phase in {"DONE", "EXIT", "BACKOFF", "PENDING", "LOST"}:
        stopped = state is RolloutState.DRAINING and phase != "LOST"
        return rollout.die(RolloutState.GONE if stopped else RolloutState.DEAD)
    if phase in {"DRAINING", "STOPPING", "RELEASING"}:
        if state is RolloutState.DRAINING:
            return rollout
        return replace(rollout.move(RolloutState.DRAINING), call=0, verb=Verb.RELEASE, sync_since_ms=0, retry_at_ms=0)
    if phase == "RUNNING" and state is not RolloutState.DRAINING:
        return replace(rollout.move(RolloutState.LOADING), call=0, verb=None, sync_since_ms=0, retry_at_ms=0)
    if phase == "READY" and state in {RolloutState.STARTING, RolloutState.LOADING}:
        answering = rollout.move(RolloutState.LOADING).move(RolloutState.STALE)
        return replace(answering, health_failures=0, unhealthy_since_ms=0)
    return rollout


def _actor_slot(state: RLState, seen: SlotSeen) -> RLState:
    actor = state.actor
    if seen.seq < actor.seq or seen.incarnation < actor.incarnation:
        return state
    if seen.incarnation > actor.incarnation:
        actor = replace(
            actor, incarnation=seen.incarnation, beaten=False, beat_ms=0, progress="", progress_ms=0, reported=False
        )
    alive = seen.phase in {"STARTING", "RUNNING", "READY"}
    return replace(state, actor=replace(actor, seq=seen.seq, alive=alive))


def _engine(state: RLState, seen: EngineAnswered, now: int) -> RLState:
    rollout = state.rollout(seen.index)
    if rollout is None or rollout.incarnation != seen.incarnation or rollout.call != seen.call or rollout.verb is None:
        return state
    verb = rollout.verb
    rollout = replace(rollout, call=0, verb=None)
    if rollout.state is not RolloutState.SYNCING:
        # The audit of an adopted rollout: silence is the health checks' matter, other weights are a reason to sync.
        told_otherwise = verb is Verb.VERSION and seen.ok and seen.weights != rollout.weights
        return state.put(replace(rollout, weights=seen.weights) if told_otherwise else rollout)
    if not seen.ok and verb is Verb.PAUSE:
        # What is still running there is dispatched elsewhere; it must not keep the new weights out.
        return state.put(replace(rollout, failure=seen.message, answered=seen.answered, verb=Verb.ABORT))
    if verb is Verb.LOAD and seen.ok and (rollout.target is None or seen.weights != rollout.target.weights):
        seen = replace(seen, ok=False, message=f"it loaded {seen.weights}, not {rollout.target and rollout.target.weights}")
    diverged = ""
    if verb is Verb.GENERATE and seen.ok and (diverged := _disagreement(state, rollout, seen)):
        seen = replace(seen, ok=False, message=diverged)
    if not seen.ok:
        # Of a load only the engine knows what it has now; one that disagrees on the probe does not have what it says.
        weights = seen.weights if verb is Verb.LOAD else None if diverged else rollout.weights
        failed = replace(rollout, failure=seen.message, answered=seen.answered, weights=weights, target=None)
        failed = replace(failed.move(RolloutState.STALE), diverged=bool(diverged), retry_at_ms=now + state.limits.retry_ms)
        return state.put(replace(failed, audit=False))
    if verb is Verb.VERSION:
        still_has = rollout.target is not None and seen.weights == rollout.target.weights
        return state.put(replace(rollout, weights=seen.weights, verb=Verb.RESUME if still_has else Verb.PAUSE))
    if verb is Verb.RESUME and rollout.target is not None and rollout.target.probe is not None:
        return state.put(replace(rollout, verb=Verb.GENERATE))
    if verb in {Verb.RESUME, Verb.GENERATE}:
        serving = rollout.move(RolloutState.SERVING)
        serving = replace(serving, sync_since_ms=0, retry_at_ms=0, failure="", diverged=False, earlier="", audit=False)
        return state.put(serving)
    if verb is Verb.LOAD:
        return state.put(replace(rollout, weights=seen.weights, verb=Verb.RESUME))
    return state.put(replace(rollout, verb=Verb.LOAD))


def _disagreement(state: RLState, rollout: Rollout, seen: EngineAnswered) -> str:
    """Empty when the engine's log-probabilities are the trainer's."""
    probe = rollout.target.probe if rollout.target else None
    if probe is None:
        return ""
    found, limits = probe.difference(seen.logprobs), state.limits
    if found.largest > limits.probe_tolerance:
        how = f"by {found.largest:.2g} from the trainer's, {limits.probe_tolerance:g} is allowed"
    elif limits.probe_mean_tolerance is not None and found.mean > limits.probe_mean_tolerance:
        how = f"by {found.mean:.2g} in the mean from the trainer's, {limits.probe_mean_tolerance:g} is allowed"
    else:
        return ""
    return f"its log-probabilities differ {how}: it has other weights"


def _version(state: RLState, seen: VersionSeen) -> RLState:
    rollout = state.rollout(seen.index)
    if rollout is None or rollout.incarnation != seen.incarnation or rollout.state is not RolloutState.SERVING or rollout.call:
        return state
    return state if seen.weights == rollout.weights else state.put(replace(rollout, weights=seen.weights))


def _health(state: RLState, seen: HealthSeen, now: int) -> RLState:
    rollout = state.rollout(seen.index)
    if rollout is None or rollout.incarnation != seen.incarnation or rollout.state not in ANSWERING:
        return state
    if seen.ok:
        return state.put(replace(rollout, health_failures=0, unhealthy_since_ms=0))
    return state.put(
        replace(
            rollout,
            health_failures=rollout.health_failures + 1,
            unhealthy_since_ms=rollout.unhealthy_since_ms or now,
        )
    )


def _beat(state: RLState, seen: BeatSeen, now: int) -> RLState:
    actor = state.actor
    if seen.incarnation != actor.incarnation:
        return state
    moved = seen.progress != actor.progress or not actor.progress_ms
    beat_ms = max(actor.beat_ms, now - seen.age_ms)
    progress_ms = now if moved else actor.progress_ms
    state = replace(state, actor=replace(actor, beaten=True, beat_ms=beat_ms, progress=seen.progress, progress_ms=progress_ms))
    failing = {(index, incarnation): count for index, incarnation, count in seen.failing}
    for rollout in state.rollouts:
        count = failing.get(rollout.key, 0)
        if count != rollout.request_failures:
            state = state.put(replace(rollout, request_failures=count))
    return state


# --- what ought to be -----------------------------------------------------------------------------------------------


def _settle(state: RLState, now: int) -> tuple[RLState, tuple[Action, ...]]:
    if state.failed:
        cause, _, message = state.failed.partition("\n")
        return state, (FailGroup(cause, message),)
    actor = state.actor
    if state.group_state in SATISFIED and actor.alive and not actor.beaten and not actor.progress_ms:
        # One that hangs before its first heartbeat must not be waited for without end either.
        state = replace(state, actor=replace(actor, progress_ms=now))
    reports: list[Action] = []
    for rollout in state.rollouts:
        state, report = judge_rollout(state, rollout, now)
        reports.extend(report)
    state, report = judge_actor(state, now)
    reports.extend(report)
    calls: list[Action] = []
    for rollout in state.rollouts:
        state, call = _drive(state, rollout, now)
        calls.extend(call)
    value = verdict(state)
    publish = [PublishEligible(value)] if value != state.published else []
    state, end = judge_group(replace(state, published=value), now)
    return state, (*publish, *calls, *reports, *end)


def _drive(state: RLState, rollout: Rollout, now: int) -> tuple[RLState, list[Action]]:
    """Bring one rollout nearer to serving the newest weights: at most one verb at a time."""
    goal = state.goal
    if rollout.reported is not None or not rollout.url:
        return state, []
    if rollout.state is RolloutState.DRAINING and rollout.verb is Verb.RELEASE and rollout.call == 0:
        # It is told once that it will not be needed; it may be gone before it answers.
        return _call(state, rollout, Verb.RELEASE, now)
    if rollout.state is RolloutState.SERVING:
        if _must_leave(state, rollout) or (goal is not None and rollout.weights != goal.weights and _may_leave(state)):
            rollout = replace(rollout.move(RolloutState.STALE), call=0, verb=None, audit=False)
            state = state.put(rollout)
        elif rollout.audit:
            return _call(state, replace(rollout, audit=False), Verb.VERSION, now)
    if goal is None:
        if rollout.sync_since_ms or rollout.retry_at_ms:
            state = state.put(replace(rollout, sync_since_ms=0, retry_at_ms=0))
        return state, []
    if rollout.state is RolloutState.STALE and not rollout.sync_since_ms:
        rollout = replace(rollout, sync_since_ms=now)
        state = state.put(rollout)
    if rollout.state is RolloutState.STALE and now >= rollout.retry_at_ms and rollout.call == 0 and not rollout.health_failures:
        # One that left because its health checks failed has the right weights if it still says so: it need not load again.
        has = rollout.weights == goal.weights
        syncing = replace(rollout.move(RolloutState.SYNCING), retry_at_ms=0, audit=has)
        return _call(state, syncing, Verb.VERSION if has else Verb.PAUSE, now)
    if rollout.state is RolloutState.SYNCING and rollout.call == 0 and rollout.verb is not None:
        verb = rollout.verb
        if verb in {Verb.RESUME, Verb.GENERATE} and not current(state, rollout.weights):
            # Newer weights came meanwhile. What was resumed already, or never paused, is paused first.
            verb = Verb.LOAD if verb is Verb.RESUME and not rollout.audit else Verb.PAUSE
        return _call(state, rollout, verb, now)
    return state, []


def _must_leave(state: RLState, rollout: Rollout) -> bool:
    return rollout.health_failures >= state.limits.suspect_after or not current(state, rollout.weights)


def _may_leave(state: RLState) -> bool:
    """Whether one with old, still usable weights may stop serving to be synced: not below `min_rollouts`, but always one."""
    serving = sum(eligible(state, rollout) for rollout in state.rollouts)
    away = sum(
        rollout.state in {RolloutState.STALE, RolloutState.SYNCING} and rollout.reported is None for rollout in state.rollouts
    )
    return serving > state.limits.min_rollouts or (away == 0 and serving > 0)


def _call(state: RLState, rollout: Rollout, verb: Verb, now: int) -> tuple[RLState, list[Action]]:
    limits = state.limits
    number = state.next_call
    begins = verb is Verb.LOAD or (verb is Verb.VERSION and rollout.state is RolloutState.SYNCING)
    head = state.goal if begins else rollout.target
    rollout = replace(rollout, verb=verb, call=number, target=head, audit=rollout.audit and verb is not Verb.PAUSE)
    timeout = min(limits.hop_ms, limits.sync_ms // 3)
    if verb is Verb.LOAD:
        # All that is left: large weights take nearly all of it, and a load that was given up goes on in the engine.
        timeout = rollout.sync_since_ms + limits.sync_ms - now
    elif verb in {Verb.PAUSE, Verb.GENERATE}:
        timeout = limits.sync_ms // 3
    call = EngineCall(
        verb,
        rollout.index,
        rollout.incarnation,
        rollout.url,
        number,
        max(1, timeout),
        head if verb in {Verb.LOAD, Verb.GENERATE} else None,
        # What runs on an engine with wrong weights is not worth keeping.
        "abort" if rollout.diverged else limits.pause,
        verdict(state).membership_version,
    )
    return replace(state.put(rollout), next_call=number + 1), [call]
