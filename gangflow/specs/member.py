"""Members: a job (ends by itself) or a replica set (a service of equal copies)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, ValidationInfo, model_validator

from gangflow.specs.base import Flag, Name, Owner, Spec, Text, Variable, Whole, Word, check, tag_of, unwrap, wrap, wrong
from gangflow.specs.claims import Claim
from gangflow.specs.container import MOUNTABLE, AnyContainer, mountable
from gangflow.specs.failure import FailureRule
from gangflow.specs.faults import Fault, nearest
from gangflow.specs.probes import AnyProbe, HttpProbe, TcpProbe
from gangflow.specs.quantity import Cpu, Duration, Gpu, Memory, render_duration
from gangflow.specs.warning import RunWarning

MAX_REPLICAS = 100_000
MAX_TASKS = 100_000
RESERVED = ("cpu", "mem", "gpus", "ngpus_physical")
"""Resources with a meaning of their own: no counter or attribute may be called so."""


class Pack(Spec):
    """As few domains of `level` as possible; `required` allows one only."""

    positional: ClassVar[tuple[str, ...]] = ("level",)
    not_yet: ClassVar[dict[str, str]] = {"spread": "spreading over domains", "near": "placement near another member"}

    level: Word
    """A topology level of the cluster; checked at admission."""
    required: Flag = False
    """One domain only: else wait."""

    if TYPE_CHECKING:

        def __init__(self, level: str, *, required: bool = False) -> None: ...


class Resources(Spec):
    """What each task needs. What is left out is not asked for: such a task fits on any host."""

    cpu: Cpu | None = None
    """Cores, also parts of one."""
    mem: Memory | None = None
    """Reserved on the host, not enforced in the process."""
    gpus: Gpu | None = None
    """Devices; a fraction stays on one."""
    counters: dict[Word, Annotated[Whole, Field(ge=1, le=10**12)]] = Field(default_factory=dict)
    """The cluster's own counters, by name."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        keys = {"ngpus_physical": "gpus"}
        check(
            [
                Fault(("counters", name), amount, f"no `{name}` here: it goes beside `counters`, as `{keys.get(name, name)}`")
                for name, amount in self.counters.items()
                if name in RESERVED
            ]
        )
        return self


def _command(value: object) -> object:
    if isinstance(value, str):
        raise wrong("a list of words, the program first: [python, train.py]")
    return value


def _resreq(value: str) -> str:
    from gangflow.specs.resreq import check_resreq  # lark only where a resreq is used

    return check_resreq(value)


LATER = {
    "spread": "spreading over domains",
    "near": "placement near another member",
    "preemptible": "preemption",
}
ELSEWHERE = {
    "ratio": "beside `members`, as a key of the group",
    "scale": "beside `members`, as a key of the group",
    "priority": "beside `members`, as a key of the group",
    "exclude_host_after": "into the group's `recovery`",
}
UNCHECKED = "unchecked"
"""In the context of a validation: of fields only, as some were left out (`partly`)."""
READY_TIMEOUT_MS = 600_000
GRACE_MS = 10_000
"""What holds where neither the member nor its profile says anything."""


