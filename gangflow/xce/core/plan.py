"""What was asked for, compiled: a submitted group as integers and plain tuples.

`gangflow.xce.admission` makes these from the pydantic specs at the border; from there on, everything that decides works on
them alone. Units: CPU in milli-CPU, memory in MiB, GPUs in thousandths, every duration in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MemberKind(StrEnum):
    """A job ends by itself; a replica set is a service of several equal slots."""

    JOB = "job"
    REPLICA_SET = "replica_set"


class Per(StrEnum):
    """What one unit of a `Use` is counted for."""

    TASK = "task"
    HOST = "host"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class Use:
    """One consumed resource: `cpu` (milli-CPU), `mem` (MiB), `gpus` (thousandths), or a counter of the cluster's own."""

    name: str
    amount: int
    per: Per = Per.TASK


@dataclass(frozen=True, slots=True)
class TaskTerm:
    """`count` tasks of one shape: a simple resreq, or one term of a compound one."""

    count: int = 1
    uses: tuple[Use, ...] = ()
    select: str = ""
    """Canonical text of the select expression; empty selects every host. Parsed (and cached) where it is evaluated."""
    order: tuple[str, ...] = ()
    """Keys in order; a leading `-` prefers the smallest."""
    one_host: bool = False
    """`span[hosts=1]`: all tasks of the term on one host."""
    ptile: int = 0
    """`span[ptile=n]`: exactly n tasks a host (the last host may have fewer); 0 means no limit."""


@dataclass(frozen=True, slots=True)
class Pack:
    """Put everything in as few domains of `level` as possible; `required` allows one domain only."""

    level: str
    required: bool = False


class ProbeKind(StrEnum):
    """How a probe asks."""

    HTTP = "http"
    TCP = "tcp"
    EXEC = "exec"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """A question that is asked of a task again and again."""

    kind: ProbeKind
    port: str = ""
    """The member's port by name (http, tcp)."""
    target: str = ""
    """The path of an http or file probe."""
    command: tuple[str, ...] = ()
    delay_ms: int = 0
    period_ms: int = 1_000
    timeout_ms: int = 1_000
    failures: int = 3
    successes: int = 1


class Access(StrEnum):
    """How a group uses a standalone claim: with others, or alone."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """A template claim: made for the group (`scope` empty) or for each slot of the member that `scope` names.

    With `uses`, nothing is made: the name stands for a standalone claim. A standalone claim's own plan has neither.
    """

    name: str
    provider: str = "directory"
    scope: str = ""
    retain: bool = False
    timeout_ms: int = 60_000
    parameters: tuple[tuple[str, str], ...] = ()
    uses: str = ""
    """The standalone claim that this name stands for; empty: a template."""
    access: Access = Access.SHARED
    """Of `uses`."""
    after: tuple[str, ...] = ()
    """Claims of the same group (by name) that must be READY before this one is made."""


class Cause(StrEnum):
    """Why a slot failed. The first row is seen on the host, the second is the machines', the third a coordinator's verdict."""

    APP_EXIT = "app_exit"
    SIGNAL = "signal"
    OOM = "oom"
    START_FAILED = "start_failed"
    NOT_READY = "not_ready"
    RUN_LIMIT = "run_limit"
    HOST_LOST = "host_lost"
    AGENT_LOST = "agent_lost"
    DRAINED = "drained"
    CLAIM_LOST = "claim_lost"
    UNHEALTHY = "unhealthy"
    HUNG = "hung"
    STALE = "stale"
    DIVERGED = "diverged"


MACHINE_CAUSES = frozenset({Cause.HOST_LOST, Cause.AGENT_LOST, Cause.DRAINED, Cause.CLAIM_LOST})
"""Losses by the machines: they do not spend a budget unless the rule says so."""
REPORTABLE_CAUSES = frozenset({Cause.UNHEALTHY, Cause.HUNG, Cause.STALE, Cause.DIVERGED})
"""What a coordinator may report about an incarnation."""


class Action(StrEnum):
    """In order of strength, weakest first: of failures that are judged together the strongest action wins."""

    TOLERATE = "tolerate"
    RESTART_MEMBER = "restart_member"
    RESTART_ROLE = "restart_role"
    RESTART_GROUP = "restart_group"
    FAIL_GROUP = "fail_group"


@dataclass(frozen=True, slots=True)
class BackoffPlan:
    """Growing pauses between tries."""

    initial_ms: int = 1_000
    factor_milli: int = 2_000
    """Growth per restart, in thousandths: no decision depends on a float."""
    max_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class RulePlan:
    """One failure rule: what it matches, what it does, how often, and what then."""

    action: Action
    member: str = ""
    """Empty matches every member."""
    slot: int = -1
    """-1 matches every slot."""
    causes: tuple[Cause, ...] = ()
    """Empty matches every cause."""
    exit_codes: tuple[int, ...] = ()
    """Only with `app_exit`; empty matches every code."""
    max_restarts: int = -1
    """Restarts allowed in `window_ms`; -1 means no limit."""
    window_ms: int = 3_600_000
    max_elapsed_ms: int = 0
    """0 means no limit."""
    backoff: BackoffPlan = BackoffPlan()
    floor: int = -1
    """Fewest ready replicas that the action may leave; -1 means none."""
    floor_grace_ms: int = 0
    count_machine_losses: bool = False
    then: Action = Action.FAIL_GROUP


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """How a task's command is run in an image: the cluster's runtime command, with its placeholders still in it."""

    image: str
    runtime: tuple[str, ...] = ()
    """Words; `{image}`, `{name}`, `{cwd}` are replaced, the words `{environment}`, `{mounts}`, `{command}` become many."""
    variable: tuple[str, ...] = ()
    """For each environment variable, in place of `{environment}`: words with `{variable}`; its value is inherited."""
    mount: tuple[str, ...] = ()
    """For each claim and each of `mounts`, in place of `{mounts}`: words with `{source}` and `{target}`."""
    mounts: tuple[tuple[str, str], ...] = ()
    """(source, target) beside the claims and the task's own folder."""
    probe: tuple[str, ...] = ()
    """How an exec probe's command is run inside: words with `{name}`, and `{command}`, which becomes many."""
    cleanup: tuple[str, ...] = ()
    """Run after its end: words with `{name}`."""


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """A named part of a group: what its slots run and need."""

    name: str
    kind: MemberKind
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    cwd: str = ""
    terms: tuple[TaskTerm, ...] = (TaskTerm(),)
    ports: tuple[str, ...] = ()
    ready: ProbePlan | None = None
    live: ProbePlan | None = None
    replicas: int = 1
    min_replicas: int = 1
    max_replicas: int = 1
    """A job has exactly one slot: all three are 1."""
    primary: bool = True
    ready_timeout_ms: int = 600_000
    grace_ms: int = 10_000
    """SIGTERM to SIGKILL."""
    pack: Pack | None = None
    pack_slot: Pack | None = None
    """`pack` keeps the member together, `pack_slot` each slot."""
    owner: str = ""
    """Who is charged, and may stop, restart and scale it; admission fills it in."""
    profile: str = ""
    """The application profile that was merged into this; shown, never decided on."""
    container: ContainerPlan | None = None
    runtime_limit_ms: int = 0
    """An incarnation may run so long from its start, then cause `run_limit`; 0 means no limit."""
    warn_before_ms: int = 0
    """So long before the end of its runtime limit it gets `warn_signal`; 0 means no warning."""
    warn_signal: int = 0
    drain_ms: int = 0
    """How long a slot that is scaled away or drained goes on, deregistered, before it is stopped."""

    @property
    def tasks(self) -> int:
        """Tasks of one slot."""
        return sum(term.count for term in self.terms)


