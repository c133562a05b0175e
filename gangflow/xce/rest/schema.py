"""What is shown, as pydantic models (`messages` has the commands). All calls are under `/v1`.

Every GET answer has `seq`, the journal position that it shows. Views ignore keys that they do not know, so that an older
client reads a newer server; request bodies forbid them. Times are milliseconds since the Unix epoch (0: never), CPU in
milli-CPU, memory in MiB, GPUs in thousandths.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

API = "/v1"
TERM_HEADER = "XCE-Term"
"""A coordinator's term, with every call of it."""
KEY_HEADER = "Idempotency-Key"
DELEGATION_HEADER = "XCE-Delegation"
"""Delegation tokens, separated by commas: the owners whom a submission may name beside the caller."""
HEARTBEAT_BYTES = 4_096
VALUE_BYTES = 65_536
"""Of one key-value: small facts, not data."""


class View(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Body(BaseModel):
    """A request body: an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# --- groups ---------------------------------------------------------------------------------------------------------


class ReasonView(View):
    """Why a group or a slot waits. `code` is stable (`PendCode`); the text is for people."""

    code: str
    text: str = ""
    shortfall: dict[str, int] = {}
    """What is missing per resource in the best domain."""
    domain: str = ""
    blocker: str = ""
    """The group that is ahead, or that holds the capacity."""
    excluded: dict[str, int] = {}
    """Constraint → number of hosts that it rules out."""


class ExitView(View):
    """How an incarnation ended; `cause` is None when it was stopped on purpose or ended with code 0."""

    cause: str | None = None
    incarnation: int
    at_ms: int
    code: int | None = None
    signal: int | None = None
    message: str = ""
    stderr_tail: str = ""


class GpuView(View):
    """A share of one GPU."""

    device: int
    milli: int
    """Thousandths of the device."""


class TaskView(View):
    """One process tree of a slot's present incarnation, with its allocation."""

    index: int
    host: str
    address: str
    phase: str
    pid: int = 0
    ports: dict[str, int] = {}
    gpus: tuple[GpuView, ...] = ()
    counters: dict[str, int] = {}
    started_ms: int = 0


class SlotView(View):
    """One place in a member, with its present (or last) incarnation."""

    id: str = ""
    """`g1.rollout[2]`; the group's name may stand for its id."""
    member: str
    index: int
    state: str
    lsf: str
    """LSF's word for the state: PEND, RUN, DONE, EXIT, UNKWN."""
    incarnation: int
    epoch: int
    hosts: tuple[str, ...] = ()
    """In task order, without repeats."""
    tasks: tuple[TaskView, ...] = ()
    addresses: dict[str, tuple[str, ...]] = {}
    """Port name → `ip:number` of each task, in task order."""
    since_ms: int = 0
    until_ms: int = 0
    """The deadline of the present state; 0: none."""
    ready_ms: int = 0
    """When this incarnation was first READY; 0: never."""
    restarts: int = 0
    reason: ReasonView | None = None
    exit: ExitView | None = None
    run_until_ms: int = 0
    """The end of this incarnation's runtime limit; 0: none."""
    warned: bool = False
    """It was told that its runtime limit is near."""
    out: bool = False
    """Scaled away: not in its member's target."""


class MemberView(View):
    """A job or a replica set of a group."""

    id: str = ""
    """`g1.rollout`; the group's name may stand for its id."""
    name: str
    kind: str
    """`job` or `replica_set`."""
    owner: str = ""
    """Who is charged for it, and may stop, restart, scale and drain it and read its logs."""
    profile: str = ""
    """The application profile that was merged into it."""
    container: str = ""
    """The image that it runs in; empty: none."""
    stopped: bool = False
    """A user stopped it: it is not wanted until a slot of it is restarted by hand."""
    runtime_limit_ms: int = 0
    """How long an incarnation may run; 0: no limit."""
    warn_before_ms: int = 0
    drain_ms: int = 0
    """How long a slot that is scaled away or drained goes on, deregistered."""
    primary: bool
    target: int
    """Slots that are wanted."""
    min: int
    max: int
    ready: int
    """Slots that count as satisfied now: READY ones; of a job, RUNNING and DONE ones too."""
    restarts: int
    slots: tuple[SlotView, ...] = ()


class ClaimView(View):
    """A claim of a group or of one slot, or a standalone one."""

    seq: int = 0
    """Only where it is the whole answer."""
    id: str
    group: str
    """Empty: it is standalone."""
    name: str
    """As its group calls it; of a standalone one, its id."""
    standalone: bool = False
    owner: str = ""
    """Whose it is: a group's claim is its owner's."""
    access: str = ""
    """How the group that is shown uses a standalone claim: `shared` or `exclusive`."""
    holders: tuple[str, ...] = ()
    """Groups that hold a standalone claim now (of those that the caller may see)."""
    provider: str
    state: str
    path: str = ""
    host: str = ""
    """Where it is bound; empty when it is not host-bound."""
    member: str = ""
    """Of a slot's claim; empty for a group's."""
    index: int = -1
    retain: bool = False
    attempt: int = 0
    losses: int = 0
    """How often it was READY and lost again."""
    since_ms: int = 0
    until_ms: int = 0
    message: str = ""


class SlotName(View):
    """Which slot."""

    member: str
    index: int


class ChangeView(View):
    """A durable change of a group's targets: ACCEPTED → DRAINING → PLACING → DONE or FAILED."""

    seq: int = 0
    """Only where it is the whole answer."""
    group: str
    id: str
    """`c1`, `c2`, … in the group's order."""
    state: str
    targets: dict[str, int]
    """Per member, as the change wants them."""
    before: dict[str, int] = {}
    ups: tuple[SlotName, ...] = ()
    """Slots that were added and are not placed yet."""
    downs: tuple[SlotName, ...] = ()
    """Slots that were taken out and still hold something."""
    accepted_ms: int = 0
    until_ms: int = 0
    """When it is FAILED, if it is not over by then."""
    ended_ms: int = 0
    message: str = ""
    """Why it FAILED."""

    @property
    def over(self) -> bool:
        """It is DONE or FAILED."""
        return self.state in ("DONE", "FAILED")


class GroupView(View):
    """One group: what it is, what it does and why."""

    seq: int
    id: str
    name: str
    owner: str
    state: str
    lsf: str
    epoch: int
    attempt: int
    """Tries (voided placements, infrastructure restarts) since it was last RUNNING."""
    cause: str = ""
    message: str = ""
    priority: int
    reason: ReasonView | None = None
    submitted_ms: int
    since_ms: int
    until_ms: int
    first_running_ms: int
    ended_ms: int
    satisfied_now: bool
    satisfied_once: bool
    goal: str | None = None
    """The terminal state that STOPPING leads to."""
    tolerated: tuple[SlotName, ...] = ()
    """Exits that a rule tolerated."""
    excluded: tuple[str, ...] = ()
    """Hosts that this group must not use."""
    stopped: tuple[str, ...] = ()
    """Members that a user stopped."""
    changes: tuple[ChangeView, ...] = ()
    """The newest changes of its targets, oldest first."""
    plain: bool = False
    """A plain job or replica set: a group of one."""
    coordinator_term: int = 0
    now_ms: int = 0
    """The controller's clock when it answered, for the ages of things; only in the detail."""
    document: dict[str, Any] | None = None
    """The spec as submitted; only in the detail."""
    members: tuple[MemberView, ...] = ()
    claims: tuple[ClaimView, ...] = ()

    @property
    def terminal(self) -> bool:
        """It has ended: SUCCEEDED, FAILED or CANCELLED."""
        return self.ended_ms > 0

    def member(self, name: str) -> MemberView:
        """The member of that name; KeyError if there is none."""
        for member in self.members:
            if member.name == name:
                return member
        raise KeyError(name)

    def slot(self, member: str, index: int) -> SlotView:
        """One slot; KeyError if there is none."""
        for slot in self.member(member).slots:
            if slot.index == index:
                return slot
        raise KeyError(f"{member}[{index}]")


class ChangeList(View):
    """A group's changes that are still kept, oldest first."""

    seq: int
    changes: tuple[ChangeView, ...]
    next: str | None = None


class GroupList(View):
    """A page of groups, in submission order."""

    seq: int
    groups: tuple[GroupView, ...]
    next: str | None = None
    """`cursor` of the next page; None on the last one."""


class HostReason(View):
    """What one host lacks for a waiting slot."""

    host: str
    member: str
    index: int = -1
    text: str
    candidate: bool
    """It satisfies every constraint but free capacity."""


class WhyView(View):
    """The pend reason of a group, as `bjobs -p0..3` shows one."""

    seq: int
    id: str
    name: str
    state: str
    level: int
    position: int = 0
    """Place in the queue, from 1; 0: it does not wait for a place."""
    reason: ReasonView | None = None
    too_large: str = ""
    """What is missing even with nothing else running, and what could change that: then nobody is its blocker."""
    slots: tuple[SlotView, ...] = ()
    """Slots that wait on their own."""
    hosts: tuple[HostReason, ...] = ()
    """From level 2: candidate hosts; level 3: all hosts."""
    lines: tuple[str, ...] = ()
    """The same, for people."""


class QueueItem(View):
    """A group that waits for a place."""

    position: int
    id: str
    name: str
    owner: str
    priority: int
    submitted_ms: int
    reason: ReasonView | None = None


class QueueView(View):
    """Groups that wait for a place, in the order in which they are tried."""

    seq: int
    groups: tuple[QueueItem, ...]
    next: str | None = None


class ClaimList(View):
    """A page of claims."""

    seq: int
    claims: tuple[ClaimView, ...]
    next: str | None = None


# --- hosts ----------------------------------------------------------------------------------------------------------


class Quantity(View):
    """A counter of a host."""

    total: int
    used: int


class HeldSlot(View):
    """What a slot holds on a host."""

    group: str
    member: str
    index: int
    tasks: int
    running: int


class HostView(View):
    """A host, with what it has and who holds it."""

    name: str
    node: str
    state: str
    lsf: str
    """bhosts' word: ok, unavail, unreach, closed."""
    address: str
    domains: dict[str, str] = {}
    counters: dict[str, Quantity] = {}
    """With `gpus` in thousandths and `ports`."""
    attributes: dict[str, str] = {}
    slots: tuple[HeldSlot, ...] = ()
    superseded: tuple[str, ...] = ()
    """Incarnations that may still run there and must be stopped when it answers."""
    strays: tuple[str, ...] = ()
    """Tasks found there that the journal has never heard of."""
    closed: str = ""
    """Why an operator closed it; empty: it is open."""
    draining: bool = False
    """It was closed, and what ran there was told to leave."""
    since_ms: int = 0
    until_ms: int = 0


class HostList(View):
    """A page of hosts, in the order of the cluster description."""

    seq: int
    hosts: tuple[HostView, ...]
    next: str | None = None


# --- owners ---------------------------------------------------------------------------------------------------------


class OwnerView(View):
    """What an owner's members hold now: a member is charged to its own owner, whosever group it is in."""

    owner: str
    groups: int
    """Live groups of theirs."""
    members: int
    """Live members of theirs, in anybody's groups."""
    slots: int
    """Slots that hold something."""
    held: dict[str, int] = {}
    """`cpu` (milli-CPU), `mem` (MiB), `gpus` (thousandths), `ports`, and the cluster's own counters."""
    claims: int = 0
    """Standalone claims."""


class OwnerList(View):
    """A page of owners, by name."""

    seq: int
    owners: tuple[OwnerView, ...]
    next: str | None = None
