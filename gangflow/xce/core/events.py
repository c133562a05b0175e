"""What happened: the only way in which the state changes. `evolve.apply(state, event)` is total over these.

The journal keeps them (they are the decisions), watchers read them, and recovery is nothing but applying them again.
"""

from __future__ import annotations

from dataclasses import dataclass

from gangflow.xce.core.plan import Cause, GroupPlan
from gangflow.xce.core.state import (
    Answer,
    Blame,
    BudgetUse,
    Change,
    Claim,
    Exit,
    GroupState,
    HostFacts,
    HostState,
    Next,
    Reason,
    SlotState,
    Task,
    TaskKey,
    TaskPhase,
)

# --- the cluster ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TermStarted:
    """A controller started: everything from here on is of its term."""

    cluster_id: str
    term: int
    levels: tuple[str, ...] = ()
    grace_until_ms: int = 0
    """See `State.grace_until_ms`."""


@dataclass(frozen=True, slots=True)
class HostRegistered:
    """A host's agent registered; the host is UP, or CLOSED if an operator closed it."""

    facts: HostFacts
    boot: str


@dataclass(frozen=True, slots=True)
class HostChanged:
    """Any other edge of a host: LOST, FENCED."""

    host: str
    state: HostState
    until_ms: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class HostOperated:
    """An operator closed or opened a host. `state` is what it is now: CLOSED or UP, or as it was while it does not answer."""

    host: str
    state: HostState
    closed: str = ""
    """Why; empty: it is open."""
    draining: bool = False


@dataclass(frozen=True, slots=True)
class TaskSuperseded:
    """An incarnation that may still run on a host and must be stopped there: an obligation."""

    host: str
    task: TaskKey


@dataclass(frozen=True, slots=True)
class SupersededGone:
    """An obligation is met: nothing of that incarnation is left on the host."""

    host: str
    task: TaskKey


@dataclass(frozen=True, slots=True)
class StraysSeen:
    """What an agent holds that the journal has never heard of; shown, not stopped."""

    host: str
    strays: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OfferLeft:
    """Whether capacity that came back is still to be offered to those who wait; see `State.offer_ms`."""

    since_ms: int


@dataclass(frozen=True, slots=True)
class CommandAnswered:
    """A command was answered; its outcome is remembered under its idempotency key."""

    key: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class AnswersForgotten:
    """Answers that are older than they are kept."""

    keys: tuple[str, ...]


# --- groups ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupSubmitted:
    """A group exists; it is PENDING."""

    group: str
    plan: GroupPlan


@dataclass(frozen=True, slots=True)
class GroupPlaced:
    """All-or-nothing: every required slot has its allocation from here on. The group is PREPARING."""

    group: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class BarrierReleased:
    """The commit point of a start: every required slot is PREPARED, every claim READY. The group is STARTING."""

    group: str
    epoch: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class TryVoided:
    """A start that failed before the release (or before the group was ever RUNNING): nothing of it runs on."""

    group: str
    attempt: int
    cause: str
    message: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class GroupChanged:
    """Any other edge of the group's life cycle."""

    group: str
    before: GroupState
    state: GroupState
    cause: str = ""
    message: str = ""
    goal: GroupState | None = None
    until_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReasonNoted:
    """Why a group (`member` empty) or a slot waits; None: it does not wait any more."""

    group: str
    reason: Reason | None
    member: str = ""
    index: int = -1


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    """A rule's budget as it is after a restart was paid from it."""

    group: str
    use: BudgetUse


@dataclass(frozen=True, slots=True)
class FloorCrossed:
    """A member fell below its floor (`since_ms` > 0) or is back above it (0)."""

    group: str
    member: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class HostExcluded:
    """The group must not use this host any more."""

    group: str
    host: str


@dataclass(frozen=True, slots=True)
class HostReadmitted:
    """The group may use the host again; failures there before do not count any more."""

    group: str
    host: str


@dataclass(frozen=True, slots=True)
class HostBlamed:
    """Failures of the group on a host, as they count now."""

    group: str
    blame: Blame


