"""Changes of targets: accepted, drained, placed, superseded, given up (design 3.7)."""

from __future__ import annotations

from dataclasses import replace

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.events import ChangeMoved, SlotChanged, SlotPlaced
from gangflow.xce.core.inputs import Reply
from gangflow.xce.core.plan import GroupPlan, MemberPlan, RatioPlan, ScalePlan, Use
from gangflow.xce.core.state import Change, ChangeState, GroupState, PendCode, SlotState
from tests.unit.xce.core.plans import hosts, job, plan, replicas
from tests.unit.xce.core.stage import Stage

G, S, D = GroupState, SlotState, ChangeState


def elastic(name: str = "rollout", count: int = 2, least: int = 1, most: int = 8, **more: object) -> MemberPlan:
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
    return [slot.index for slot in stage.group(group).slots.values() if slot.member == member and slot.state is S.READY]


PAIR = plan(job(), elastic())


def test_more_replicas_are_placed_at_once_where_there_is_room() -> None:
    stage = Stage()
    stage.run(PAIR)
    reply = scale(stage, rollout=4)
    assert (reply.status, dict(reply.fields)) == (202, {"id": "g1", "change": "c1"})
    assert dict(stage.group().targets) == {"actor": 1, "rollout": 4}
    assert (change(stage).state, change(stage).before) == (D.DONE, (("actor", 1), ("rollout", 2)))
    stage.bring_up()
    assert serving(stage, "rollout") == [0, 1, 2, 3]
    assert stage.slot("rollout", 0).incarnation == 1, "nobody else was touched"


def test_fewer_replicas_drain_first_and_nothing_is_free_before_they_are_gone() -> None:
    stage = Stage()
    stage.run(plan(job(), elastic(count=3, drain_ms=5_000)))
    assert scale(stage, rollout=1).status == 202
    assert stage.states() == {"actor[0]": "READY", "rollout[0]": "READY", "rollout[1]": "DRAINING", "rollout[2]": "DRAINING"}
    assert change(stage).state is D.DRAINING
    assert not stage.due(), "deregistered, and not stopped yet"
    stage.wait(5_000)
    assert stage.states()["rollout[2]"] == "STOPPING"
    stage.gone()
    assert change(stage).state is D.DONE
    assert not stage.slot("rollout", 1).tasks
    assert not stage.slot("rollout", 2).tasks
    assert stage.group().state is G.RUNNING
