"""Claims: what must be READY before the start (design 3.4). A group's own are made for it; standalone ones exist by themselves.

What a provider accepts is the controller's to know, and checked at admission: providers can be added to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gangflow.specs.base import Flag, Label, Name, Owner, Spec, Text, Word, check, one_or_more, wrong
from gangflow.specs.faults import Fault
from gangflow.specs.quantity import Duration

MAX_CLAIM_ID = 200
_ID = re.compile(r"[a-z][a-z0-9-]*")
_RETAINED = re.compile(r"g[0-9]+-.*")
_MAKING = ("provider", "retain", "timeout", "parameters", "after", "needs")


def _claim_id(value: str) -> str:
    if len(value) > MAX_CLAIM_ID or not _ID.fullmatch(value):
        raise wrong("the name of a standalone claim: a-z, 0-9 and -, first a letter")
    return value


def _own_name(value: str) -> str:
    if _RETAINED.fullmatch(value):
        raise wrong("a name that does not begin like g1-…: retained claims are called so")
    return value


def _sole(value: object) -> object:
    return (value,) if isinstance(value, (Mapping, Needs)) else value


class Needs(Spec):
    """What must be true of a member before a claim is made. Only `placed` can be: the barrier waits for the claim."""

    positional: ClassVar[tuple[str, ...]] = ("member", "when")

    member: Name
    """Of the group."""
    when: Literal["placed", "started", "completed"] = "placed"
    """`placed` is satisfied by placement. `started` and `completed` would wait for a start that waits for the claim."""

    if TYPE_CHECKING:

        def __init__(self, member: str, when: Literal["placed", "started", "completed"] = "placed") -> None: ...


class Claim(Spec):
    """A claim of a group, or (in a member's `claims`) of each of its slots; tasks see it as `XCE_CLAIM_<NAME>`.

    It is made from a template, or with `uses` it is a standalone claim by another name.
    """

    positional: ClassVar[tuple[str, ...]] = ("name",)
    elsewhere: ClassVar[dict[str, str]] = {
        "standalone": "into `uses`, as the name of a claim that exists on its own",
        "claim": "into `uses`, as the name of a claim that exists on its own",
        "exclusive": "into `access`, as `access: exclusive`",
    }

    name: Name
    """As its users see it."""
    provider: Label = "directory"
    """Who makes it: `directory`, `command`, `model`, or one that was added to the controller."""
    retain: Flag = False
    """Keep what was provisioned when the group ends: it lives on as a standalone claim, `g1-<name>`."""
    timeout: Annotated[Duration, Field(ge=1)] = 60_000
    """For provisioning."""
    parameters: dict[Word, Text] = Field(default_factory=dict)
    """For the provider."""
    after: Annotated[tuple[Name, ...], one_or_more] = ()
    """Claims of the group (or of the same member) that must be READY before this one is made."""
    needs: Annotated[tuple[Needs, ...], BeforeValidator(_sole)] = ()
    """One or several: members that must have come so far before it is made."""
    uses: Annotated[str, AfterValidator(_claim_id)] | None = None
    """The standalone claim that this name stands for; the group takes it together with its hosts."""
    access: Literal["shared", "exclusive"] = "shared"
    """With `uses`: together with other groups, or alone."""

    if TYPE_CHECKING:

        def __init__(self, name: str, **fields: Any) -> None: ...

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        faults = []
        if self.uses is not None:
            faults = [
                Fault((key,), self.written(key), f"no `{key}` beside `uses`: a standalone claim is made by itself")
                for key in _MAKING
                if getattr(self, key) != type(self).model_fields[key].get_default(call_default_factory=True)
            ]
        elif self.access != "shared":
            faults.append(Fault(("access",), self.access, "`uses` beside it: a group's own claim is its own anyway"))
        check(faults)
        return self


class StandaloneClaim(Spec):
    """A claim that exists on its own and outlives groups: what `POST /v1/claims` takes."""

    positional: ClassVar[tuple[str, ...]] = ("name",)
    elsewhere: ClassVar[dict[str, str]] = {
        "access": "into the `claims` of the group that uses it",
        "uses": "into the `claims` of the group that uses it",
        **dict.fromkeys(("retain", "after", "needs"), "into a claim of a group"),
    }

    name: Annotated[Name, AfterValidator(_own_name)]
    """Its id: groups name it in `uses`."""
    provider: Label = "directory"
    """As a group's claim has it."""
    parameters: dict[Word, Text] = Field(default_factory=dict)
    """For the provider."""
    timeout: Annotated[Duration, Field(ge=1)] = 60_000
    """For provisioning: after it its provider is asked again."""
    owner: Owner | None = None
    """Whose it is; who makes it when left out."""

    if TYPE_CHECKING:

        def __init__(self, name: str, **fields: Any) -> None: ...
