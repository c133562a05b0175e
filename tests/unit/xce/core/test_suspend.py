"""Suspend, resume and the restart of a whole group, by a user."""

from __future__ import annotations

import pytest

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.effects import Prepare, Start, Stop, Unprepare
from gangflow.xce.core.plan import Action, Cause, ClaimPlan, RulePlan
from gangflow.xce.core.state import ClaimState, GroupState, PendCode, SlotState
from gangflow.xce.machine import next_deadline
from tests.unit.xce.core.plans import hosts, job, plan, replicas
from tests.unit.xce.core.stage import Stage

G, S = GroupState, SlotState
PAIR = plan(job(), replicas())


def suspend(stage: Stage, group: str = "g1", message: str = "") -> dict[str, str | int]:
    """The fields of the answer, which must be a good one."""
    reply = stage.ask(inp.SuspendGroup(group, message))
    assert reply.ok, reply
    return dict(reply.fields)


def resume(stage: Stage, group: str = "g1") -> dict[str, str | int]:
    reply = stage.ask(inp.ResumeGroup(group))
    assert reply.ok, reply
    return dict(reply.fields)


def holds_nothing(stage: Stage, group: str = "g1") -> bool:
    return not any(slot.tasks for slot in stage.group(group).slots.values())


def test_what_waits_is_suspended_at_once_and_who_is_behind_it_goes_on_in_the_same_batch() -> None:
    """Scenario 11: a suspended group holds no place, no reservation and no turn."""
    stage = Stage(hosts(2, cpu=2_000))
    stage.run(plan(job(cpu=2_000), name="first"))
    stage.submit(plan(job(cpu=2_000), replicas(count=1, cpu=2_000), name="second", priority=90))
    assert stage.group("g2").state is G.PENDING
    assert suspend(stage, "g2", "at night") == {"id": "g2", "state": "SUSPENDED"}
    group = stage.group("g2")
    assert (group.cause, group.message, group.until_ms) == ("user", "at night", 0)
    assert group.reason is not None
    assert group.reason.code is PendCode.SUSPENDED
    assert group.reason.text == "suspended (user: at night); waits for a resume"
    stage.submit(plan(job(cpu=2_000), name="third"))
    assert stage.group("g3").state is G.PREPARING
    before = stage.state
    assert suspend(stage, "g2") == {"id": "g2", "state": "SUSPENDED"}
    assert stage.state is before, "a suspended group is suspended: nothing happens"


def test_what_runs_gives_its_places_to_the_next_in_the_batch_that_confirms_the_end() -> None:
    """Scenario 11: the capacity of a group that is being suspended is free when, and as soon as, it is confirmed gone."""
    stage = Stage(hosts(1, cpu=3_000))
    stage.run(PAIR)
    stage.submit(plan(job(cpu=3_000), name="next"))
    assert suspend(stage) == {"id": "g1", "state": "SUSPENDING"}
    assert suspend(stage)["state"] == "SUSPENDING"
    stops = stage.due(Stop)
    assert len(stops) == 3
    for stop in stops[:2]:
        stage.feed(inp.TaskExited(stop.task, stop.host, signal=15))
    assert (stage.group().state, stage.group("g2").state) == (G.SUSPENDING, G.PENDING)
    stage.feed(inp.TaskExited(stops[2].task, stops[2].host, signal=15))
    assert (stage.group().state, stage.group("g2").state) == (G.SUSPENDED, G.PREPARING)
    assert holds_nothing(stage)
    assert set(stage.states().values()) == {"PENDING"}
    assert stage.group().budgets == (), "what a user stopped matches no rule"
    assert "FailureJudged" not in stage.kinds()
    stage.wait(10_000_000)
    assert stage.group().state is G.SUSPENDED


