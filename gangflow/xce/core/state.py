"""The state of a cluster: what is true now. Frozen; every change is an event (`events`) applied by `evolve`.

Nothing here knows a clock: each `*_ms` is the `now` of some journalled input, in milliseconds since the Unix epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gangflow.xce.core.plan import Cause, ClaimPlan, GroupPlan


class GroupState(StrEnum):
    """The life of a group; `lifecycle.GROUP` has the edges."""

    PENDING = "PENDING"
    PREPARING = "PREPARING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    DEGRADED = "DEGRADED"
    RESTARTING = "RESTARTING"
    SUSPENDING = "SUSPENDING"
    SUSPENDED = "SUSPENDED"
    STOPPING = "STOPPING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def terminal(self) -> bool:
        return self in TERMINAL


TERMINAL = frozenset({GroupState.SUCCEEDED, GroupState.FAILED, GroupState.CANCELLED})


class SlotState(StrEnum):
    """The life of a slot; `lifecycle.SLOT` has the edges."""

    PENDING = "PENDING"
    """Wants a place (never placed, or lost it); `Slot.reason` says why it waits."""
    PLACED = "PLACED"
    PREPARED = "PREPARED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    READY = "READY"
    DONE = "DONE"
    EXIT = "EXIT"
    LOST = "LOST"
    """Its host is LOST but not yet FENCED: it may still run, so its capacity is not free."""
    BACKOFF = "BACKOFF"
    DRAINING = "DRAINING"
    STOPPING = "STOPPING"
    RELEASING = "RELEASING"
    """Placed but never started; waits for its agents to confirm the unprepare."""
    RETIRED = "RETIRED"
    """Not wanted (any more): tolerated, of a member that was stopped, scaled away, or its group ended."""


class Next(StrEnum):
    """What a slot on its way down becomes, once it is confirmed gone; of a PENDING one, what it holds its places for."""

    BACKOFF = "backoff"
    """Restart by a rule: BACKOFF until `Slot.until_ms`."""
    RESTART = "restart"
    """Restart with its group: it keeps its allocation and waits for the others."""
    PLACE = "place"
    """PENDING: give the allocation back, and wait for a place."""
    RETIRE = "retire"
    END = "end"
    """The group ends: give the allocation back and keep the last exit."""
    SCALE = "scale"
    """Part of a change of targets. Going down: RETIRED and out of the target, but its allocation stays until the change takes
    it. PENDING: it holds, for the change, what it needs beyond the allocations of those that go down."""


class TaskPhase(StrEnum):
    """How far a task of the present incarnation is."""

    PLACED = "placed"
    PREPARED = "prepared"
    RUNNING = "running"
    READY = "ready"
    GONE = "gone"
    """Verified: no process of its tree is left; or it was never started and is unprepared."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How an incarnation ended. `code` is None when a signal ended it or nobody saw the end."""

    cause: Cause | None
    """None: we or a user stopped it; no rule matches."""
    incarnation: int
    at_ms: int
    code: int | None = None
    signal: int | None = None
    message: str = ""
    stderr_tail: str = ""
    """The last 20 lines."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a slot's present incarnation, with what it was allocated on its host."""

    index: int
    host: str
    counters: tuple[tuple[str, int], ...] = ()
    gpus: tuple[tuple[int, int], ...] = ()
    """(device, thousandths)."""
    ports: tuple[tuple[str, int], ...] = ()
    """(name, number)."""
    phase: TaskPhase = TaskPhase.PLACED
    token: str = ""
    """The boot of the agent that prepared it."""
    pid: int = 0
    started_ms: int = 0
    message: str = ""
    """The last error of its ready probe, while it is not ready."""
    edge: int = 0
    """The number of the newest edge of its ready probe that was taken: an older one that comes late says nothing."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A pend reason. `code` is one of `PendCode`; the text is for people, the rest for programs."""

    code: PendCode
    text: str = ""
    shortfall: tuple[tuple[str, int], ...] = ()
    """What is missing per resource in the best domain (units of `plan.Use`)."""
    domain: str = ""
    blocker: str = ""
    """The group that is ahead or holds the capacity."""
    excluded: tuple[tuple[str, int], ...] = ()
    """(constraint, number of hosts that it rules out)."""


class PendCode(StrEnum):
    """Why something waits, as one word."""

    MISCONFIGURED = "MISCONFIGURED"
    NEVER_FITS = "NEVER_FITS"
    WAITING_CAPACITY = "WAITING_CAPACITY"
    WAITING_SHAPE = "WAITING_SHAPE"
    WAITING_TOPOLOGY = "WAITING_TOPOLOGY"
    WAITING_TURN = "WAITING_TURN"
    WAITING_CLAIMS = "WAITING_CLAIMS"
    PREPARING = "PREPARING"
    BACKOFF = "BACKOFF"
    SUSPENDED = "SUSPENDED"


