"""Groups whose targets change, in few words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.inputs import Reply
from gangflow.xce.core.plan import MemberPlan
from gangflow.xce.core.state import Change, SlotState
from tests.unit.xce.core.plans import job, plan, replicas
from tests.unit.xce.core.stage import Stage


def elastic(name: str = "rollout", count: int = 2, least: int = 1, most: int = 8, **more: Any) -> MemberPlan:
    """A replica set that may be scaled."""
    return replace(replicas(name, count, least, **more), max_replicas=most)


def scale(stage: Stage, group: str = "g1", **targets: int) -> Reply:
    """The reply to a change of targets."""
    return stage.ask(inp.ScaleGroup(group, tuple(targets.items())))


def change(stage: Stage, identity: str = "", group: str = "g1") -> Change:
    """The newest change, or the one of that name."""
    found = stage.group(group).changes
    return found[-1] if not identity else next(one for one in found if one.id == identity)


def serving(stage: Stage, member: str, group: str = "g1") -> list[int]:
    """Indices of the member's READY slots."""
    return [slot.index for slot in stage.group(group).slots.values() if slot.member == member and slot.state is SlotState.READY]


PAIR = plan(job(), elastic())
SHIFT = plan(elastic("prefill", 2, cpu=1_000), elastic("decode", 2, cpu=1_000))
"""Four replicas of 1,000 milli-CPU, two and two."""