def test_a_try_that_is_suspended_never_starts() -> None:
    stage = Stage()
    stage.submit(PAIR)
    stage.prepare("actor")
    assert suspend(stage)["state"] == "SUSPENDING"
    assert stage.due(Prepare, Start) == []
    stage.gone()
    assert stage.group().state is G.SUSPENDED
    assert stage.group().attempt == 0, "a try that a user took back does not count"
    assert next_deadline(stage.state) is None


def test_a_group_whose_voided_try_is_still_being_unprepared_is_suspending() -> None:
    stage = Stage()
    stage.submit(PAIR)
    prepare = stage.due(Prepare)[0]
    stage.feed(inp.TaskRefused(prepare.task, prepare.host, "port 20000 is taken"))
    assert stage.group().state is G.PENDING
    assert stage.due(Unprepare)
    assert suspend(stage)["state"] == "SUSPENDING"
    stage.gone()
    assert stage.group().state is G.SUSPENDED
    resume(stage)
    assert stage.group().state is G.PREPARING, "the backoff of a try before it does not count any more"
    assert stage.group().attempt == 0


def test_a_resume_is_a_wait_at_the_old_place() -> None:
    stage = Stage(hosts(1, cpu=3_000))
    stage.run(PAIR)
    submitted = stage.group().submitted_ms
    stage.now_ms += 1_000
    suspend(stage)
    early = stage.ask(inp.ResumeGroup("g1"))
    assert (early.status, early.code) == (409, "conflict")
    assert "not yet" in early.message
    stage.gone()
    stage.run(plan(job(cpu=3_000), name="second"))
    stage.submit(plan(job(cpu=3_000), name="third"))
    assert resume(stage)["state"] == "PENDING"
    group = stage.group()
    assert (group.submitted_ms, group.cause, group.message) == (submitted, "", "")
    assert group.reason is not None
    assert group.reason.code is PendCode.WAITING_CAPACITY
    stage.ask(inp.EndGroup("g2", G.CANCELLED))
    stage.gone()
    assert (stage.group().state, stage.group("g3").state) == (G.PREPARING, G.PENDING), "it was there first"
    stage.bring_up()
    assert (stage.group().state, stage.group().epoch) == (G.RUNNING, 2)
    assert {slot.incarnation for slot in stage.group().slots.values()} == {2}


def test_a_resume_does_not_run_what_finished_again() -> None:
    """A restart does; a resume goes on where the group was."""
    stage = Stage()
    stage.run(plan(job("prepare"), job("actor"), replicas(count=3, least=1), rules=(RulePlan(Action.TOLERATE, "rollout"),)))
    stage.exit("prepare", code=0)
    stage.exit("rollout", 1)
    suspend(stage)
    stage.gone()
    expected = {"rollout[0]": "PENDING", "rollout[1]": "RETIRED", "rollout[2]": "PENDING"}
    assert stage.states() == {"prepare[0]": "DONE", "actor[0]": "PENDING", **expected}
    resume(stage)
    assert [(p.task.member, p.task.index) for p in stage.due(Prepare)] == [("actor", 0), ("rollout", 0)]
    stage.bring_up()
    stage.bring_up()
    assert stage.group().state is G.RUNNING
    expected = {"rollout[0]": "READY", "rollout[1]": "RETIRED", "rollout[2]": "READY"}
    assert stage.states() == {"prepare[0]": "DONE", "actor[0]": "READY", **expected}
    stage.exit("actor", code=0)
    stage.gone()
    assert stage.group().state is G.SUCCEEDED


def test_a_job_that_was_given_up_stays_so_over_a_resume() -> None:
    stage = Stage()
    stage.run(plan(job("side"), job("actor"), rules=(RulePlan(Action.TOLERATE, "side"),)))
    stage.exit("side")
    suspend(stage)
    stage.gone()
    resume(stage)
    stage.bring_up()
    assert stage.group().state is G.RUNNING
    assert stage.states() == {"side[0]": "RETIRED", "actor[0]": "READY"}