class Member(Spec):
    """What a job and a replica set have in common."""

    tag: ClassVar[str] = ""
    positional: ClassVar[tuple[str, ...]] = ("command",)
    not_yet: ClassVar[dict[str, str]] = LATER
    elsewhere: ClassVar[dict[str, str]] = ELSEWHERE

    command: Annotated[tuple[Text, ...], BeforeValidator(_command), Field(min_length=1)]
    """Program and arguments, run without a shell."""
    owner: Owner | None = None
    """Who is charged for it, and may stop, restart and scale it; the group's owner when left out."""
    profile: Name | None = None
    """An application profile of the cluster: what the member leaves out is taken from there."""
    container: AnyContainer | None = None
    """The image that the command runs in."""
    tasks: Annotated[Whole, Field(ge=1, le=MAX_TASKS)] | None = None
    """Processes of one slot, each perhaps on a host of its own; 1 when neither this nor the resreq says more."""
    resources: Resources | None = None
    """Per task. Either this or `resreq`."""
    resreq: Annotated[Text, AfterValidator(_resreq)] | None = None
    """LSF's resource requirement string."""
    ports: tuple[Name, ...] = ()
    """Each task gets one number for each, as `XCE_PORT_<NAME>`."""
    environment: dict[Variable, Text] = Field(default_factory=dict)
    """Wins over the group's and the profile's; XCE's own variables win over all."""
    cwd: Text = ""
    """Working directory; empty: a folder of the task's own."""
    ready: AnyProbe | None = None
    """Without one, a slot is READY as soon as it runs."""
    live: AnyProbe | None = None
    """Its failure ends the incarnation (cause `unhealthy`)."""
    ready_timeout: Duration | None = None
    """From the start to READY, else cause `not_ready`; 10 minutes when left out."""
    termination_grace: Duration | None = None
    """From SIGTERM to SIGKILL; 10 seconds when left out."""
    runtime_limit: Annotated[Duration, Field(ge=1)] | None = None
    """An incarnation may run so long from its start, then cause `run_limit`; no limit when left out."""
    warning: RunWarning | None = None
    """A signal before the end of `runtime_limit`."""
    drain: Duration | None = None
    """How long a slot that is scaled away or drained goes on, without new work, before it is stopped; 0 when left out."""
    on_failure: tuple[FailureRule, ...] = ()
    """Rules for this member, before those of the group."""
    pack: Pack | None = None
    """The whole member."""
    pack_slot: Pack | None = None
    """Each slot by itself."""
    claims: tuple[Claim, ...] = ()
    """Made for each slot."""

    @classmethod
    def checks(cls) -> tuple[Callable[[Any], Iterable[Fault]], ...]:
        """What must go together in it: each is told by itself, also where others cannot be asked (`partly`)."""
        return (
            _port_faults,
            probe_faults,
            lambda member: _claim_faults(member.claims),
            _resource_faults,
            _program_faults,
            lambda member: limit_faults(member) if member.profile is None else [],
            lambda member: container_faults(member) if member.profile is None else [],
        )

    @model_validator(mode="after")
    def _consistent(self, info: ValidationInfo) -> Self:
        if not (info.context or {}).get(UNCHECKED):
            check([fault for each in self.checks() for fault in each(self)])
        return self


class Job(Member):
    """A batch job: ends by itself, DONE with code 0, else EXIT."""

    tag: ClassVar[str] = "job"

    primary: Flag = True
    """The group ends with its primary jobs; the others are auxiliary."""

    if TYPE_CHECKING:

        def __init__(self, command: Sequence[str], **fields: Any) -> None: ...


