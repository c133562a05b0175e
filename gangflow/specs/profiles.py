"""Application profiles: named defaults of the cluster, and how one is merged into a member (what the member gives wins)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gangflow.specs.base import Spec, Text, Variable, check
from gangflow.specs.container import AnyContainer
from gangflow.specs.faults import Fault, Loc, path
from gangflow.specs.member import (
    Job,
    ReplicaSet,
    Resources,
    _command,
    _resreq,
    container_faults,
    limit_faults,
    probe_faults,
)
from gangflow.specs.probes import AnyProbe
from gangflow.specs.quantity import Duration
from gangflow.specs.warning import RunWarning

WHOLE = ("container", "ready", "live", "ready_timeout", "termination_grace", "runtime_limit", "warning", "drain")
"""Keys that are taken from the profile as they are, where the member leaves them out."""


class Profile(Spec):
    """Defaults for the members that name it. Command (but for a wrapper), ports and everything else are the member's own."""

    elsewhere: ClassVar[dict[str, str]] = {
        "command": "into the member; words that stand before a member's command are the profile's `wrapper`",
        **dict.fromkeys(("ports", "tasks", "cwd", "claims", "on_failure", "owner", "replicas"), "into the member"),
    }

    wrapper: Annotated[tuple[Text, ...], BeforeValidator(_command)] = ()
    """Words before the member's command: `[nsys, profile]`."""
    environment: dict[Variable, Text] = Field(default_factory=dict)
    """Each variable is a default of its own: the group's and the member's win."""
    resources: Resources | None = None
    """Per task, each key a default of its own. Either this or `resreq`."""
    resreq: Annotated[Text, AfterValidator(_resreq)] | None = None
    """A simple one: `select` is ANDed to the member's, each name of `rusage` and each other section is a default."""
    container: AnyContainer | None = None
    """As a whole, as everything below."""
    ready: AnyProbe | None = None
    """Its port is one of the member's."""
    live: AnyProbe | None = None
    """Likewise."""
    ready_timeout: Duration | None = None
    """As a member's."""
    termination_grace: Duration | None = None
    """As a member's."""
    runtime_limit: Annotated[Duration, Field(ge=1)] | None = None
    """As a member's."""
    warning: RunWarning | None = None
    """It may warn of the member's own `runtime_limit`."""
    drain: Duration | None = None
    """As a member's."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        faults = []
        if self.wrapper and not self.wrapper[0]:
            faults.append(Fault(("wrapper", 0), "", "a program"))
        if self.resreq is not None:
            from gangflow.specs.resreq import Simple, parse

            if self.resources is not None:
                faults.append(Fault(("resreq",), self.resreq, "either `resreq` or `resources`, not both"))
            elif not isinstance(parse(self.resreq), Simple):
                faults.append(Fault(("resreq",), self.resreq, "a simple requirement: it is merged into those of many members"))
        check(faults)
        return self


@dataclass(frozen=True, slots=True)
class Merged:
    """A member as it runs."""

    member: Job | ReplicaSet
    """With the profile's values; its `environment` is the member's own."""
    defaults: tuple[tuple[str, str], ...] = ()
    """Variables of the profile: they stand behind the group's."""
    origins: tuple[tuple[str, str], ...] = ()
    """(key, where from) of what is not the member's alone: `profile`, or `member and profile`."""

    def loc(self, key: str, loc: Loc = ()) -> Loc:
        """Where a user finds the cause of a fault at `key`: the member's `profile` if that brought the key."""
        return ("profile",) if dict(self.origins).get(key) == "profile" else loc or (key,)

    def told(self, fault: Fault) -> Fault:
        """A fault of the merged member as its author can mend it: in the member, or by another profile."""
        if self.loc(str(fault.loc[0])) != ("profile",):
            return fault
        expected = f"another profile: this one's `{path(fault.loc)}` is {fault.value!r}, which must be {fault.expected}"
        return Fault(("profile",), self.member.profile, expected)


def merge(member: Job | ReplicaSet, profile: Profile) -> Merged:
    """The member with its profile's defaults."""
    changes: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if profile.wrapper:
        changes["command"] = (*profile.wrapper, *member.command)
        origins["command"] = "member and profile"
    for key in WHOLE:
        if getattr(member, key) is None and getattr(profile, key) is not None:
            changes[key] = getattr(profile, key)
            origins[key] = "profile"
    if profile.environment:
        own = any(name in member.environment for name in profile.environment) or member.environment
        origins["environment"] = "member and profile" if own else "profile"
    _merge_requirement(member, profile, changes, origins)
    return Merged(member.model_copy(update=changes), tuple(profile.environment.items()), tuple(origins.items()))


def _merge_requirement(member: Job | ReplicaSet, profile: Profile, changes: dict[str, object], origins: dict[str, str]) -> None:
    if profile.resources is None and profile.resreq is None:
        return
    if member.resources is None and member.resreq is None:
        key = "resreq" if profile.resources is None else "resources"
        changes[key] = getattr(profile, key)
        origins[key] = "profile"
    elif member.resreq is None and profile.resources is not None:
        assert member.resources is not None
        given = {**_given(profile.resources), **_given(member.resources)}
        counters = {**profile.resources.counters, **member.resources.counters}
        changes["resources"] = Resources(**given, counters=counters)
        origins["resources"] = "member and profile"
    else:
        from gangflow.specs.resreq import render
        from gangflow.specs.resreq_merge import merged, with_zeros

        changes["resources"] = None
        changes["resreq"] = render(
            merged(with_zeros(member.resources, member.resreq), with_zeros(profile.resources, profile.resreq))
        )
        origins["resreq"] = "member and profile"


def _given(resources: Resources) -> dict[str, Any]:
    # As a document says them: the amounts that are kept are in the smallest units.
    return {key: value for key, value in resources.model_dump(mode="json").items() if key != "counters" and value is not None}


def merged_faults(merged: Merged) -> list[Fault]:
    """What the profile's values do not fit in this member, relative to the member."""
    member = merged.member
    return [merged.told(fault) for fault in (*probe_faults(member), *limit_faults(member), *container_faults(member))]