def test_a_minimum_that_a_grace_had_broken_is_whole_again_after_a_resume() -> None:
    """A group starts with its minimum or not at all: as many as it lacks are not given up any more."""
    stage = Stage()
    rule = RulePlan(Action.TOLERATE, "rollout", floor_grace_ms=600_000)
    stage.run(plan(job(), replicas(count=3, least=2), rules=(rule,)))
    stage.exit("rollout", 0)
    stage.exit("rollout", 1)
    assert stage.group().state is G.DEGRADED
    suspend(stage)
    stage.gone()
    assert stage.group().below_floor_ms == ()
    resume(stage)
    stage.bring_up()
    assert stage.group().state is G.RUNNING
    assert stage.states() == {"actor[0]": "READY", "rollout[0]": "READY", "rollout[1]": "RETIRED", "rollout[2]": "READY"}
    assert stage.group().tolerated == (("rollout", 1),)


def test_failures_of_a_group_that_is_being_suspended_are_recorded_and_match_nothing() -> None:
    stage = Stage()
    stage.run(PAIR)
    stage.feed(stage.exited("actor", code=7), inp.SuspendGroup("g1"), stage.exited("rollout", 0, code=1))
    assert stage.group().state is G.SUSPENDING
    exit = stage.slot("actor").exit
    assert exit is not None
    assert (exit.cause, exit.code) == (Cause.APP_EXIT, 7)
    stage.gone()
    assert stage.group().state is G.SUSPENDED
    assert set(stage.states().values()) == {"PENDING"}


def test_a_restart_that_waits_for_places_gives_back_what_it_kept() -> None:
    stage = Stage(hosts(2, cpu=1_000))
    stage.run(plan(job(), replicas(count=1), rules=(RulePlan(Action.RESTART_GROUP, max_restarts=5),)))
    stage.lose("h0", fence_ms=1_000)
    stage.gone()
    stage.wait(1_000)
    assert stage.group().state is G.RESTARTING
    assert stage.slot("rollout").tasks
    assert suspend(stage)["state"] == "SUSPENDED", "in the same batch"
    assert holds_nothing(stage)


def test_a_host_that_is_lost_meanwhile_is_waited_for_until_it_is_fenced() -> None:
    stage = Stage(hosts(3, cpu=1_000))
    stage.run(plan(replicas(count=2)))
    stage.lose("h0", fence_ms=5_000)
    suspend(stage)
    stage.gone()
    assert stage.group().state is G.SUSPENDING
    stage.wait(5_000)
    assert stage.group().state is G.SUSPENDED


def test_claims_outlive_a_suspension() -> None:
    stage = Stage()
    stage.run(plan(job(), claims=(ClaimPlan("ckpt"), ClaimPlan("scratch", scope="actor"))))
    suspend(stage)
    stage.gone()
    assert stage.group().state is G.SUSPENDED
    assert {stage.claim(name).state for name in ("g1/ckpt", "g1/actor[0]/scratch")} == {ClaimState.READY}
    resume(stage)
    assert {stage.claim(name).attempt for name in ("g1/ckpt", "g1/actor[0]/scratch")} == {1}


@pytest.mark.parametrize("state", ["SUSPENDED", "SUSPENDING"])
def test_a_suspended_group_can_be_cancelled(state: str) -> None:
    stage = Stage()
    stage.run(PAIR)
    suspend(stage)
    if state == "SUSPENDED":
        stage.gone()
        refused = stage.ask(inp.EndGroup("g1", G.FAILED))
        assert (refused.status, refused.code) == (409, "conflict")
    assert stage.ask(inp.EndGroup("g1", G.CANCELLED)).ok
    stage.gone()
    assert stage.group().state is G.CANCELLED
    refused = stage.ask(inp.SuspendGroup("g1"))
    assert (refused.status, refused.code) == (409, "conflict")
    refused = stage.ask(inp.ResumeGroup("g1"))
    assert (refused.status, dict(refused.fields)) == (409, {"state": "CANCELLED"})


