"""Runtime limits: warned in time, stopped at the end, and judged as any other failure."""

from __future__ import annotations

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.effects import Stop, Warn
from gangflow.xce.core.limits import TERM_GRACE_MS
from gangflow.xce.core.plan import Action, Cause, RulePlan
from gangflow.xce.core.state import GroupState, SlotState
from gangflow.xce.machine import next_deadline
from tests.unit.xce.core.plans import job, plan, replicas
from tests.unit.xce.core.stage import Stage

G, S = GroupState, SlotState
LIMITED = {"runtime_limit_ms": 60_000, "warn_before_ms": 10_000, "warn_signal": 10}


def test_a_limit_runs_from_the_start_of_each_incarnation() -> None:
    stage = Stage()
    stage.submit(plan(job(runtime_limit_ms=60_000), rules=(RulePlan(Action.RESTART_MEMBER, "actor"),)))
    assert stage.slot("actor").run_until_ms == 0
    stage.now_ms += 5_000
    stage.prepare()
    started = stage.now_ms
    assert stage.slot("actor").run_until_ms == started + 60_000
    stage.bring_up()
    assert next_deadline(stage.state) == started + 60_000
    stage.wait(59_999)
    assert stage.slot("actor").state is S.READY
    stage.wait(1)
    slot = stage.slot("actor")
    assert slot.state is S.STOPPING
    assert slot.exit is not None
    assert slot.exit.cause is Cause.RUN_LIMIT
    assert "limit of 1m" in slot.exit.message
    stage.gone()
    stage.wait(1_000)
    stage.bring_up()
    slot = stage.slot("actor")
    assert (slot.state, slot.incarnation, slot.run_until_ms) == (S.READY, 2, stage.now_ms + 60_000)


def test_a_limit_that_no_rule_speaks_of_fails_the_group() -> None:
    stage = Stage()
    stage.run(plan(job(runtime_limit_ms=60_000), replicas()))
    stage.wait(60_000)
    stage.gone()
    assert (stage.group().state, stage.group().cause) == (G.FAILED, "run_limit")


def test_each_task_is_owed_its_warning_until_it_was_delivered() -> None:
    stage = Stage()
    stage.run(plan(job(tasks=3, **LIMITED)))
    start = stage.now_ms
    assert next_deadline(stage.state) == start + 50_000
    stage.wait(49_999)
    assert stage.due(Warn) == []
    decision = stage.wait(1)
    assert [effect.task.task for effect in decision.effects] == [0, 1, 2]
    assert {effect.signal for effect in stage.due(Warn)} == {10}
    assert next_deadline(stage.state) == start + 60_000
    first, second, third = stage.due(Warn)
    stage.feed(inp.TaskWarned(first.task, first.host))
    stage.feed(inp.TaskWarned(first.task, first.host))
    assert [effect.task.task for effect in stage.due(Warn)] == [1, 2]
    assert not stage.slot("actor").warned
    stage.feed(inp.TaskWarned(second.task, second.host), inp.TaskWarned(third.task, third.host))
    assert stage.due(Warn) == []
    assert stage.slot("actor").warned
    stage.wait(9_999)
    assert stage.group().state is G.RUNNING
    stage.wait(1)
    assert len(stage.due(Stop)) == 3


def test_a_job_that_heeds_its_warning_is_done() -> None:
    stage = Stage()
    stage.run(plan(job(**LIMITED)))
    stage.wait(50_000)
    stage.exit("actor", code=0)
    assert stage.group().state is G.SUCCEEDED
    assert stage.due() == []


def test_a_task_that_ended_is_owed_no_warning() -> None:
    stage = Stage()
    stage.run(plan(job(tasks=2, **LIMITED)))
    stage.exit("actor", task=0, code=0)
    stage.wait(50_000)
    (warn,) = stage.due(Warn)
    assert warn.task.task == 1
    stage.feed(inp.TaskWarned(warn.task, warn.host))
    assert stage.slot("actor").warned


def test_the_warning_of_an_earlier_incarnation_says_nothing() -> None:
    stage = Stage()
    stage.run(plan(job(**LIMITED), rules=(RulePlan(Action.RESTART_MEMBER, "actor"),)))
    stage.wait(50_000)
    (warn,) = stage.due(Warn)
    stage.exit("actor")
    stage.wait(1_000)
    stage.bring_up()
    assert (stage.slot("actor").warned, stage.slot("actor").to_warn) == (False, ())
    before = stage.state
    stage.feed(inp.TaskWarned(warn.task, warn.host))
    assert stage.state is before


def test_a_host_that_does_not_answer_is_told_nothing() -> None:
    stage = Stage()
    stage.run(plan(job(**LIMITED), rules=(RulePlan(Action.RESTART_MEMBER, "actor"),)))
    stage.lose(stage.slot("actor").tasks[0].host, fence_ms=600_000)
    stage.wait(50_000)
    assert stage.due(Warn) == []


def test_a_replica_has_a_limit_too() -> None:
    stage = Stage()
    stage.run(plan(job(), replicas(count=2, least=1, runtime_limit_ms=60_000)))
    stage.wait(60_000)
    stage.gone()
    stage.wait(1_000)
    stage.bring_up()
    assert stage.group().state is G.RUNNING
    assert [stage.slot("rollout", n).incarnation for n in range(2)] == [2, 2]


def test_a_controller_that_was_away_does_not_stop_what_may_have_ended_in_time() -> None:
    stage = Stage()
    stage.run(plan(job(runtime_limit_ms=60_000)))
    stage.now_ms += 100_000
    stage.feed(inp.StartTerm("test"))
    assert stage.slot("actor").state is S.READY
    assert next_deadline(stage.state) == stage.now_ms + TERM_GRACE_MS
    stage.exit("actor", code=0)
    assert stage.group().state is G.SUCCEEDED


def test_what_drains_is_not_stopped_by_its_limit() -> None:
    """It is on its way out, and its drain is bounded by itself."""
    stage = Stage()
    stage.run(plan(job(), replicas(count=2, least=1, runtime_limit_ms=60_000, drain_ms=100_000)))
    stage.ask(inp.DrainSlot("g1", "rollout", 0, 1))
    stage.wait(60_000)
    assert stage.slot("rollout").state is S.DRAINING
    exit = stage.slot("rollout").exit
    assert exit is not None
    assert exit.cause is Cause.DRAINED
