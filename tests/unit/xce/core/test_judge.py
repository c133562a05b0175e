"""Failures judged together: what the rules do to a running group."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.effects import Stop
from gangflow.xce.core.events import BudgetSpent, FailureJudged
from gangflow.xce.core.plan import Action, Cause, RulePlan, TaskTerm, Use
from gangflow.xce.core.state import GroupState, SlotState
from tests.unit.xce.core.plans import hosts, job, plan, replicas
from tests.unit.xce.core.stage import Stage

G, S = GroupState, SlotState


def test_a_replica_that_ends_by_itself_failed_whatever_its_code() -> None:
    """Scenario 51: a service does not finish; code 0 of a rollout is no end of the stream."""
    stage = Stage()
    stage.run(plan(job(), replicas()))
    stage.exit("rollout", code=0)
    slot = stage.slot("rollout")
    assert slot.state is S.BACKOFF
    assert slot.exit is not None
    assert slot.exit.cause is Cause.APP_EXIT
    assert stage.group().state is G.DEGRADED


def test_a_failed_job_fails_the_group_with_its_last_lines() -> None:
    stage = Stage()
    stage.run(plan(job(), replicas()))
    stage.exit("actor", code=3)
    group = stage.group()
    assert group.state is G.STOPPING
    assert group.cause == "app_exit"
    assert group.message == "actor[0]: exited with code 3"
    assert len(stage.due(Stop)) == 2
    stage.gone()
    assert stage.group().state is G.FAILED
    exit = stage.slot("actor").exit
    assert exit is not None
    assert exit.stderr_tail == "Traceback: boom"


def test_one_failure_does_not_end_the_run() -> None:
    """Scenario 53: over its budget a replica is given up while its floor holds; below it the group fails."""
    stage = Stage()
    rule = RulePlan(Action.RESTART_MEMBER, "rollout", max_restarts=0, then=Action.TOLERATE)
    stage.run(plan(job(), replicas(count=3, least=2), rules=(rule,)))
    stage.exit("rollout", 0)
    assert stage.slot("rollout", 0).state is S.RETIRED
    assert stage.slot("rollout", 0).tasks == ()
    assert stage.group().state is G.RUNNING
    assert stage.group().tolerated == (("rollout", 0),)
    stage.exit("rollout", 1)
    assert stage.group().state is G.STOPPING
    assert stage.group().goal is G.FAILED


def test_two_that_may_not_both_be_given_up() -> None:
    """Judged together, in slot order: the first is tolerated, the second would break the floor."""
    stage = Stage()
    rule = RulePlan(Action.TOLERATE, "rollout")
    stage.run(plan(job(), replicas(count=3, least=2), rules=(rule,)))
    stage.feed(stage.exited("rollout", 2), stage.exited("rollout", 1))
    judged = [event for event in stage.events if isinstance(event, FailureJudged)]
    assert [(event.index, event.action) for event in judged] == [(1, "fail_group"), (2, "fail_group")]
    assert stage.group().state is G.STOPPING


def test_the_strongest_action_of_a_batch_wins() -> None:
    rules = (
        RulePlan(Action.RESTART_MEMBER, "rollout", slot=0),
        RulePlan(Action.RESTART_GROUP, "rollout", slot=1),
        RulePlan(Action.TOLERATE, "rollout", slot=2),
    )
    stage = Stage()
    stage.run(plan(job(), replicas(count=3, least=1), rules=rules))
    stage.feed(stage.exited("rollout", 0), stage.exited("rollout", 2), stage.exited("rollout", 1))
    assert stage.group().state is G.RESTARTING
    spent = [event.use for event in stage.events if isinstance(event, BudgetSpent)]
    assert [(use.rule, use.member, use.index) for use in spent] == [(1, "", -1)], "only what is done is paid"
    assert stage.group().tolerated == ()


def test_weaker_actions_for_different_slots_are_all_done() -> None:
    rules = (RulePlan(Action.TOLERATE, "rollout", slot=0), RulePlan(Action.RESTART_MEMBER, "rollout"))
    stage = Stage()
    stage.run(plan(job(), replicas(count=3, least=1), rules=rules))
    stage.feed(stage.exited("rollout", 1), stage.exited("rollout", 0))
    assert stage.states() == {
        "actor[0]": "READY",
        "rollout[0]": "RETIRED",
        "rollout[1]": "BACKOFF",
        "rollout[2]": "READY",
    }


def test_restart_role_restarts_all_slots_of_the_member() -> None:
    stage = Stage()
    stage.run(plan(job(), replicas(count=3), rules=(RulePlan(Action.RESTART_ROLE, "rollout"),)))
    stage.exit("rollout", 1)
    assert stage.states() == {
        "actor[0]": "READY",
        "rollout[0]": "STOPPING",
        "rollout[1]": "BACKOFF",
        "rollout[2]": "STOPPING",
    }
    stage.gone()
    stage.wait(1_000)
    stage.bring_up()
    assert stage.group().state is G.RUNNING
    assert [stage.slot("rollout", n).incarnation for n in range(3)] == [2, 2, 2]
    assert stage.slot("actor").incarnation == 1


def test_failures_of_one_host_in_one_batch_count_once() -> None:
    rule = RulePlan(Action.RESTART_ROLE, "rollout", max_restarts=1)
    stage = Stage()
    stage.run(plan(job(), replicas(count=3), rules=(rule,)))
    stage.feed(*(stage.exited("rollout", n, cause=Cause.OOM, code=None) for n in range(3)))
    assert stage.group().state is G.DEGRADED
    use = stage.group().budgets[0]
    assert len(use.spent_ms) == 1


def test_a_machine_loss_does_not_spend_a_replicas_budget() -> None:
    rule = RulePlan(Action.RESTART_MEMBER, "rollout", max_restarts=1)
    stage = Stage(hosts(3, cpu=1_000))
    stage.run(plan(replicas(count=2, least=1), rules=(rule,)))
    for name, boot in (("h0", "b2"), ("h0", "b3"), ("h0", "b4")):
        stage.up_host(name, boot)
        assert stage.slot("rollout", 0).state is S.BACKOFF
        stage.wait(1_000)
        stage.bring_up()
    assert stage.group().budgets == ()
    assert stage.slot("rollout", 0).restarts == 3


def test_a_coordinators_verdict_is_judged_by_the_rules() -> None:
    stage = Stage()
    stage.run(plan(job(), replicas()))
    reply = stage.ask(inp.ReportSlot("g1", "rollout", 0, 1, Cause.HUNG, "no answer for 60 s"))
    assert reply.ok
    slot = stage.slot("rollout")
    assert slot.state is S.STOPPING
    assert slot.exit is not None
    assert (slot.exit.cause, slot.exit.message) == (Cause.HUNG, "no answer for 60 s")
    stage.gone()
    slot = stage.slot("rollout")
    assert slot.state is S.BACKOFF
    assert slot.exit is not None
    assert (slot.exit.cause, slot.exit.signal) == (Cause.HUNG, 15)
    assert stage.ask(inp.ReportSlot("g1", "rollout", 0, 1, Cause.HUNG)).ok, "it is gone already: nothing more happens"
    assert stage.slot("rollout").state is S.BACKOFF
    refused = stage.ask(inp.ReportSlot("g1", "rollout", 0, 1, Cause.OOM))
    assert (refused.status, refused.code) == (422, "invalid")


def test_a_floor_with_a_grace_watches_what_is_ready() -> None:
    rule = RulePlan(Action.RESTART_MEMBER, "rollout", floor=2, floor_grace_ms=5_000, then=Action.FAIL_GROUP)
    stage = Stage()
    stage.run(plan(job(), replicas(count=3, least=1), rules=(rule,)))
    stage.exit("rollout", 0)
    assert stage.group().below_floor_ms == ()
    stage.exit("rollout", 1)
    assert stage.group().below_floor_ms == (("rollout", stage.now_ms),)
    assert stage.group().state is G.RUNNING, "the group's minimum still holds"
    stage.wait(1_000)
    stage.bring_up()
    assert stage.group().below_floor_ms == ()
    stage.exit("rollout", 0)
    stage.exit("rollout", 1)
    stage.wait(5_000)
    assert stage.group().state is G.STOPPING
    assert stage.group().cause == "below_floor"
    assert "1 ready, below 2 for 5s" in stage.group().message


def test_all_tasks_of_a_slot_die_together() -> None:
    stage = Stage()
    rule = RulePlan(Action.RESTART_MEMBER, "actor")
    stage.run(plan(job(tasks=3), rules=(rule,)))
    stage.exit("actor", task=1, code=9)
    assert stage.slot("actor").state is S.STOPPING
    assert [effect.task.task for effect in stage.due(Stop)] == [0, 2]
    assert "SlotExited" not in stage.kinds()
    stage.gone()
    exit = stage.slot("actor").exit
    assert stage.slot("actor").state is S.BACKOFF
    assert exit is not None
    assert (exit.cause, exit.code) == (Cause.APP_EXIT, 9), "the slot's exit is the one that began it"


def test_a_task_that_ended_well_waits_for_the_others() -> None:
    stage = Stage()
    stage.run(plan(job(tasks=2)))
    stage.exit("actor", task=0, code=0)
    assert stage.slot("actor").state is S.READY
    assert stage.due(Stop) == []
    stage.exit("actor", task=1, code=0)
    assert stage.slot("actor").state is S.DONE
    assert stage.group().state is G.SUCCEEDED


def test_failures_of_a_group_that_is_going_down_match_nothing() -> None:
    stage = Stage()
    stage.run(plan(job(), replicas()))
    stage.feed(inp.EndGroup("g1", G.CANCELLED), stage.exited("actor", code=1), stage.exited("rollout", 0, code=1))
    assert stage.group().state is G.STOPPING
    assert stage.group().goal is G.CANCELLED
    assert "FailureJudged" not in stage.kinds()
    stage.gone()
    assert stage.group().state is G.CANCELLED
    late = Stage()
    late.run(plan(job(), replicas()))
    late.feed(late.exited("actor", code=1), inp.EndGroup("g1", G.CANCELLED))
    exit = late.slot("actor").exit
    assert exit is not None
    assert exit.code == 1, "how it ended is kept, although nobody judges it any more"
    late.gone()
    assert late.group().state is G.CANCELLED


def test_no_rule_at_all_fails_the_group() -> None:
    stage = Stage()
    stage.run(replace(plan(job(), replicas()), rules=()))
    stage.exit("rollout")
    assert stage.group().goal is G.FAILED


def test_one_hosts_failures_are_paid_by_the_first_slot_only() -> None:
    rule = RulePlan(Action.RESTART_MEMBER, "rollout", max_restarts=1)
    stage = Stage(hosts(2, cpu=2_000))
    stage.run(plan(replicas(count=4, least=1), rules=(rule,)))
    stage.feed(*(stage.exited("rollout", n, cause=Cause.OOM, code=None) for n in (3, 1, 0)))
    paid = [(use.member, use.index) for use in stage.group().budgets]
    assert paid == [("rollout", 0), ("rollout", 3)], "h0 had two of them, h1 one"
    assert [stage.slot("rollout", n).state for n in (0, 1, 3)] == [S.BACKOFF] * 3


def test_a_role_restart_brings_back_what_was_given_up() -> None:
    rules = (RulePlan(Action.TOLERATE, "rollout", slot=0), RulePlan(Action.RESTART_ROLE, "rollout"))
    stage = Stage()
    stage.run(plan(job(), replicas(count=3, least=1), rules=rules))
    stage.exit("rollout", 0)
    assert stage.slot("rollout", 0).state is S.RETIRED
    stage.exit("rollout", 1)
    assert stage.slot("rollout", 0).state is S.PLACED
    assert stage.group().tolerated == ()


@pytest.mark.parametrize("what", ["close", "drain host", "lose host", "drain slot"])
def test_a_refusal_and_a_host_that_is_taken_away_in_one_batch_are_one_failure(what: str) -> None:
    """What failed is for the rules to judge, although what never started would be placed elsewhere without them."""
    stage = Stage(hosts(3))
    two = (TaskTerm(count=2, uses=(Use("cpu", 500),), one_host=True),)
    stage.run(plan(job(), replace(replicas(), terms=two)))
    stage.exit("rollout")
    stage.gone()
    stage.wait(1_000)
    slot = stage.slot("rollout")
    assert slot.state is S.PLACED
    host = slot.tasks[0].host
    taken = {
        "close": inp.CloseHost(host),
        "drain host": inp.CloseHost(host, drain=True),
        "lose host": inp.HostGone(host, 0),
        "drain slot": inp.DrainSlot("g1", "rollout", 0, slot.incarnation),
    }
    refused = [inp.TaskRefused(stage.key(slot, task), host, "no such file") for task in range(2 if what == "drain slot" else 1)]
    decision = stage.feed(*refused, taken[what])
    judged = [event for event in decision.events if isinstance(event, FailureJudged) and event.member == "rollout"]
    assert [event.cause for event in judged if event.index == 0] == [Cause.START_FAILED]
    stage.gone()
    assert stage.slot("rollout").state is S.BACKOFF
    stage.wait(60_000)
    stage.bring_up()
    assert stage.slot("rollout").state is S.READY


@pytest.mark.parametrize("drains", [False, True])
def test_a_job_whose_end_nobody_saw_is_not_finished(drains: bool) -> None:
    """I11: an agent that says that it never ran it, although nobody told it to stop it, lost it."""
    stage = Stage()
    stage.run(plan(job(drain_ms=5_000), job("keeper")))
    if drains:
        stage.ask(inp.DrainSlot("g1", "actor", 0, 1))
    stage.exit("actor", code=None)
    slot = stage.slot("actor")
    assert slot.state is not S.DONE
    assert slot.exit is not None
    assert slot.exit.cause is (Cause.DRAINED if drains else Cause.AGENT_LOST)
    stage.wait(60_000)
    stage.bring_up()
    assert stage.slot("actor").state is S.READY


def test_what_a_user_stopped_and_brought_back_since_it_failed_matches_no_rule() -> None:
    """All in one batch: by the time the rules would be asked, it waits for its next place already."""
    stage = Stage()
    stage.run(plan(job(), replicas()))
    decision = stage.feed(stage.exited("rollout", 1), inp.StopMember("g1", "rollout"), inp.RestartSlot("g1", "rollout", 1, 1))
    judged = {event.index: event.action for event in decision.events if isinstance(event, FailureJudged)}
    assert judged == {1: ""}
    stage.gone()
    stage.wait(60_000)
    stage.bring_up()
    assert stage.group().state is G.RUNNING
