"""A submitted document → a plan, with every check that can be made before anything is created."""

from __future__ import annotations

from typing import Any

from gangflow.specs.document import validate
from gangflow.specs.group import CoStartGroup
from gangflow.xce.core.inputs import Request
from gangflow.xce.core.plan import GroupPlan
from gangflow.xce.rest.access import Service


def admitted(document: dict[str, Any], service: Service, request: Request) -> GroupPlan:
    """The plan of a valid document; SpecError with every path that is wrong, NotYetError for what is not enforced."""
    from gangflow.xce.admission import admit

    spec = validate(CoStartGroup, document)
    return admit(spec, cluster=service.cluster)