class ReplicaSet(Member):
    """A service: `replicas` copies, each a slot of its own that does not end by itself."""

    tag: ClassVar[str] = "replica_set"

    replicas: Annotated[Whole, Field(ge=0, le=MAX_REPLICAS)] = 1
    """How many slots are wanted: the first target."""
    min_replicas: Annotated[Whole, Field(ge=0, le=MAX_REPLICAS)] | None = None
    """Required for the start, and the floor afterwards; `replicas` when left out."""
    max_replicas: Annotated[Whole, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """`replicas` when left out."""
    primary: Flag = False
    """Always false: a service does not end by itself."""

    if TYPE_CHECKING:

        def __init__(self, command: Sequence[str], **fields: Any) -> None: ...

    @property
    def least(self) -> int:
        """`min_replicas`, or what it defaults to."""
        return self.replicas if self.min_replicas is None else self.min_replicas

    @property
    def most(self) -> int:
        """`max_replicas`, or what it defaults to."""
        return max(self.replicas, 1) if self.max_replicas is None else self.max_replicas

    @classmethod
    def checks(cls) -> tuple[Callable[[Any], Iterable[Fault]], ...]:
        """As of any member, and its bounds."""
        return (*super().checks(), _never_primary, _least_faults, _most_faults)


AnyMember = Annotated[
    Annotated[Job, unwrap("job"), wrap("job"), Tag("job")]
    | Annotated[ReplicaSet, unwrap("replica_set"), wrap("replica_set"), Tag("replica_set")],
    Discriminator(tag_of("job", "replica_set")),
]
"""A member of either kind; a document writes `{job: {…}}` or `{replica_set: {…}}`."""


def _program_faults(member: Member) -> list[Fault]:
    return [] if member.command[0] else [Fault(("command", 0), "", "a program")]


def _never_primary(member: ReplicaSet) -> list[Fault]:
    expected = "false: a replica set does not end by itself, so it is never primary"
    return [Fault(("primary",), True, expected)] if member.primary else []


def _least_faults(member: ReplicaSet) -> list[Fault]:
    if member.least <= member.replicas:
        return []
    return [Fault(("min_replicas",), member.min_replicas, f"at most `replicas`, {member.replicas}")]


def _most_faults(member: ReplicaSet) -> list[Fault]:
    if member.most >= member.replicas:
        return []
    return [Fault(("max_replicas",), member.max_replicas, f"at least `replicas`, {member.replicas}")]


def _port_faults(member: Member) -> list[Fault]:
    return [
        Fault(("ports", index), port, "a port of another name: this one is taken")
        for index, port in enumerate(member.ports)
        if port in member.ports[:index]
    ]


def probe_faults(member: Member) -> list[Fault]:
    """Probes that ask a port which the member does not have."""
    faults = []
    for key in ("ready", "live"):
        probe = getattr(member, key)
        if isinstance(probe, (HttpProbe, TcpProbe)) and probe.port not in member.ports:
            known = "one of the member's ports: " + (", ".join(member.ports) or "it has none")
            faults.append(Fault((key, probe.tag, "port"), probe.port, known, nearest(probe.port, member.ports)))
    return faults


def limit_faults(member: Member) -> list[Fault]:
    """A warning needs a limit that is longer than what it warns of. Of a member whose profile is merged in."""
    warning, limit = member.warning, member.runtime_limit
    if warning is None:
        return []
    if limit is None:
        return [Fault(("warning",), render_duration(warning.before), "a `runtime_limit` beside it: it warns of nothing else")]
    if warning.before >= limit:
        expected = f"less than `runtime_limit`, {render_duration(limit)}"
        return [Fault(("warning", "before"), render_duration(warning.before), expected)]
    return []


def container_faults(member: Member) -> list[Fault]:
    """What a container needs of the rest of a member. Of a member whose profile is merged in."""
    if member.container is None:
        return []
    faults = []
    if member.cwd and not mountable(member.cwd):
        faults.append(Fault(("cwd",), member.cwd, f"{MOUNTABLE}: it is mounted into the container under the same"))
    if member.warning is not None and member.warning.signal == "SIGURG":
        # Podman and Docker are written in Go, which sends SIGURG to itself all the time: they do not pass it on.
        expected = "another signal: container runtimes keep SIGURG for themselves"
        faults.append(Fault(("warning", "signal"), member.warning.signal, expected))
    return faults


def _claim_faults(claims: Sequence[Claim]) -> list[Fault]:
    names = [claim.name for claim in claims]
    return [
        Fault(("claims", index, "name"), name, "a claim of another name: this one is taken")
        for index, name in enumerate(names)
        if name in names[:index]
    ]


def _resource_faults(member: Member) -> list[Fault]:
    if member.resreq is None:
        return []
    if member.resources is not None:
        return [Fault(("resreq",), member.resreq, "either `resreq` or `resources`, not both")]
    from gangflow.specs.resreq import count_fault

    expected = count_fault(member.resreq, member.tasks)
    return [Fault(("tasks",), member.tasks, expected)] if expected else []
