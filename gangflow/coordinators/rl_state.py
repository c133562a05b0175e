"""What an RL coordinator knows: the actor, each rollout slot's life, the newest weights; and who is eligible. Pure.

Nothing here is lost with the process: slots come from XCE, weights and membership from the group's key-values, the rest is
measured again. Times are milliseconds of one clock, 0 means never.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gangflow.channel import Eligible, Head, Serving, WeightsId
from gangflow.coordinators.engine import PauseMode
from gangflow.errors import GangflowError


class RolloutState(StrEnum):
    """The life of one incarnation of one rollout slot."""

    STARTING = "STARTING"
    """Placed, prepared or starting: no process answers yet."""
    LOADING = "LOADING"
    """Its process runs and its engine does not answer (yet, or not at the moment)."""
    STALE = "STALE"
    """It answers, and its weights are none, too old, or another actor's."""
    SYNCING = "SYNCING"
    """The newest weights are being brought to it."""
    SERVING = "SERVING"
    DRAINING = "DRAINING"
    """It is being stopped: no new work, running work may end."""
    GONE = "GONE"
    """Stopped as wanted."""
    DEAD = "DEAD"
    """It failed or was lost."""
    RETIRED = "RETIRED"
    """Not wanted any more."""


_ENDS = frozenset({RolloutState.GONE, RolloutState.DEAD, RolloutState.RETIRED})
TRANSITIONS: Mapping[RolloutState, frozenset[RolloutState]] = {
    RolloutState.STARTING: frozenset({RolloutState.LOADING, RolloutState.DRAINING}) | _ENDS,
    RolloutState.LOADING: frozenset({RolloutState.STALE, RolloutState.DRAINING}) | _ENDS,
    RolloutState.STALE: frozenset({RolloutState.LOADING, RolloutState.SYNCING, RolloutState.DRAINING}) | _ENDS,
    RolloutState.SYNCING: frozenset({RolloutState.LOADING, RolloutState.STALE, RolloutState.SERVING, RolloutState.DRAINING})
    | _ENDS,
    RolloutState.SERVING: frozenset({RolloutState.LOADING, RolloutState.STALE, RolloutState.DRAINING}) | _ENDS,
    RolloutState.DRAINING: _ENDS,
    # From an end only a new incarnation leads on, and it begins at the beginning. There is no edge from DEAD to SERVING.
    RolloutState.GONE: frozenset({RolloutState.STARTING, RolloutState.RETIRED}),
    RolloutState.DEAD: frozenset({RolloutState.STARTING, RolloutState.RETIRED}),
    RolloutState.RETIRED: frozenset({RolloutState.STARTING}),
}
ANSWERING = frozenset({RolloutState.STALE, RolloutState.SYNCING, RolloutState.SERVING})
HOLDING = ANSWERING | frozenset({RolloutState.LOADING, RolloutState.DRAINING})


class InvalidTransition(GangflowError):
    """An edge that is not in the table: a fault of ours, with the slot's story."""

    code = "invalid_transition"
    exit_code = 70


class Verb(StrEnum):
    """What a coordinator asks of an engine (`health` is asked all the time, and the samples are the actor's SDK's matter)."""

    PAUSE = "pause"
    RESUME = "resume"
    ABORT = "abort"
    LOAD = "load"
    GENERATE = "generate"
    """The canary: what it says of the head's probe, before it is given work."""
    VERSION = "version"
    RELEASE = "release"


class Cause(StrEnum):
    """What a coordinator may report of an incarnation; XCE's rules decide what follows."""

    UNHEALTHY = "unhealthy"
    HUNG = "hung"
    STALE = "stale"
    DIVERGED = "diverged"


