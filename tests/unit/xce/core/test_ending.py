"""The end of a group: finished is not failed, and neither is lost."""

from __future__ import annotations

import pytest

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.effects import Stop
from gangflow.xce.core.plan import Action, Cause, RulePlan
from gangflow.xce.core.state import GroupState, PendCode, SlotState
from tests.unit.xce.core.plans import READY, hosts, job, plan, replicas
from tests.unit.xce.core.stage import Stage

G, S = GroupState, SlotState


def test_a_member_that_finished_counts_as_satisfied() -> None:
    """Scenario 31: one job is DONE, a replica then fails: it is replaced, since what finished is not missing."""
    stage = Stage()
    stage.run(plan(job("loader"), job("actor"), replicas(count=1)))
    stage.exit("loader", code=0)
    assert stage.group().state is G.RUNNING
    stage.exit("rollout")
    assert stage.group().state is G.DEGRADED
    stage.wait(1_000)
    stage.bring_up()
    assert stage.group().state is G.RUNNING


def test_members_that_exit_one_by_one_are_no_loss() -> None:
    """Scenario 32: jobs end with 0 one after the other, hours apart; the last one makes the group SUCCEEDED."""
    stage = Stage()
    stage.run(plan(job("a"), job("b"), job("c")))
    for name in ("a", "b"):
        stage.exit(name, code=0)
        stage.wait(3_600_000)
        assert stage.group().state is G.RUNNING
    stage.exit("c", code=0)
    assert stage.group().state is G.SUCCEEDED
    assert stage.group().ended_ms == stage.now_ms


def test_what_finished_is_free_at_once() -> None:
    """Scenario 20: a finished member holds nothing, even when its host is unreachable a moment later."""
    stage = Stage(hosts(1, cpu=2_000))
    stage.run(plan(job("a"), job("b")))
    stage.submit(plan(job(), name="next"))
    assert stage.group("g2").state is G.PENDING
    stage.exit("a", code=0)
    assert stage.slot("a").tasks == ()
    assert stage.group("g2").state is G.PREPARING
    stage.lose("h0")
    assert stage.slot("a").state is S.DONE, "its exit was reported: it is gone, and not lost"


def test_a_slot_whose_exit_arrived_is_gone_though_its_host_is_lost() -> None:
    """Scenario 20: the report of an exit counts also when the host is unreachable by now."""
    stage = Stage()
    stage.run(plan(job(), replicas(count=1, least=1)))
    report = stage.exited("rollout", code=1)
    stage.lose("h0")
    assert stage.slot("rollout").state is S.LOST
    stage.feed(report)
    assert stage.slot("rollout").state is S.BACKOFF


def test_a_failed_rollout_is_never_a_success() -> None:
    """Scenario 51: the group's result is made of its primary jobs; a failed service that is not tolerated fails it."""
    stage = Stage()
    stage.run(plan(job(), replicas(), rules=(RulePlan(Action.FAIL_GROUP, "rollout"),)))
    stage.feed(stage.exited("actor", code=0), stage.exited("rollout", code=1))
    assert stage.group().goal is G.FAILED
    stage.gone()
    assert stage.group().state is G.FAILED


def test_tolerated_exits_are_listed_and_one_done_is_needed() -> None:
    tolerate = RulePlan(Action.TOLERATE, causes=(Cause.APP_EXIT,))
    stage = Stage()
    stage.run(plan(job("a"), job("b"), rules=(tolerate,)))
    stage.exit("a", code=5)
    assert stage.group().state is G.RUNNING
    stage.exit("b", code=0)
    assert stage.group().state is G.SUCCEEDED
    assert stage.group().tolerated == (("a", 0),)
    none = Stage()
    none.run(plan(job("a"), job("b"), rules=(tolerate,)))
    none.feed(none.exited("a"), none.exited("b"))
    assert none.group().state is G.FAILED, "no job is DONE"


def test_auxiliary_members_get_the_termination_delay() -> None:
    stage = Stage()
    stage.run(plan(job(), replicas(), termination_delay_ms=5_000))
    stage.exit("actor", code=0)
    assert stage.group().state is G.STOPPING
    assert stage.states() == {"actor[0]": "DONE", "rollout[0]": "DRAINING", "rollout[1]": "DRAINING"}
    assert stage.due(Stop) == []
    stage.exit("rollout", 0, code=0)
    assert stage.slot("rollout", 0).state is S.EXIT
    stage.wait(5_000)
    assert len(stage.due(Stop)) == 1
    stage.gone()
    assert stage.group().state is G.SUCCEEDED


def test_a_cancel_ends_the_termination_delay_and_not_the_success() -> None:
    stage = Stage()
    stage.run(plan(job(), replicas(), termination_delay_ms=60_000))
    stage.exit("actor", code=0)
    assert stage.ask(inp.EndGroup("g1", G.CANCELLED)).ok
    stage.gone()
    assert stage.group().state is G.SUCCEEDED


def test_a_group_without_a_primary_job_runs_until_it_is_cancelled() -> None:
    stage = Stage()
    stage.run(plan(job("side", primary=False), replicas()))
    stage.exit("side", code=0)
    stage.wait(10 * 3_600_000)
    assert stage.group().state is G.RUNNING
    stage.ask(inp.EndGroup("g1", G.CANCELLED))
    stage.gone()
    assert stage.group().state is G.CANCELLED


