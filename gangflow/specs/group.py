"""The co-start group: a named set of members that are placed all-or-nothing and start behind one barrier."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from gangflow.specs.base import MAX_NAME, Name, Owner, Spec, Text, Variable, Whole, check, later
from gangflow.specs.claim_order import claim_faults
from gangflow.specs.claims import Claim
from gangflow.specs.coordinator import RLCoordinator
from gangflow.specs.failure import Backoff, FailureRule
from gangflow.specs.faults import MISSING, Fault, Loc, fault_error, nearest
from gangflow.specs.member import AnyMember, Job, Pack, ReplicaSet, _claim_faults
from gangflow.specs.quantity import Duration
from gangflow.specs.scale import Ratios, Scale

MAX_MEMBERS = 1_000
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
                    Fault((key,), getattr(self, key), "`exclude_host_after` beside it: without, no host is excluded")
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
    def _consistent(self) -> Self:
        forms = [key for key in ("members", "job", "replica_set") if getattr(self, key)]
        if self.plain and self.members == {MAIN: self.job or self.replica_set}:
            forms.remove("members")  # `CoStartGroup(**dict(group))`
        if not forms:
            check([Fault(("members",), MISSING, "a value: it is required, or a plain `job` or `replica_set` instead")])
        if len(forms) > 1:
            check([Fault((key,), "…", f"no `{key}` beside `{forms[0]}`: a plain one has no members") for key in forms[1:]])
        if self.plain:
            # Everything behind the specs knows members only. Not through the fields that were set: `members` was not.
            self.__dict__["members"] = {MAIN: self.job or self.replica_set}
        faults = [
            *_claim_faults(self.claims),
            *claim_faults(self),
            *_member_faults(self),
            *_rule_faults(self),
            *_coordinator_faults(self),
            *_ratio_faults(self),
        ]
        if _ID.fullmatch(self.name):
            faults.append(Fault(("name",), self.name, "a name that is none of XCE's ids (g1, g2, …): calls take either"))
        check(self.told(faults))
        return self

    @model_serializer(mode="wrap")
    def _plainly(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        if self.plain:
            # A changed copy (`model_copy`) has its member in `members`.
            fields.update(fields.pop("members", {}).get(MAIN, {}))
        return fields


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


def _member_faults(group: CoStartGroup) -> Iterator[Fault]:
    taken: dict[str, str] = {}
    shared = [claim.name for claim in group.claims]
    made: dict[str, str] = {}
    for name, member in group.members.items():
        for index, claim in enumerate(member.claims):
            at = ("members", name, member.tag, "claims", index, "name")
            # A slot's claim is made as `<claim>-<member>-<index>`.
            stem = f"{claim.name}-{name}"
            if claim.name in shared or any(re.fullmatch(f"{stem}-[0-9]+", other) for other in shared):
                yield Fault(at, claim.name, "a claim of another name: a claim of the group has this one")
            elif made.setdefault(stem, name) != name:
                yield Fault(at, claim.name, f"a claim of another name: one of member {made[stem]} is made as {stem}, too")
        for index, port in enumerate(member.ports):
            # XCE_ADDRS_<MEMBER>_<PORT>: member `a-b` with port `c` would hide member `a` with port `b-c`.
            variable = f"{name}-{port}"
            if taken.setdefault(variable, name) != name:
                loc = ("members", name, member.tag, "ports", index)
                yield Fault(loc, port, f"another name: member {taken[variable]} has the same address variable")


def _rule_faults(group: CoStartGroup) -> Iterator[Fault]:
    for index, rule in enumerate(group.failure):
        yield from _one_rule(group, ("failure", index), rule, rule.match.member)
    for name, member in group.members.items():
        for index, rule in enumerate(member.on_failure):
            loc = ("members", name, member.tag, "on_failure", index)
            if rule.match.member not in (None, name):
                expected = f"no `member`: on_failure is about {name} only"
                yield Fault((*loc, "match", "member"), rule.match.member, expected)
            else:
                yield from _one_rule(group, loc, rule, name)


def _one_rule(group: CoStartGroup, loc: Loc, rule: FailureRule, name: str | None) -> Iterator[Fault]:
    slot = rule.match.slot
    if name is None:
        if slot is not None:
            yield Fault((*loc, "match", "slot"), slot, "a `member` beside it")
        if rule.floor is not None:
            yield Fault((*loc, "floor"), rule.floor, "a `match.member` that names a replica set")
        return
    member = group.members.get(name)
    if member is None:
        expected = "a member of the group: " + ", ".join(group.members)
        yield Fault((*loc, "match", "member"), name, expected, nearest(name, group.members))
        return
    slots = member.most if isinstance(member, ReplicaSet) else 1
    if slot is not None and slot >= slots:
        yield Fault((*loc, "match", "slot"), slot, f"less than {slots}: {name} has {slots} slot(s)")
    if rule.floor is None:
        return
    if not isinstance(member, ReplicaSet):
        yield Fault((*loc, "floor"), rule.floor, f"no `floor`: {name} is a job")
    elif rule.floor > member.replicas:
        yield Fault((*loc, "floor"), rule.floor, f"at most `replicas`, {member.replicas}")


def _ratio_faults(group: CoStartGroup) -> Iterator[Fault]:
    services = [name for name, member in group.members.items() if isinstance(member, ReplicaSet)]
    for index, ratio in enumerate(group.ratio):
        wrong = False
        for key in ("member", "to"):
            name = getattr(ratio, key)
            if name not in services:
                wrong = True
                expected = "a replica set of the group: " + (", ".join(services) or "it has none")
                yield Fault(("ratio", index, key), name, expected, nearest(name, services))
        if wrong:
            continue
        first, second = group.members[ratio.member], group.members[ratio.to]
        assert isinstance(first, ReplicaSet)
        assert isinstance(second, ReplicaSet)
        if not ratio.holds(first.replicas, second.replicas):
            value = f"{first.replicas}/{second.replicas}"
            yield Fault(("ratio", index), value, f"{ratio} for the `replicas` of {ratio.member} and {ratio.to}")


def _coordinator_faults(group: CoStartGroup) -> Iterator[Fault]:
    coordinator = group.coordinator
    if coordinator is None:
        return
    for key, kind, what in (("actor", Job, "a job"), ("rollout", ReplicaSet, "a replica set")):
        name = getattr(coordinator, key)
        fitting = [other for other, member in group.members.items() if isinstance(member, kind)]
        if name not in fitting:
            expected = f"{what} of the group: " + (", ".join(fitting) or "it has none")
            yield Fault(("coordinator", key), name, expected, nearest(name, fitting))
    rollout = group.members.get(coordinator.rollout)
    if not isinstance(rollout, ReplicaSet):
        return
    if coordinator.port not in rollout.ports:
        expected = f"a port of {coordinator.rollout}: " + (", ".join(rollout.ports) or "it has none")
        yield Fault(("coordinator", "port"), coordinator.port, expected, nearest(coordinator.port, rollout.ports))
    if coordinator.min_rollouts > rollout.replicas:
        expected = f"at most the {rollout.replicas} replica(s) of {coordinator.rollout}"
        yield Fault(("coordinator", "min_rollouts"), coordinator.min_rollouts, expected)
