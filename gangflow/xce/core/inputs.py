"""What the machine is told: commands (they get a reply), reports of agents and providers, and time.

An input is journalled before it acts. It carries no time of its own: the `now_ms` of its batch is the only clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from gangflow.xce.core.plan import Cause, ClaimPlan, GroupPlan
from gangflow.xce.core.state import GroupState, HostFacts, TaskKey


@dataclass(frozen=True, slots=True)
class Request:
    """Who asks, and under which idempotency key. Part of every command."""

    key: str = ""
    """Idempotency key; empty: not remembered."""
    digest: str = ""
    """Of the request's method, path, query and body."""
    term: int = 0
    """A coordinator's term; 0: not a coordinator. An older term than the group's is refused (`fenced`)."""
    actor: str = ""
    """For the record: admin, owner, or the slot whose token was used."""


# --- commands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SubmitGroup:
    """A new group. Answers 201 with `id`; 409 `conflict` with the `id` of the live group that has its name."""

    plan: GroupPlan
    request: Request = Request()


@dataclass(frozen=True, slots=True)
class EndGroup:
    """Tear the group down to `goal` (CANCELLED by DELETE, FAILED by a coordinator or an operator). Answers `id`, `state`."""

    group: str
    goal: GroupState
    cause: str = ""
    message: str = ""
    request: Request = Request()


@dataclass(frozen=True, slots=True)
class ReportSlot:
    """A coordinator's verdict on an incarnation; the rules decide. Answers `id`, `incarnation`.

    Not the newest incarnation: 409 `superseded`, with the newest `incarnation`.
    """

    group: str
    member: str
    index: int
    incarnation: int
    cause: Cause
    message: str = ""
    request: Request = Request()


@dataclass(frozen=True, slots=True)
class RestartSlot:
    """An operator's restart, outside rules and budgets; also brings a RETIRED slot back. Answers `id`, `incarnation`."""

    group: str
    member: str
    index: int
    incarnation: int
    request: Request = Request()


@dataclass(frozen=True, slots=True)
class TakeCoordination:
    """A coordinator starts: the reply carries the group's next coordinator term."""

    group: str
    request: Request = Request()


@dataclass(frozen=True, slots=True)
class PutValue:
    """Compare-and-set of a small durable value; `expect` is the version that it replaces (0: must not exist; -1: any).

    Answers `version`; 409 `conflict` with the `version` that it has.
    """

    group: str
    name: str
    value: str
    expect: int = -1
    writer: TaskKey | None = None
    """Of a task's token: a superseded one is refused."""
    request: Request = Request()


@dataclass(frozen=True, slots=True)
class SuspendGroup:
    """Give everything back and wait for a resume: SUSPENDING until all is gone, then SUSPENDED. Answers `id`, `state`."""

    group: str
    message: str = ""
    request: Request = Request()


@dataclass(frozen=True, slots=True)
class ResumeGroup:
    """A SUSPENDED group waits for a place again, with its first submission time. Answers `id`, `state`."""

    group: str
    request: Request = Request()


@dataclass(frozen=True, slots=True)
class RestartGroup:
    """An operator's restart of a started group, outside rules and budgets: RESTARTING. Answers `id`, `state`."""

    group: str
    message: str = ""
    request: Request = Request()


@dataclass(frozen=True, slots=True)
class StopMember:
    """Stop one member for good; the rest of the group goes on. Answers `id`, `member`."""

    group: str
    member: str
    request: Request = Request()


@dataclass(frozen=True, slots=True)
class ScaleGroup:
    """Other targets for some replica sets: one durable change. Answers 202 with `id`, `change` (empty: nothing changed)."""

    group: str
    targets: tuple[tuple[str, int], ...]
    timeout_ms: int = 0
    """0: the group's own."""
    request: Request = Request()


@dataclass(frozen=True, slots=True)
class DrainSlot:
    """Drain and stop one incarnation, cause `drained`; the rules decide what follows. Answers `id`, `incarnation`."""

    group: str
    member: str
    index: int
    incarnation: int
    request: Request = Request()


@dataclass(frozen=True, slots=True)
class LiftExclusion:
    """The group may use an excluded host again. Answers `id`, `host`."""

    group: str
    host: str
    request: Request = Request()


@dataclass(frozen=True, slots=True)
class CloseHost:
    """No new work there; with `drain`, what runs there is told `drained`, too. Answers `host`, `state`."""

    host: str
    drain: bool = False
    message: str = ""
    request: Request = Request()


@dataclass(frozen=True, slots=True)
class OpenHost:
    """New work may go there again. Answers `host`, `state`."""

    host: str
    request: Request = Request()


@dataclass(frozen=True, slots=True)
class CreateClaim:
    """A standalone claim; its plan's name is its id. Answers 201 with `id`."""

    plan: ClaimPlan
    owner: str = ""
    request: Request = Request()


