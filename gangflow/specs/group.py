"""The co-start group: a named set of members that are placed all-or-nothing and start behind one barrier."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, ValidationInfo, model_serializer, model_validator

from gangflow.specs.base import MAX_NAME, Name, Owner, Spec, Text, Variable, Whole, check, later
from gangflow.specs.claim_order import claim_faults
from gangflow.specs.claims import Claim
from gangflow.specs.coordinator import RLCoordinator
from gangflow.specs.failure import Backoff, FailureRule
from gangflow.specs.faults import MISSING, Fault, fault_error
from gangflow.specs.group_checks import coordinator_faults, member_faults, ratio_faults, rule_faults
from gangflow.specs.member import UNCHECKED, AnyMember, Job, Pack, ReplicaSet, _claim_faults
from gangflow.specs.quantity import Duration
from gangflow.specs.scale import Ratios, Scale

MAX_MEMBERS = 1_000
FORMS = ("members", "job", "replica_set")
"""A group has one of these."""
MAIN = "main"
"""The member of a plain job."""
_ID = re.compile(r"g[0-9]+")


def _mode(value: object) -> object:
    if value == "accumulate":
        raise later("session: reservation (`accumulate`) is not enforced by this version")
    return value


class Placement(Spec):
    """How the group is placed. `session`: all at once, when everything fits."""

    not_yet: ClassVar[dict[str, str]] = {
        "timeout": "the deadline of a reservation",
        "on_timeout": "the deadline of a reservation",
        "backoff": "the deadline of a reservation",
        "group": "a shared placement group",
        "spread": "spreading over domains",
        "near": "placement near another member",
    }

    mode: Annotated[Literal["session"], BeforeValidator(_mode)] = "session"
    """All at once, when everything fits."""
    pack: Pack | None = None
    """All members together."""


class Barrier(Spec):
    """The start barrier: nothing starts before everything is placed and prepared."""

    timeout: Annotated[Duration, Field(ge=1)] = 600_000
    """PREPARING at most; then the try is void."""
    start_timeout: Annotated[Duration, Field(ge=1)] = 900_000
    """STARTING at most; then cause `not_ready`."""
    max_attempts: Annotated[Whole, Field(ge=1)] = 5
    """Starts that may fail by the infrastructure before the group was ever RUNNING."""
    backoff: Backoff = Backoff.model_construct()
    """Between tries."""


class Recovery(Spec):
    """The repair of a group that lost hosts."""

    timeout: Duration = 600_000
    """How long a lost allocation is kept under first claim."""
    exclude_host_after: Annotated[Whole, Field(ge=1)] | None = None
    """Failures of the group's slots on one host within `exclude_window`, after which nothing of the group is placed there
    any more; never when left out. Only while more than half of the group's wanted slots are up on other hosts."""
    exclude_hosts_at_most: Annotated[Whole, Field(ge=1)] = 4
    """Hosts that may be excluded at a time."""
    exclude_window: Annotated[Duration, Field(ge=1)] = 3_600_000
    """In which those failures are counted."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.exclude_host_after is None:
            given = [key for key in ("exclude_hosts_at_most", "exclude_window") if key in self.model_fields_set]
            check(
                [
                    Fault((key,), self.written(key), "`exclude_host_after` beside it: without, no host is excluded")
                    for key in given
                ]
            )
        return self


class CoStartGroup(Spec):
    """What `gangflow.launch` and `POST /v1/groups` take."""

    positional: ClassVar[tuple[str, ...]] = ("name", "members")
    not_yet: ClassVar[dict[str, str]] = {
        "preemptible": "preemption",
        "max_preemptions": "preemption",
        "spread": "spreading over domains",
        "near": "placement near another member",
    }
    elsewhere: ClassVar[dict[str, str]] = {
        "exclude_host_after": "into `recovery`",
        **dict.fromkeys(("profile", "container", "runtime_limit", "warning", "drain"), "into a member"),
        **dict.fromkeys(("command", "replicas", "tasks", "resources", "resreq", "ports"), "into `job` or `replica_set`"),
    }

    name: Name
    """No two groups that live have the same."""
    owner: Owner | None = None
    """Whose it is, and who is charged for members without an owner of their own; who submits it when left out."""
    priority: Annotated[Whole, Field(ge=0, le=1_000)] = 50
    """Higher first."""
    environment: dict[Variable, Text] = Field(default_factory=dict)
    """For all members; a member's own wins."""
    claims: tuple[Claim, ...] = ()
    """What must be READY before the start, for all members."""
    placement: Placement = Placement.model_construct()
    """How the members lie to each other."""
    barrier: Barrier = Barrier.model_construct()
    """Limits of a start."""
    recovery: Recovery = Recovery.model_construct()
    """What happens to a group that lost hosts."""
    termination_delay: Duration = 0
    """How long auxiliary members go on after the last primary job ended."""
    failure: tuple[FailureRule, ...] = ()
    """After the members' own rules, before the defaults."""
    scale: Scale = Scale.model_construct()
    """Limits of changes of the members' targets."""
    ratio: Ratios = ()
    """One or several: what binds two members' targets."""
    coordinator: RLCoordinator | None = None
    """What drives the group beside XCE, and what it is told."""
    members: Annotated[dict[Name, AnyMember], Field(min_length=1, max_length=MAX_MEMBERS)] = Field(default_factory=dict)
    """Either these, or one `job` or `replica_set`."""
    job: Job | None = None
    """A plain job: a group of one, whose member is called `main`."""
    replica_set: ReplicaSet | None = None
    """A plain replica set, likewise."""

    if TYPE_CHECKING:

        def __init__(self, name: str, members: Mapping[str, Job | ReplicaSet] = ..., **fields: Any) -> None: ...

    @classmethod
    def of_one(cls, name: str, member: Job | ReplicaSet, **fields: Any) -> Self:
        """A plain job or replica set."""
        own: dict[str, Any] = {member.tag: member, **fields}
        return cls(name, **own)

    @property
    def plain(self) -> bool:
        """Whether it is a plain job or replica set; `members` has it as `main`."""
        return self.job is not None or self.replica_set is not None

    def told(self, faults: Iterable[Fault]) -> list[Fault]:
        """The faults with the paths that the author knows: of a plain job `job.command`, not `members.main.job.command`."""
        if not self.plain:
            return list(faults)
        return [replace(f, loc=f.loc[2:]) if f.loc[:2] == ("members", MAIN) else f for f in faults]

    @model_validator(mode="after")
    def _consistent(self, info: ValidationInfo) -> Self:
        if (info.context or {}).get(UNCHECKED):
            return self
        forms = [key for key in FORMS if getattr(self, key)]
        if self.plain and self.members == {MAIN: self.job or self.replica_set}:
            forms.remove("members")  # `CoStartGroup(**dict(group))`
        check(form_faults(forms))
        if self.plain:
            # Everything behind the specs knows members only. Not through the fields that were set: `members` was not.
            self.__dict__["members"] = {MAIN: self.job or self.replica_set}
        check(self.told(fault for each in CHECKS for fault in each(self)))
        return self

    @model_serializer(mode="wrap")
    def _plainly(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        if self.plain:
            # A changed copy (`model_copy`) has its member in `members`.
            fields.update(fields.pop("members", {}).get(MAIN, {}))
        return fields


def form_faults(forms: Sequence[str]) -> list[Fault]:
    """It has members, or is a plain job or replica set: `forms` are those of these keys that are given."""
    if not forms:
        return [Fault(("members",), MISSING, "a value: it is required, or a plain `job` or `replica_set` instead")]
    return [Fault((key,), "…", f"no `{key}` beside `{forms[0]}`: a plain one has no members") for key in forms[1:]]


def _id_faults(group: CoStartGroup) -> list[Fault]:
    expected = "a name that is none of XCE's ids (g1, g2, …): calls take either"
    return [Fault(("name",), group.name, expected)] if _ID.fullmatch(group.name) else []


CHECKS: tuple[Callable[[CoStartGroup], Iterable[Fault]], ...] = (
    lambda group: _claim_faults(group.claims),
    claim_faults,
    member_faults,
    rule_faults,
    coordinator_faults,
    ratio_faults,
    _id_faults,
)
"""What must agree in a group (a plain one has `members` here): each is told by itself, also where others cannot be asked."""


def grouped(what: CoStartGroup | Job | ReplicaSet, name: str = "") -> CoStartGroup:
    """A group as it is; a job or replica set alone as a group of one, called `name`, or else after its program.

    Raises SpecError for a `name` beside a group, which has its own.
    """
    if not isinstance(what, CoStartGroup):
        return CoStartGroup.of_one(name or _named_after(what.command[0]), what)
    if name and name != what.name:
        raise fault_error([Fault(("name",), name, f"no `name`: the group's own is {what.name!r}")])
    return what


def _named_after(program: str) -> str:
    """`/usr/bin/Python3.11` → `python3`: what of it can be a name."""
    stem = re.sub(r"[^a-z0-9]+", "-", program.rsplit("/", 1)[-1].lower().partition(".")[0]).strip("-")
    return stem[:MAX_NAME] if re.fullmatch(r"[a-z].*", stem) and not _ID.fullmatch(stem) else "job"