@dataclass(frozen=True, slots=True)
class Slot:
    """One place in a member. It holds capacity exactly while `tasks` is not empty."""

    member: str
    index: int
    state: SlotState = SlotState.PENDING
    incarnation: int = 0
    """Of the tasks that are placed or were last; 0 before the first placement. Grows, never resets."""
    epoch: int = 0
    tasks: tuple[Task, ...] = ()
    since_ms: int = 0
    until_ms: int = 0
    """The deadline of the present state (ready timeout, backoff end, first claim); 0 means none."""
    next: Next | None = None
    exit: Exit | None = None
    restarts: int = 0
    reason: Reason | None = None
    ready_ms: int = 0
    """When this incarnation was first READY; 0: it never was. Tells "never ready" from "was ready and broke"."""
    run_until_ms: int = 0
    """The end of this incarnation's runtime limit; 0: it has none, or has not been started."""
    warned: bool = False
    """Its agents delivered the warning that the runtime limit is near."""
    to_warn: tuple[int, ...] = ()
    """Tasks that are still to be given that warning."""
    out: bool = False
    """Scaled away: not in its member's target. RETIRED, or on its way there."""

    @property
    def key(self) -> tuple[str, int]:
        return (self.member, self.index)

    @property
    def live(self) -> bool:
        """Some process of it may be running."""
        return self.state in LIVE


LIVE = frozenset(
    {
        SlotState.STARTING,
        SlotState.RUNNING,
        SlotState.READY,
        SlotState.DRAINING,
        SlotState.STOPPING,
        SlotState.LOST,
    }
)


class ClaimState(StrEnum):
    """The life of a claim; `lifecycle.CLAIM` has the edges."""

    NEW = "NEW"
    PROVISIONING = "PROVISIONING"
    READY = "READY"
    FAILED = "FAILED"
    LOST = "LOST"
    RELEASING = "RELEASING"
    GONE = "GONE"


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of a group (`member` empty), of one slot, or a standalone one (`group` empty; its id is its name)."""

    id: str
    group: str
    plan: ClaimPlan
    state: ClaimState = ClaimState.NEW
    member: str = ""
    index: int = -1
    host: str = ""
    """Where it is bound; empty when it is not host-bound."""
    hosts: tuple[str, ...] = ()
    """All hosts that it is bound to, where they are several; `host` is the first."""
    path: str = ""
    """What a task sees as XCE_CLAIM_<NAME>."""
    attempt: int = 0
    since_ms: int = 0
    until_ms: int = 0
    message: str = ""
    owner: str = ""
    """Of a standalone claim."""
    made_as: str = ""
    """The id that its provider knows it by, where that is another: a retained claim was made for its group."""
    losses: int = 0
    """How often it was READY and lost: one that flaps is made again after growing pauses."""
    former: int = 0
    """The attempt that it began after: those of a standalone claim go on from claims that were forgotten, as what is said of
    one of these must never count for it."""


class ChangeState(StrEnum):
    """The life of a change of targets; `lifecycle.CHANGE` has the edges."""

    ACCEPTED = "ACCEPTED"
    DRAINING = "DRAINING"
    PLACING = "PLACING"
    DONE = "DONE"
    FAILED = "FAILED"

    @property
    def over(self) -> bool:
        return self in (ChangeState.DONE, ChangeState.FAILED)


@dataclass(frozen=True, slots=True)
class Change:
    """A durable change of a group's targets (design 3.7). At most one of a group is not over."""

    id: str
    """`c1`, `c2`, … in the group's order."""
    state: ChangeState
    targets: tuple[tuple[str, int], ...]
    """Of every member, as the change wants them."""
    before: tuple[tuple[str, int], ...] = ()
    """As they were."""
    ups: tuple[tuple[str, int], ...] = ()
    """Slots that were added and are not placed yet."""
    downs: tuple[tuple[str, int], ...] = ()
    """Slots that were taken out and still hold something."""
    grants: tuple[tuple[str, int, tuple[Task, ...]], ...] = ()
    """(member, index, tasks): where those of `ups` go that need what the downs give back; proved to fit."""
    accepted_ms: int = 0
    until_ms: int = 0
    """When it is FAILED, if it is not over by then."""
    ended_ms: int = 0
    message: str = ""
    """Why it FAILED (a newer change superseded it, a host was lost, …)."""