@dataclass(frozen=True, slots=True)
class BarrierPlan:
    """Limits of a start."""

    timeout_ms: int = 600_000
    """PREPARING at most."""
    start_timeout_ms: int = 900_000
    """STARTING at most."""
    max_attempts: int = 5
    backoff: BackoffPlan = BackoffPlan()


@dataclass(frozen=True, slots=True)
class RatioPlan:
    """Binds two replica sets' targets: least ≤ targets[member] / targets[to] ≤ most, as fractions of integers."""

    member: str
    to: str
    least: tuple[int, int] = (0, 1)
    most: tuple[int, int] = (1, 0)
    """(1, 0) means no limit."""


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """Limits of runtime changes of targets."""

    ratios: tuple[RatioPlan, ...] = ()
    max_gpus: int = 0
    """GPUs (thousandths) that all targets together may ask for; 0 means no limit."""
    timeout_ms: int = 600_000
    """How long a change may take before what stands becomes the target."""


@dataclass(frozen=True, slots=True)
class ExclusionPlan:
    """When a host is excluded for the group (opt-in)."""

    after: int = 0
    """Failures of slots on one host within `window_ms`; 0 means never."""
    window_ms: int = 3_600_000
    at_most: int = 4
    """Hosts that may be excluded at a time."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A whole group, as everything that decides knows it."""

    name: str
    members: tuple[MemberPlan, ...]
    """In the order of the spec; member order decides ties."""
    claims: tuple[ClaimPlan, ...] = ()
    rules: tuple[RulePlan, ...] = ()
    """Members' own rules first, then the group's, then the defaults: first match wins."""
    barrier: BarrierPlan = BarrierPlan()
    pack: Pack | None = None
    priority: int = 50
    owner: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    termination_delay_ms: int = 0
    """How long auxiliary members go on after the last primary job ended."""
    recovery_timeout_ms: int = 600_000
    """How long a lost allocation is kept under first claim."""
    document: str = ""
    """The spec as its author gave it, as canonical JSON: shown, never decided on."""
    scale: ScalePlan = ScalePlan()
    exclusion: ExclusionPlan = ExclusionPlan()
    plain: bool = False
    """A plain job or replica set: a group of one."""

    def member(self, name: str) -> MemberPlan:
        """The member of that name; KeyError if there is none."""
        for member in self.members:
            if member.name == name:
                return member
        raise KeyError(name)
