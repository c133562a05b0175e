"""What bounds targets: the members' own bounds, floors, ratios, the budget of GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.budget import withheld
from gangflow.xce.core.plan import Action, MemberPlan, Per, RatioPlan, RulePlan, ScalePlan, TaskTerm, Use
from gangflow.xce.core.scale_rules import broken_limit, gpus_of, gpus_text, ratio_holds, ratio_text
from gangflow.xce.core.state import ChangeState, Group, PendCode, Slot, SlotState, Task, TaskPhase
from gangflow.xce.placement import Scheduler
from tests.unit.xce.core.elastic import PAIR, change, elastic, scale
from tests.unit.xce.core.plans import hosts, job, plan, replicas
from tests.unit.xce.core.stage import Stage

RATIO = RatioPlan("prefill", "decode", (1, 4), (1, 2))


class GpuStage(Stage):
    """With XCE's own placement, which knows devices."""

    scheduler = Scheduler


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ({"rollout": 9}, "targets.rollout: 9; expected from 1 (min_replicas) to 8 (max_replicas)"),
        ({"rollout": 0}, "targets.rollout: 0; expected from 1 (min_replicas) to 8 (max_replicas)"),
        ({"rolout": 2}, "targets.rolout: g1 has no replica set of that name; did you mean 'rollout'?"),
        ({"x": 2}, "targets.x: g1 has no replica set of that name; expected one of rollout"),
        ({"actor": 2}, "targets.actor: a job has exactly one slot; expected a replica set: rollout"),
    ],
)
def test_bad_targets_are_refused_with_path_value_and_what_was_expected(targets: dict[str, int], said: str) -> None:
    stage = Stage()
    stage.run(PAIR)
    reply = scale(stage, **targets)
    assert (reply.status, reply.code, reply.message) == (422, "invalid", said)
    assert dict(stage.group().targets) == {"actor": 1, "rollout": 2}


def test_a_ratio_binds_targets_and_names_both_numbers() -> None:
    stage = Stage(hosts(2, cpu=8_000))
    members = (elastic("prefill", 1, cpu=500), elastic("decode", 2, 1, cpu=500))
    stage.run(plan(*members, scale=ScalePlan((RATIO,))))
    reply = scale(stage, prefill=2)
    assert (reply.status, reply.code) == (422, "invalid")
    assert reply.message == "the ratio 1/4 ≤ prefill/decode ≤ 1/2 does not hold for prefill 2 and decode 2"
    assert scale(stage, prefill=2, decode=4).status == 202


def test_ratios_hold_without_division() -> None:
    assert ratio_holds(RATIO, {"prefill": 1, "decode": 4})
    assert not ratio_holds(RATIO, {"prefill": 1, "decode": 5})
    assert ratio_holds(RATIO, {"prefill": 0, "decode": 0})
    assert not ratio_holds(RATIO, {"prefill": 1, "decode": 0})
    assert ratio_holds(replace(RATIO, most=(1, 0)), {"prefill": 9, "decode": 0}), "no limit above"
    assert ratio_text(replace(RATIO, most=(1, 0))) == "1/4 ≤ prefill/decode"


def test_a_target_below_a_watched_floor_is_refused() -> None:
    """After its grace the rule would fail what a user asked for."""
    stage = Stage(hosts(2, cpu=8_000))
    rule = RulePlan(Action.RESTART_MEMBER, "rollout", floor=2, floor_grace_ms=5_000)
    stage.run(plan(job(), elastic(count=3), rules=(rule,)))
    assert scale(stage, rollout=1).message == "targets.rollout: 1; a failure rule watches that 2 are ready; expected from 2"
    assert scale(stage, rollout=2).status == 202


def test_gpus_are_counted_by_task_host_and_job() -> None:
    term = TaskTerm(4, (Use("gpus", 500), Use("gpus", 1_000, Per.HOST), Use("gpus", 250, Per.JOB)), ptile=2)
    assert gpus_of(replace(replicas(), terms=(term,))) == 4 * 500 + 2 * 1_000 + 250
    assert (gpus_text(2_000), gpus_text(500), gpus_text(1_250)) == ("2", "0.5", "1.25")


def test_a_budget_of_gpus_bounds_all_targets_together() -> None:
    made = plan(gpu("prefill", 1), gpu("decode", 2), job(), scale=ScalePlan(max_gpus=3_000))
    assert broken_limit(made, {"prefill": 1, "decode": 2, "actor": 1}) == ""
    assert broken_limit(made, {"prefill": 2, "decode": 2, "actor": 1}) == (
        "the targets ask for 4 GPUs, and the group may have 3"
    )