def test_what_runs_is_not_resumed() -> None:
    stage = Stage()
    stage.run(PAIR)
    refused = stage.ask(inp.ResumeGroup("g1"))
    assert (refused.status, dict(refused.fields)) == (409, {"state": "RUNNING"})


def test_replicas_above_the_minimum_stand_behind_everybodys_minimum_also_after_a_resume() -> None:
    """What ran before the suspension is surplus as it was at first: a later group's minimum goes before it."""
    stage = Stage(hosts(1, cpu=3_000))
    stage.run(plan(job(), replicas(count=2, least=1)))
    stage.bring_up()
    suspend(stage)
    stage.gone()
    stage.run(plan(job(cpu=1_000), name="small"))
    resume(stage)
    stage.prepare()
    stage.submit(plan(job(cpu=1_000), name="later"))
    assert stage.slot("rollout", 1).state is S.PENDING
    stage.ask(inp.EndGroup("g2", G.CANCELLED))
    stage.gone()
    assert stage.group("g3").state is G.PREPARING
    assert stage.slot("rollout", 1).state is S.PENDING
    stage.ask(inp.EndGroup("g3", G.CANCELLED))
    stage.gone()
    assert stage.slot("rollout", 1).state is S.PLACED


# --- :restart of a whole group --------------------------------------------------------------------------------------------


def test_a_user_restarts_a_group_on_its_places_outside_rules_and_budgets() -> None:
    """Scenario 73: one barrier for each incarnation of the group; nobody of the new epoch runs before all are prepared."""
    stage = Stage()
    stage.run(plan(job("prepare"), job("actor"), replicas()))
    stage.exit("prepare", code=0)
    places = {key: slot.tasks[0].host for key, slot in stage.group().slots.items() if slot.tasks}
    reply = stage.ask(inp.RestartGroup("g1", "new data"))
    assert dict(reply.fields) == {"id": "g1", "state": "RESTARTING"}
    assert (stage.group().cause, stage.group().message) == ("user", "new data")
    again = stage.ask(inp.RestartGroup("g1"))
    assert (again.status, dict(again.fields)) == (409, {"state": "RESTARTING"})
    assert stage.due(Prepare) == []
    stage.gone()
    assert stage.group().state is G.PREPARING
    stage.prepare("prepare", "actor")
    assert stage.due(Start) == [], "not everybody is prepared"
    stage.prepare("rollout")
    assert len(stage.due(Start)) == 4, "what finished runs again"
    stage.bring_up()
    group = stage.group()
    assert (group.state, group.epoch, group.budgets, group.cause) == (G.RUNNING, 2, (), "")
    assert {key: group.slots[key].tasks[0].host for key in places} == places


@pytest.mark.parametrize("state", ["PENDING", "PREPARING", "SUSPENDED", "CANCELLED"])
def test_only_what_has_started_is_restarted(state: str) -> None:
    stage = Stage(hosts(1, cpu=3_000))
    if state == "PENDING":
        stage.run(plan(job(cpu=3_000), name="other"))
    group = stage.submit(PAIR)
    if state in ("SUSPENDED", "CANCELLED"):
        stage.ask(inp.SuspendGroup(group) if state == "SUSPENDED" else inp.EndGroup(group, G.CANCELLED))
        stage.gone()
    assert stage.group(group).state.value == state
    refused = stage.ask(inp.RestartGroup(group))
    assert (refused.status, refused.code, dict(refused.fields)) == (409, "conflict", {"state": state})


def test_what_was_told_of_a_try_before_is_not_held_against_the_next_one_in_the_same_batch() -> None:
    stage = Stage()
    stage.submit(plan(job()))
    bad = stage.due(Prepare)[0]
    stage.feed(inp.TaskRefused(bad.task, bad.host, "no"), inp.SuspendGroup("g1"), inp.ResumeGroup("g1"))
    assert (stage.group().state, stage.group().attempt) == (G.PREPARING, 0)
    assert stage.slot("actor").incarnation == 2