@dataclass(frozen=True, slots=True)
class Blame:
    """Failures of the group's slots on one host that still count towards its exclusion."""

    host: str
    at_ms: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """Restarts that one rule paid for one slot (`member`, `index`), for all (empty, -1), or by its `then` (empty, -2)."""

    rule: int
    member: str
    index: int
    spent_ms: tuple[int, ...] = ()
    first_ms: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """A submitted group."""

    id: str
    """`g1`, `g2`, … in submission order."""
    plan: GroupPlan
    state: GroupState = GroupState.PENDING
    epoch: int = 0
    """Starts of the whole group; the first release is epoch 1."""
    attempt: int = 0
    """Tries (voided placements and infrastructure restarts) since the group was last RUNNING."""
    submitted_ms: int = 0
    since_ms: int = 0
    until_ms: int = 0
    """The deadline of the present state; 0 means none."""
    slots: Mapping[tuple[str, int], Slot] = field(default_factory=dict)
    """In member order, then index."""
    targets: tuple[tuple[str, int], ...] = ()
    """Replicas wanted per member."""
    reason: Reason | None = None
    first_running_ms: int = 0
    """Was it ever satisfied; 0 means never."""
    goal: GroupState | None = None
    """The terminal state that STOPPING leads to."""
    cause: str = ""
    message: str = ""
    tolerated: tuple[tuple[str, int], ...] = ()
    """(member, index) of exits that a rule tolerated."""
    excluded: tuple[str, ...] = ()
    """Hosts that this group must not use."""
    budgets: tuple[BudgetUse, ...] = ()
    below_floor_ms: tuple[tuple[str, int], ...] = ()
    """Since when a member is below its floor."""
    coordinator_term: int = 0
    ended_ms: int = 0
    extents: tuple[tuple[str, int], ...] = ()
    """Per member, one more than the highest index that it ever had; slots that are `out` are among them."""
    changes: tuple[Change, ...] = ()
    """The newest changes of its targets, oldest first; see `limits.CHANGES_KEPT`."""
    next_change: int = 1
    stopped: tuple[str, ...] = ()
    """Members that a user stopped: not wanted until a slot of theirs is restarted by hand."""
    blames: tuple[Blame, ...] = ()


class HostState(StrEnum):
    """What is known of a host; `lifecycle.HOST` has the edges."""

    UP = "UP"
    UNKNOWN = "UNKNOWN"
    LOST = "LOST"
    FENCED = "FENCED"
    CLOSED = "CLOSED"


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a host has: its node, where it stands, its counters, its GPU and port instances."""

    name: str
    node: str = "local"
    """The machine whose agent serves it; virtual hosts of one machine share it."""
    address: str = "127.0.0.1"
    path: tuple[str, ...] = ()
    """Its domain on each level of `State.levels`, outermost first."""
    counters: tuple[tuple[str, int], ...] = ()
    """Capacity of `cpu`, `mem` and the cluster's own counters."""
    gpus: int = 0
    gpu_first: int = 0
    """The number of its first device on its node: hosts of one node have devices of their own."""
    port_first: int = 0
    port_count: int = 0
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TaskKey:
    """The identity of one start of one task: every effect and report about it is idempotent by this."""

    group: str
    epoch: int
    member: str
    index: int
    incarnation: int
    task: int

    def __str__(self) -> str:
        return f"{self.group}/{self.epoch}/{self.member}/{self.index}/{self.incarnation}/{self.task}"


@dataclass(frozen=True, slots=True)
class Host:
    """A host and its agent."""

    facts: HostFacts
    state: HostState = HostState.UP
    boot: str = ""
    """The present boot of its agent; a token of another boot prepares nothing."""
    since_ms: int = 0
    until_ms: int = 0
    """LOST: when it counts as FENCED."""
    superseded: tuple[TaskKey, ...] = ()
    """Obligations: incarnations that may still run there and must be stopped when it answers."""
    strays: tuple[str, ...] = ()
    """Tasks found there that the journal has never heard of: shown, never stopped by itself."""
    closed: str = ""
    """Why an operator closed it; empty: it is open. A closed host is CLOSED whenever it would be UP."""
    draining: bool = False
    """Closed, and what ran there was told `drained`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The remembered outcome of a command with an idempotency key."""

    digest: str
    """Of the request's body: the same key with another body is refused."""
    at_ms: int
    status: int
    body: str


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A small durable value of a group."""

    value: str
    version: int
    """1 at the first write; compare-and-set names the version that it replaces (0: must not exist)."""
    term: int = 0
    """The newest coordinator's term under which it was written; 0: by no coordinator. Then it is a coordinator's for good."""


@dataclass(frozen=True, slots=True)
class State:
    """Everything that is true of a cluster."""

    cluster_id: str = ""
    term: int = 0
    now_ms: int = 0
    grace_until_ms: int = 0
    """After a controller's start: until then no deadline passes that a report of the time of its absence would have met."""
    offer_ms: int = 0
    """Since when capacity that came back was not offered to everybody who waits, as a step holds only so many sessions; 0: it
    was. The next step goes on with that."""
    next_group: int = 1
    claim_attempts: int = 0
    """The highest attempt of any standalone claim that was forgotten: a new one begins after it."""
    levels: tuple[str, ...] = ()
    """Topology levels, outermost first."""
    hosts: Mapping[str, Host] = field(default_factory=dict)
    groups: Mapping[str, Group] = field(default_factory=dict)
    """Ended groups stay for `retention`, then are forgotten by an event."""
    claims: Mapping[str, Claim] = field(default_factory=dict)
    answers: Mapping[str, Answer] = field(default_factory=dict)
    values: Mapping[tuple[str, str], KeyValue] = field(default_factory=dict)
    """(group id, key) → value."""