def test_at_the_budget_a_shift_goes_down_first_although_there_is_room() -> None:
    """Scenario 58: the cluster has a free GPU, the group may not use it before it has given one back."""
    facts = tuple(replace(one, gpus=4) for one in hosts(1, cpu=8_000))
    stage = GpuStage(facts)
    stage.run(plan(gpu("prefill", 2), gpu("decode", 1), scale=ScalePlan(max_gpus=3_000)))
    assert scale(stage, prefill=1, decode=2).status == 202
    waits = stage.slot("decode", 1)
    assert waits.state is SlotState.PENDING
    assert waits.tasks[0].gpus == ((3, 1_000),), "its place is held, and not used yet"
    assert waits.reason is not None
    assert waits.reason.code is PendCode.WAITING_TURN
    assert "3 GPUs are in use until prefill[1] is gone" in waits.reason.text
    stage.gone()
    assert (change(stage).state, stage.slot("decode", 1).state) == (ChangeState.DONE, SlotState.PLACED)


def test_who_lost_its_promised_place_keeps_the_budget_all_the_same() -> None:
    """Its host was closed meanwhile: it may have any other place, but not while the group still uses all its GPUs."""
    facts = tuple(replace(one, gpus=4) for one in hosts(2, cpu=8_000))
    stage = GpuStage(facts)
    stage.run(plan(gpu("prefill", 2), gpu("decode", 1), scale=ScalePlan(max_gpus=3_000)))
    assert scale(stage, prefill=1, decode=2).status == 202
    stage.ask(inp.CloseHost(stage.slot("decode", 1).tasks[0].host))
    waits = stage.slot("decode", 1)
    assert (waits.state, waits.tasks, change(stage).grants) == (SlotState.PENDING, (), ())
    assert waits.reason is not None
    assert waits.reason.text == "the group's 3 GPUs are in use until prefill[1] is gone"
    stage.gone()
    assert (change(stage).state, stage.slot("decode", 1).state) == (ChangeState.DONE, SlotState.PLACED)


def test_one_of_two_who_come_has_the_place_of_who_failed_and_the_other_waits() -> None:
    facts = tuple(replace(one, gpus=1) for one in hosts(5, cpu=8_000))
    stage = GpuStage(facts)
    stage.run(plan(gpu("prefill", 2), gpu("decode", 1), scale=ScalePlan(max_gpus=3_000)))
    assert scale(stage, prefill=1, decode=2).status == 202
    stage.lose(stage.slot("decode").tasks[0].host, fence_ms=1_000)
    stage.wait(1_000)
    assert stage.states() == {"prefill[0]": "READY", "prefill[1]": "STOPPING", "decode[0]": "PLACED", "decode[1]": "PENDING"}
    stage.gone()
    assert stage.slot("decode", 1).state is SlotState.PLACED


def test_what_is_withheld_are_the_last_ones_that_do_not_hold_their_place() -> None:
    made = plan(gpu("prefill", 2), gpu("decode", 3), elastic("cpu", 1), scale=ScalePlan(max_gpus=3_000))
    one = (Task(0, "h0", gpus=((0, 1_000),), phase=TaskPhase.RUNNING),)
    slots = {
        ("prefill", 1): Slot("prefill", 1, SlotState.STOPPING, tasks=one, out=True),
        ("decode", 0): Slot("decode", 0, tasks=one),
        ("decode", 1): Slot("decode", 1),
        ("decode", 2): Slot("decode", 2),
        ("cpu", 0): Slot("cpu", 0),
    }
    group = Group("g1", made, slots=slots)
    waiting = [slot for slot in slots.values() if not slot.out]
    assert withheld(group, waiting) == (("decode", 2),)
    slots["prefill", 1] = replace(slots["prefill", 1], tasks=())
    assert withheld(group, waiting) == (), "nothing is out of the targets, and they keep the budget"


def test_devices_and_ports_pass_from_those_who_go_to_those_who_come() -> None:
    """Instances, not amounts: the place of the new one is made of the very device and port of the old one."""
    facts = tuple(replace(one, gpus=2, port_count=2) for one in hosts(1, cpu=8_000))
    stage = GpuStage(facts)
    stage.run(plan(gpu("prefill", 1, least=0, ports=("http",)), gpu("decode", 1, ports=("http",))))
    gives = stage.slot("prefill").tasks[0]
    assert scale(stage, prefill=0, decode=2).status == 202
    waits = stage.slot("decode", 1)
    assert (waits.state, waits.tasks) == (SlotState.PENDING, ())
    assert waits.reason is not None
    assert dict(waits.reason.shortfall) == {"cpu": 1_000, "gpus": 1_000, "ports": 1}
    stage.gone()
    takes = stage.slot("decode", 1).tasks[0]
    assert (takes.gpus, takes.ports) == (gives.gpus, gives.ports)


def gpu(name: str, count: int, *, least: int = 1, ports: tuple[str, ...] = ()) -> MemberPlan:
    """Replicas of one GPU each."""
    member = elastic(name, count, least, ready=None, ports=ports)
    return replace(member, terms=(TaskTerm(uses=(Use("cpu", 1_000), Use("gpus", 1_000))),))
