"""A submitted document → a plan, with every check that can be made before anything is created. No IO: runs in a thread."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Any

from gangflow.errors import Problem
from gangflow.specs.document import validate
from gangflow.specs.group import CoStartGroup
from gangflow.xce.admission import ClusterDefaults, admit
from gangflow.xce.core.inputs import Request
from gangflow.xce.core.plan import GroupPlan
from gangflow.xce.core.state import PendCode, Reason, State
from gangflow.xce.placement.never import never_fits
from gangflow.xce.rest.problems import Refusal

if TYPE_CHECKING:
    from gangflow.specs.cluster import ClusterSpec


def admitted(document: dict[str, Any], state: State, cluster: ClusterSpec | None, asked: Request) -> GroupPlan:
    """The plan of a valid document.

    SpecError names every path that is wrong, NotYetError what is not enforced; a Refusal says what no host could ever hold.
    """
    spec = validate(CoStartGroup, document)
    plan = admit(spec, cluster or ClusterDefaults(state.levels), owner=getpass.getuser())
    # Before the first host registers nothing fits, and that says nothing: the group waits. And what was answered under this key
    # before gets that answer again, whatever hosts have gone since.
    if not state.hosts or asked.key in state.answers:
        return plan
    reason = never_fits(state.hosts, state.levels, plan)
    if reason is not None:
        raise _never(plan, reason)
    return plan


def _never(plan: GroupPlan, reason: Reason) -> Refusal:
    code = "never_fits" if reason.code is PendCode.NEVER_FITS else "misconfigured"
    name, _, rest = reason.text.partition(": ")
    member = next((member for member in plan.members if member.name == name), None)
    path = "placement" if member is None else member.kind if plan.plain else f"members.{member.name}.{member.kind}"
    problem = Problem(path, "", f"what this cluster could hold; {reason.text if member is None else rest}")
    return Refusal(422, code, reason.text, problems=[problem])
