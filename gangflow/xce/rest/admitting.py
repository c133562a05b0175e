"""A submitted document → a plan, with every check that can be made before anything is created. No IO: runs in a thread."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gangflow.errors import Problem
from gangflow.specs.claims import StandaloneClaim
from gangflow.specs.document import validate
from gangflow.specs.faults import Fault, fault_error
from gangflow.specs.group import CoStartGroup
from gangflow.xce.admission import ClusterDefaults, admit
from gangflow.xce.admission_claims import BUILT_IN, standalone_plan
from gangflow.xce.core.inputs import Request
from gangflow.xce.core.plan import ClaimPlan, GroupPlan
from gangflow.xce.core.state import PendCode, Reason, State
from gangflow.xce.placement.never import never_fits
from gangflow.xce.providers.rules import Catalog
from gangflow.xce.rest.problems import Refusal
from gangflow.xce.rest.tokens import Principal, Role

if TYPE_CHECKING:
    from gangflow.specs.cluster import ClusterSpec


LIVE_GROUPS = 10_000
"""Of one owner: each is in every state image and in every list. A whole cluster is measured with so many."""


@dataclass(frozen=True, slots=True)
class Delegation:
    """What came in `XCE-Delegation`."""

    named: tuple[str | None, ...] = ()
    """Per token the owner whom it lets its holder name; None for one that is none, or has expired."""

    @property
    def owners(self) -> tuple[str, ...]:
        return tuple(sorted({owner for owner in self.named if owner is not None}))

    @property
    def bad(self) -> str:
        """Which of the tokens are not good; empty: all are."""
        wrong = [str(number) for number, owner in enumerate(self.named, 1) if owner is None]
        return f"token {', '.join(wrong)} of the {len(self.named)} that were sent is none, or has expired" if wrong else ""


@dataclass(frozen=True, slots=True)
class Submission:
    """A document, and who brings it."""

    document: dict[str, Any]
    caller: Principal
    delegation: Delegation
    asked: Request
    plain: bool = False
    """It must be a plain job or replica set."""

    @property
    def owner(self) -> str:
        """Whose it is where the document names nobody."""
        return self.caller.owner or getpass.getuser()

    def may_name(self, owner: str) -> bool:
        """May the caller charge this owner, and use what is his?"""
        return self.caller.role is Role.ADMIN or owner == self.caller.owner or owner in self.delegation.owners


def admitted(submission: Submission, state: State, cluster: ClusterSpec | None, providers: Catalog = BUILT_IN) -> GroupPlan:
    """The plan of a valid document.

    SpecError names every path that is wrong, NotYetError what is not enforced; a Refusal says which owner may not be named
    (403), that its owner has too many groups (429), or what no host could ever hold.
    """
    spec = validate(CoStartGroup, submission.document)
    if submission.plain and not spec.plain:
        raise fault_error([Fault(("members",), "…", "one `job` or `replica_set`: a plain job has no members")])
    strange = spec.told(_strangers(submission, spec))
    if strange:
        raise _forbidden(strange)
    # What was answered under this key before gets that answer again, whatever hosts and claims have gone since.
    answered = submission.asked.key in state.answers
    usable = None if answered else _usable_claims(submission, state)
    known = cluster or ClusterDefaults(state.levels)
    plan = admit(spec, known, owner=submission.owner, providers=providers, claims=usable)
    if answered:
        return plan
    living = sum(group.plan.owner == plan.owner and not group.state.terminal for group in state.groups.values())
    if living >= LIVE_GROUPS:
        text = f"{plan.owner} has {living} groups that have not ended; at most {LIVE_GROUPS}"
        raise Refusal(429, "too_many_groups", text, headers={"Retry-After": "60"})
    # Before the first host registers nothing fits, and that says nothing: the group waits.
    reason = never_fits(state.hosts, state.levels, plan) if state.hosts else None
    if reason is not None:
        raise _never(plan, reason)
    return plan


def admitted_claim(submission: Submission, providers: Catalog = BUILT_IN) -> tuple[ClaimPlan, str]:
    """The plan of a standalone claim, and its owner. As `admitted`."""
    spec = validate(StandaloneClaim, submission.document)
    owner = spec.owner or submission.owner
    if not submission.may_name(owner):
        raise _forbidden([Fault(("owner",), owner, _expected(submission))])
    return standalone_plan(spec, providers), owner


def _strangers(submission: Submission, spec: CoStartGroup) -> Iterator[Fault]:
    """Owners that the document names and the caller may not."""
    if spec.owner is not None and not submission.may_name(spec.owner):
        yield Fault(("owner",), spec.owner, _expected(submission))
    for name, member in spec.members.items():
        if member.owner is not None and not submission.may_name(member.owner):
            yield Fault(("members", name, member.tag, "owner"), member.owner, _expected(submission))


def _expected(submission: Submission) -> str:
    names = ", ".join([submission.caller.owner, *submission.delegation.owners])
    bad = f"; {submission.delegation.bad}" if submission.delegation.bad else ""
    return f"an owner whom the caller may name ({names}); another one takes his delegation token, or the admin's token{bad}"


def _usable_claims(submission: Submission, state: State) -> list[str]:
    """Standalone claims of owners whom the caller may name. That there are others is not his to know."""
    return [claim.id for claim in state.claims.values() if not claim.group and submission.may_name(claim.owner)]


def _forbidden(faults: list[Fault]) -> Refusal:
    problems = fault_error(faults).problems
    return Refusal(403, "forbidden", "; ".join(map(str, problems)), problems=problems)


def _never(plan: GroupPlan, reason: Reason) -> Refusal:
    code = "never_fits" if reason.code is PendCode.NEVER_FITS else "misconfigured"
    name, _, rest = reason.text.partition(": ")
    member = next((member for member in plan.members if member.name == name), None)
    path = "placement" if member is None else member.kind if plan.plain else f"members.{member.name}.{member.kind}"
    problem = Problem(path, "", f"what this cluster could hold; {reason.text if member is None else rest}")
    return Refusal(422, code, reason.text, problems=[problem])