@dataclass(frozen=True, slots=True)
class DeleteClaim:
    """Release a standalone claim that no live group uses (409 `in_use` names those that do). Answers `id`."""

    claim: str
    request: Request = Request()


# --- reports: of agents, providers and the watcher of leases -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartTerm:
    """A controller starts on this journal. The first one also names the cluster."""

    cluster_id: str
    levels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostUp:
    """An agent registered (or came back), with what runs there. `boot` changes when the agent restarts."""

    facts: HostFacts
    boot: str
    inventory: tuple[TaskKey, ...] = ()
    """Tasks that it holds, prepared or running, of this cluster_id."""


@dataclass(frozen=True, slots=True)
class HostGone:
    """The verdict that a host is dead: LOST now, FENCED (its capacity reusable) `fence_ms` later."""

    host: str
    fence_ms: int = 0
    agent_only: bool = False
    """The agent crashed with its host up: cause `agent_lost`."""


@dataclass(frozen=True, slots=True)
class TaskPrepared:
    """The agent accepted the task, in its boot `token`."""

    task: TaskKey
    host: str
    token: str


@dataclass(frozen=True, slots=True)
class TaskRefused:
    """The agent cannot prepare it (executable missing, port taken, …) and holds nothing of it."""

    task: TaskKey
    host: str
    message: str
    permanent: bool = False
    """Would be refused on every try (a missing executable), unlike a port that somebody else took."""


@dataclass(frozen=True, slots=True)
class TaskUnprepared:
    """Nothing of it is prepared any more."""

    task: TaskKey
    host: str


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """Its process runs."""

    task: TaskKey
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class TaskReady:
    """Its ready probe succeeded (edge)."""

    task: TaskKey
    host: str
    edge: int = 0
    """Counts the edges of this task's probe, from 1: one that is not newer than what was taken changes nothing. 0: unknown."""


@dataclass(frozen=True, slots=True)
class TaskUnready:
    """Its ready probe fails again (edge), or fails in another way."""

    task: TaskKey
    host: str
    message: str = ""
    edge: int = 0
    """See `TaskReady.edge`."""


@dataclass(frozen=True, slots=True)
class TaskExited:
    """It ended, and every process of its tree is verified gone. `cause` None: code 0, or stopped as we asked."""

    task: TaskKey
    host: str
    cause: Cause | None = None
    code: int | None = None
    signal: int | None = None
    message: str = ""
    stderr_tail: str = ""


@dataclass(frozen=True, slots=True)
class TaskWarned:
    """The warning that its runtime limit is near was delivered (or it had ended)."""

    task: TaskKey
    host: str


@dataclass(frozen=True, slots=True)
class ClaimReady:
    """The provider made it."""

    claim: str
    attempt: int
    path: str
    host: str = ""
    hosts: tuple[str, ...] = ()
    """All hosts that it exists on, where they are several; `host` is the first."""


@dataclass(frozen=True, slots=True)
class ClaimFailed:
    """The provider could not make it."""

    claim: str
    attempt: int
    message: str


@dataclass(frozen=True, slots=True)
class ClaimReleased:
    """Nothing of it is left, or it was handed over for good."""

    claim: str
    attempt: int = 0
    """What was made in this attempt, the claim's last; 0: whatever it was."""


@dataclass(frozen=True, slots=True)
class ClaimLost:
    """Its provider found that what it made (in this attempt) is not there, or not whole, any more."""

    claim: str
    attempt: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing but time. One that changes nothing is not journalled."""


Command = (
    SubmitGroup
    | EndGroup
    | ReportSlot
    | RestartSlot
    | TakeCoordination
    | PutValue
    | SuspendGroup
    | ResumeGroup
    | RestartGroup
    | StopMember
    | ScaleGroup
    | DrainSlot
    | LiftExclusion
    | CloseHost
    | OpenHost
    | CreateClaim
    | DeleteClaim
)
Report = (
    StartTerm
    | HostUp
    | HostGone
    | TaskPrepared
    | TaskRefused
    | TaskUnprepared
    | TaskStarted
    | TaskReady
    | TaskUnready
    | TaskExited
    | ClaimReady
    | ClaimFailed
    | ClaimReleased
    | TaskWarned
    | ClaimLost
    | Tick
)
Input = Command | Report


@dataclass(frozen=True, slots=True)
class Reply:
    """The outcome of a command. `code` is stable: `ok`, `not_found`, `superseded`, `fenced`, `conflict`, `invalid`, …"""

    status: int = 200
    code: str = "ok"
    message: str = ""
    fields: tuple[tuple[str, str | int], ...] = ()
    """What it answers with: the group's id, a term, a version."""

    @property
    def ok(self) -> bool:
        return self.status < 400