@dataclass(frozen=True, slots=True)
class TargetsSet:
    """The group's targets are these from here on. Slots in `added` exist and are in; those in `removed` are out."""

    group: str
    targets: tuple[tuple[str, int], ...]
    added: tuple[tuple[str, int], ...] = ()
    removed: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ChangeMoved:
    """A change of targets as it is now."""

    group: str
    change: Change


@dataclass(frozen=True, slots=True)
class MemberStopped:
    """A user stopped a member (`stopped`), or restarted something of it."""

    group: str
    member: str
    stopped: bool = True


@dataclass(frozen=True, slots=True)
class FailureJudged:
    """What a rule decided about a failure, for people and traces."""

    group: str
    member: str
    index: int
    incarnation: int
    cause: Cause
    rule: int
    action: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class CoordinatorStarted:
    """A coordinator took over the group; older terms are fenced."""

    group: str
    term: int


@dataclass(frozen=True, slots=True)
class ValueWritten:
    """A durable value was set."""

    group: str
    name: str
    value: str
    version: int
    term: int = 0
    """See `KeyValue.term`."""


@dataclass(frozen=True, slots=True)
class GroupForgotten:
    """An ended group leaves the state (its records stay in the journal)."""

    group: str


# --- slots ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotPlaced:
    """A new incarnation has its allocation."""

    group: str
    member: str
    index: int
    incarnation: int
    epoch: int
    tasks: tuple[Task, ...]
    until_ms: int = 0


@dataclass(frozen=True, slots=True)
class SlotChanged:
    """An edge of a slot's life cycle. It keeps its allocation unless `freed`."""

    group: str
    member: str
    index: int
    incarnation: int
    before: SlotState
    state: SlotState
    next: Next | None = None
    until_ms: int = 0
    message: str = ""
    freed: bool = False
    """Its capacity returns with this event."""
    exit: Exit | None = None
    """How the incarnation that is being stopped failed, when that is why it is stopped."""
    run_until_ms: int = 0
    """With STARTING: the end of its runtime limit."""


@dataclass(frozen=True, slots=True)
class SlotHeld:
    """A PENDING slot of a change holds these units (`Next.SCALE`) until the change can place it."""

    group: str
    member: str
    index: int
    tasks: tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class SlotWarned:
    """The incarnation's runtime limit is near: its tasks in `left` are still to be told; when none is left, it was told."""

    group: str
    member: str
    index: int
    incarnation: int
    left: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SlotExited:
    """The incarnation is over and confirmed gone: DONE or EXIT, with how it ended."""

    group: str
    member: str
    index: int
    incarnation: int
    before: SlotState
    state: SlotState
    exit: Exit
    next: Next | None = None
    until_ms: int = 0
    freed: bool = False


@dataclass(frozen=True, slots=True)
class TaskMoved:
    """One task's phase changed: prepared (with a token), running (with a pid), ready, gone."""

    task: TaskKey
    host: str
    phase: TaskPhase
    token: str = ""
    pid: int = 0
    message: str = ""
    """The last error of its ready probe."""
    edge: int = 0
    """Of a probe's edge: its number."""


# --- claims ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimChanged:
    """The claim as it is now (made, provisioning, ready, failed, releasing, gone)."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class ClaimForgotten:
    """A standalone claim that is GONE leaves the state: its name is free."""

    claim: str


Event = (
    TermStarted
    | HostRegistered
    | HostChanged
    | TaskSuperseded
    | SupersededGone
    | StraysSeen
    | CommandAnswered
    | AnswersForgotten
    | GroupSubmitted
    | GroupPlaced
    | BarrierReleased
    | TryVoided
    | GroupChanged
    | ReasonNoted
    | BudgetSpent
    | FloorCrossed
    | HostExcluded
    | FailureJudged
    | CoordinatorStarted
    | ValueWritten
    | GroupForgotten
    | SlotPlaced
    | SlotChanged
    | SlotExited
    | TaskMoved
    | ClaimChanged
    | HostOperated
    | HostReadmitted
    | HostBlamed
    | TargetsSet
    | ChangeMoved
    | MemberStopped
    | SlotHeld
    | SlotWarned
    | ClaimForgotten
    | OfferLeft
)
