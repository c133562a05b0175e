"""Durable records as watchers see them: pure, and without secrets (tokens of preparation, environments, parameters, keys)."""

from __future__ import annotations

from typing import Any

import msgspec

from gangflow.xce.core.events import AnswersForgotten, ClaimChanged, CommandAnswered, Event, GroupSubmitted, OfferLeft
from gangflow.xce.core.plan import MemberPlan
from gangflow.xce.rest.messages import EventView

HIDDEN = (CommandAnswered, AnswersForgotten, OfferLeft)
"""Book-keeping: of idempotency keys, which are their owners' business, and of the scheduler's sessions."""
_SECRET = frozenset({"token", "boot", "environment", "parameters"})


def group_of(event: Event) -> str:
    """The id of the group that a record is about; empty for the cluster's own."""
    if isinstance(event, ClaimChanged):
        return event.claim.group
    task = getattr(event, "task", None)
    return str(task.group if task is not None else getattr(event, "group", ""))


def event_view(seq: int, at_ms: int, event: Event) -> EventView | None:
    """The record, or None for one that is not shown."""
    if isinstance(event, HIDDEN):
        return None
    if isinstance(event, GroupSubmitted):
        plan = event.plan
        data: dict[str, Any] = {
            "group": event.group,
            "name": plan.name,
            "owner": plan.owner,
            "priority": plan.priority,
            "members": [_member(plan.owner, member) for member in plan.members],
        }
    else:
        data = _without_secrets(msgspec.to_builtins(event))
    return EventView(seq=seq, at_ms=at_ms, type=type(event).__name__, group=group_of(event), data=data)


def _member(owner: str, member: MemberPlan) -> dict[str, Any]:
    return {
        "name": member.name,
        "kind": member.kind,
        "replicas": member.replicas,
        "tasks": member.tasks,
        "owner": member.owner or owner,
    }


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_secrets(part) for name, part in value.items() if name not in _SECRET}
    if isinstance(value, list | tuple):
        return [_without_secrets(part) for part in value]
    return value