@pytest.mark.parametrize(
    "until", ["PENDING", "PREPARING", "PREPARED", "STARTING", "RUNNING", "DEGRADED", "RESTARTING", "voided"]
)
def test_a_cancel_works_from_every_state(until: str) -> None:
    """Scenario 15: whatever it was doing, a cancelled group ends and holds nothing."""
    stage = Stage(hosts(2 if until != "PENDING" else 0))
    stage.submit(plan(job(), replicas(), rules=(RulePlan(Action.RESTART_GROUP, "actor"),)))
    if until == "PREPARED":
        stage.prepare("actor")
    if until in ("STARTING", "RUNNING", "DEGRADED", "RESTARTING"):
        stage.prepare()
        stage.start()
    if until in ("RUNNING", "DEGRADED", "RESTARTING"):
        stage.ready()
    if until == "DEGRADED":
        stage.exit("rollout")
    if until == "RESTARTING":
        stage.exit("actor")
    if until == "voided":
        stage.prepare("actor")
        bad = stage.due()[-1]
        stage.feed(inp.TaskRefused(bad.task, bad.host, "no"))
    assert stage.ask(inp.EndGroup("g1", G.CANCELLED, "user", "enough")).ok
    stage.gone()
    group = stage.group()
    assert (group.state, group.cause, group.message) == (G.CANCELLED, "user", "enough")
    assert not any(slot.tasks for slot in group.slots.values())
    assert stage.due() == []
    assert stage.ask(inp.EndGroup("g1", G.CANCELLED)).ok, "once more is no error"


def test_the_end_is_reached_although_a_host_is_dead() -> None:
    """Scenario 83: with its host gone for good the group still reaches its end within the fence."""
    stage = Stage(hosts(1))
    stage.run(plan(job(), replicas()))
    stage.lose("h0", fence_ms=5_000)
    stage.ask(inp.EndGroup("g1", G.CANCELLED))
    assert stage.group().state is G.STOPPING
    stage.wait(5_000)
    assert stage.group().state is G.CANCELLED


def test_a_dead_cluster_is_no_running_job() -> None:
    """Scenario 83: when every host is lost the group is DEGRADED only while a lost place may come back, which is bounded;
    then it is PENDING with its reason, holds nothing, and starts as a whole when there is room again."""
    stage = Stage(hosts(1))
    submitted = stage.now_ms
    stage.run(plan(job(), replicas(), recovery_timeout_ms=60_000))
    stage.wait(10_000)
    stage.lose("h0", fence_ms=5_000)
    assert stage.group().state is G.DEGRADED
    stage.wait(5_000)
    stage.wait(1_000)
    assert stage.group().state is G.DEGRADED
    for slot in stage.group().slots.values():
        assert slot.state is S.PENDING
        assert slot.reason is not None
    stage.wait(60_000)
    group = stage.group()
    assert (group.state, group.cause) == (G.PENDING, "recovery_timeout")
    assert not any(slot.tasks for slot in group.slots.values())
    stage.wait(1_000)
    group = stage.group()
    assert group.reason is not None
    assert group.reason.code not in (PendCode.BACKOFF, PendCode.PREPARING)
    assert group.submitted_ms == submitted, "at its own place"
    assert group.first_running_ms, "it ran once: that stays a fact of its own"
    stage.wait(1_000_000)
    assert stage.group().state is G.PENDING
    stage.up_host("h0", "b2")
    stage.bring_up()
    assert (stage.group().state, stage.group().epoch) == (G.RUNNING, 2)


def test_what_is_finished_is_not_done_again_because_the_rest_lost_its_place() -> None:
    stage = Stage(hosts(1))
    stage.run(plan(job("train"), job("evaluate"), recovery_timeout_ms=60_000))
    stage.exit("train", code=0)
    stage.lose("h0", fence_ms=5_000)
    stage.wait(5_000)
    stage.wait(1_000)
    stage.wait(60_000)
    assert (stage.group().state, stage.slot("train").state, stage.slot("evaluate").state) == (G.DEGRADED, S.DONE, S.PENDING)
    assert stage.slot("evaluate").reason is not None
    stage.up_host("h0", "b2")
    stage.bring_up()
    stage.exit("evaluate", code=0)
    assert stage.group().state is G.SUCCEEDED


def test_a_job_that_ends_before_the_others_are_ready_does_not_hold_up_the_start() -> None:
    stage = Stage()
    stage.submit(plan(job("quick"), job("actor"), replicas()))
    stage.prepare()
    stage.start()
    stage.exit("quick", code=0)
    assert stage.group().state is G.STARTING
    stage.ready()
    assert stage.group().state is G.RUNNING


def test_a_group_whose_only_job_ends_while_starting_succeeds() -> None:
    stage = Stage()
    stage.submit(plan(job(), replicas()))
    stage.prepare()
    stage.start("actor")
    stage.exit("actor", code=0)
    stage.gone()
    assert stage.group().state is G.SUCCEEDED


def test_a_job_may_end_before_its_start_was_reported() -> None:
    stage = Stage()
    stage.submit(plan(job("quick"), job("probed", ready=READY, ports=("http",)), job("actor")))
    stage.prepare()
    stage.exit("quick", code=0)
    assert stage.slot("quick").state is S.DONE
    stage.start()
    assert stage.slot("probed").state is S.RUNNING
    stage.exit("probed", code=0)
    assert stage.slot("probed").state is S.DONE
    assert stage.group().state is G.RUNNING