@dataclass(frozen=True, slots=True)
class Limits:
    """The coordinator's spec, and the few fixed numbers. Milliseconds."""

    actor: str = "actor"
    rollout: str = "rollout"
    min_rollouts: int = 1
    max_staleness: int = 0
    quorum_ms: int = 60_000
    hang_ms: int = 60_000
    unhealthy_ms: int = 10_000
    sync_ms: int = 30_000
    no_progress_ms: int = 600_000
    pause: PauseMode = "wait"
    """What happens to running requests when new weights are brought."""
    probe_tolerance: float = 1e-4
    """How far the engine's log-probability of a token of a probe may be from the trainer's."""
    probe_mean_tolerance: float | None = None
    """The same for the mean over its tokens; None: not looked at."""
    suspect_after: int = 3
    """Health checks in a row that fail before nothing new is sent there."""
    hung_after: int = 3
    """Requests in a row that fail, on a rollout whose health checks succeed, before it counts as hung."""
    hop_ms: int = 5_000
    """For a verb that only flips a switch in the engine."""
    retry_ms: int = 500
    """Between a failed sync and the next try."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One slot with its present (or last) incarnation."""

    index: int
    incarnation: int
    state: RolloutState = RolloutState.STARTING
    seq: int = 0
    """The journal position of what XCE last said about it; older news is no news."""
    url: str = ""
    weights: WeightsId | None = None
    """Loaded by this incarnation, as the engine itself confirmed."""
    call: int = 0
    """The number of the verb that is on its way; 0: none. An answer with another number is too late."""
    verb: Verb | None = None
    """On its way (`call` > 0), or the next to be sent (`call` 0)."""
    audit: bool = False
    """What it has is believed of a predecessor, or of the time before its health checks failed: the engine is asked, and is not
    paused for it."""
    target: Head | None = None
    """What is being loaded."""
    sync_since_ms: int = 0
    """Since when it ought to have other weights."""
    retry_at_ms: int = 0
    failure: str = ""
    """Why the last verb failed."""
    answered: bool = False
    """The last failed verb was answered (a refusal), not met by silence."""
    diverged: bool = False
    """The last sync ended in a probe on which trainer and engine disagree."""
    health_failures: int = 0
    unhealthy_since_ms: int = 0
    request_failures: int = 0
    reported: Cause | None = None
    """Judged: it is XCE's now, and gets nothing any more."""
    earlier: str = ""
    """What was reported of an earlier incarnation, until one serves: why this slot has to come up again and again."""

    @property
    def key(self) -> tuple[int, int]:
        return (self.index, self.incarnation)

    @property
    def admits(self) -> bool:
        """May be sent new work, as far as its own state goes; `eligible` adds the weights."""
        return self.state is RolloutState.SERVING and self.reported is None

    @property
    def holds(self) -> bool:
        """May still finish running work: a separate fact, true also while it syncs or drains."""
        return self.state in HOLDING and self.reported is None

    @property
    def answers(self) -> bool:
        """Its engine is up: it can take part in a collective."""
        return self.state in ANSWERING and self.reported is None

    def move(self, state: RolloutState) -> Rollout:
        """The only way to another state; InvalidTransition for an edge that is not in the table."""
        if state is self.state:
            return self
        if state not in TRANSITIONS[self.state]:
            raise InvalidTransition(f"rollout {self.index}/{self.incarnation}: {self.state} → {state} (seq {self.seq})")
        return replace(self, state=state)

    def die(self, state: RolloutState) -> Rollout:
        """Into an end: nothing is on its way to it any more."""
        return replace(self.move(state), call=0, verb=None, target=None, weights=None, sync_since_ms=0, retry_at_ms=0)


@dataclass(frozen=True, slots=True)
class Actor:
    """The trainer."""

    incarnation: int = 0
    seq: int = 0
    alive: bool = False
    beaten: bool = False
    """This incarnation has sent a heartbeat; one that never does is never judged by its silence."""
    beat_ms: int = 0
    """Since when it is silent; 0: UNKNOWN, and nothing acts on it."""
    progress: str = ""
    progress_ms: int = 0
    reported: bool = False


@dataclass(frozen=True, slots=True)
class RLState:
    """Everything that one coordinator knows."""

    limits: Limits
    term: int = 0
    group_state: str = ""
    group_seq: int = 0
    actor: Actor = Actor()
    head: Head | None = None
    rollouts: tuple[Rollout, ...] = ()
    """By index."""
    published: Eligible = field(default_factory=Eligible)
    """What the key-value says, or will once it is written."""
    listed: bool = False
    """False until the first list: before that nothing is decided."""
    next_call: int = 1
    below_quorum_ms: int = 0
    """Since when too few are eligible though they ought to be."""
    failed: str = ""
    """The cause for which the group was failed; then nothing more is decided."""

    def rollout(self, index: int) -> Rollout | None:
        for rollout in self.rollouts:
            if rollout.index == index:
                return rollout
        return None

    def put(self, rollout: Rollout) -> RLState:
        """With this slot replaced or added."""
        others = tuple(other for other in self.rollouts if other.index != rollout.index)
        return replace(self, rollouts=tuple(sorted((*others, rollout), key=lambda r: r.index)))

    @property
    def goal(self) -> Head | None:
        """The weights that every rollout ought to have: the head, if the actor's present incarnation published it."""
        if self.head is not None and self.head.weights.actor_incarnation == self.actor.incarnation:
            return self.head
        return None


def current(state: RLState, weights: WeightsId | None) -> bool:
    """Young enough: of the actor's present incarnation, and `head − version ≤ max_staleness`."""
    goal = state.goal
    if goal is None or weights is None or weights.actor_incarnation != goal.weights.actor_incarnation:
        return False
    if weights.version == goal.weights.version:
        return weights == goal.weights
    return 0 < goal.weights.version - weights.version <= state.limits.max_staleness


def eligible(state: RLState, rollout: Rollout) -> bool:
    """Alive ∧ loaded by this incarnation ∧ of the actor's present incarnation ∧ young enough."""
    return rollout.admits and bool(rollout.url) and current(state, rollout.weights)


def verdict(state: RLState) -> Eligible:
    """What `rollouts/eligible` ought to say now. The membership version grows when its members differ from the published."""
    members = tuple(rollout.key for rollout in state.rollouts if rollout.answers)
    before = state.published
    return Eligible(
        membership_version=before.membership_version + (members != before.members),
        term=state.term,
        weights=state.goal.weights if state.goal else None,
        rollouts=tuple(
            Serving(r.index, r.incarnation, r.url, r.weights)
            for r in state.rollouts
            if r.weights is not None and eligible(state, r)
        ),
        members=members,
        holding=tuple(rollout.key for rollout in state.rollouts if rollout.holds),
    )
