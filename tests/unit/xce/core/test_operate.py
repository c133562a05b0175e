"""Members that a user stops and brings back; exclusions that are lifted by hand."""

from __future__ import annotations

import pytest

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.effects import Prepare, Stop
from gangflow.xce.core.plan import Action, Cause, ClaimPlan, RulePlan
from gangflow.xce.core.state import ClaimState, GroupState, SlotState
from tests.unit.xce.core.plans import hosts, job, plan, replicas
from tests.unit.xce.core.stage import Stage

G, S = GroupState, SlotState
TRIO = plan(job("actor"), job("ref", primary=False), replicas())


def stop_member(stage: Stage, member: str) -> None:
    reply = stage.ask(inp.StopMember("g1", member))
    assert reply.ok, reply
    assert dict(reply.fields) == {"id": "g1", "member": member}


def test_the_rest_of_the_group_goes_on_without_a_member_that_was_stopped() -> None:
    stage = Stage()
    stage.run(TRIO)
    stop_member(stage, "rollout")
    assert {stop.task.member for stop in stage.due(Stop)} == {"rollout"}
    assert stage.group().state is G.RUNNING, "its minimum does not count any more"
    stage.gone()
    assert stage.states() == {"actor[0]": "READY", "ref[0]": "READY", "rollout[0]": "RETIRED", "rollout[1]": "RETIRED"}
    assert stage.group().tolerated == (), "no rule was asked, and nothing was tolerated"
    assert "FailureJudged" not in stage.kinds()
    before = stage.state
    stop_member(stage, "rollout")
    assert stage.state is before
    stage.exit("actor", code=0)
    stage.gone()
    assert stage.group().state is G.SUCCEEDED


def test_a_member_that_was_stopped_stays_out_of_restarts_suspension_and_placement() -> None:
    stage = Stage()
    stage.run(TRIO)
    stop_member(stage, "rollout")
    stage.ask(inp.RestartGroup("g1"))
    stage.gone()
    stage.bring_up()
    assert stage.group().state is G.RUNNING
    stage.ask(inp.SuspendGroup("g1"))
    stage.gone()
    assert stage.group().state is G.SUSPENDED
    stage.ask(inp.ResumeGroup("g1"))
    assert {prepare.task.member for prepare in stage.due(Prepare)} == {"actor", "ref"}
    stage.bring_up()
    assert stage.group().state is G.RUNNING
    assert stage.states()["rollout[0]"] == "RETIRED"


def test_a_restart_by_hand_brings_the_member_back() -> None:
    """All of it, but for what a rule had given up."""
    stage = Stage()
    stage.run(plan(job(), replicas(count=3, least=1), rules=(RulePlan(Action.TOLERATE, "rollout", slot=2),)))
    stage.exit("rollout", 2)
    stop_member(stage, "rollout")
    stage.gone()
    assert stage.ask(inp.RestartSlot("g1", "rollout", 1, 1)).ok
    assert stage.group().stopped == ()
    stage.bring_up()
    assert stage.states() == {"actor[0]": "READY", "rollout[0]": "READY", "rollout[1]": "READY", "rollout[2]": "RETIRED"}
    assert stage.group().state is G.RUNNING


def test_a_member_that_is_brought_back_while_it_is_still_being_stopped_starts_again() -> None:
    stage = Stage()
    stage.run(TRIO)
    stop_member(stage, "rollout")
    assert stage.ask(inp.RestartSlot("g1", "rollout", 0, 1)).ok
    stage.gone()
    stage.bring_up()
    assert stage.states()["rollout[0]"] == stage.states()["rollout[1]"] == "READY"


def test_a_member_is_stopped_before_its_group_has_started() -> None:
    stage = Stage(hosts(1, cpu=3_000))
    stage.submit(plan(job(), job("ref", primary=False), replicas(count=2, cpu=2_000)))
    assert stage.group().state is G.PENDING
    stop_member(stage, "rollout")
    assert stage.group().state is G.PREPARING, "what is left of it fits"
    stop_member(stage, "ref")
    stage.prepare()
    assert stage.group().state is G.STARTING
    stage.gone()
    stage.bring_up()
    assert stage.group().state is G.RUNNING
    assert stage.states() == {"actor[0]": "READY", "ref[0]": "RETIRED", "rollout[0]": "RETIRED", "rollout[1]": "RETIRED"}


@pytest.mark.parametrize("when", ["PENDING", "PREPARING", "RUNNING", "RESTARTING", "SUSPENDED"])
def test_without_its_last_primary_job_a_group_is_over(when: str) -> None:
    stage = Stage(hosts(1, cpu=4_000))
    if when == "PENDING":
        stage.lose("h0", fence_ms=0)
    stage.submit(TRIO)
    if when not in ("PENDING", "PREPARING"):
        stage.bring_up()
    if when == "RESTARTING":
        stage.ask(inp.RestartGroup("g1"))
    if when == "SUSPENDED":
        stage.ask(inp.SuspendGroup("g1"))
        stage.gone()
    assert stage.group().state.value == when
    stop_member(stage, "actor")
    stage.gone()
    group = stage.group()
    assert (group.state, group.cause) == (G.CANCELLED, "user")
    assert "actor" in group.message


def test_a_finished_job_is_what_a_group_ends_with() -> None:
    stage = Stage()
    stage.run(plan(job("first"), job("second"), replicas()))
    stage.exit("first", code=0)
    stop_member(stage, "second")
    stage.gone()
    assert stage.group().state is G.SUCCEEDED
    assert stage.slot("first").state is S.DONE


def test_a_service_of_which_nothing_is_left_is_over() -> None:
    stage = Stage()
    stage.run(plan(replicas("a", 1), replicas("b", 1)))
    stop_member(stage, "a")
    assert stage.group().state is G.RUNNING
    stop_member(stage, "b")
    stage.gone()
    assert (stage.group().state, stage.group().cause) == (G.CANCELLED, "user")


def test_what_failed_when_its_member_was_stopped_matches_no_rule() -> None:
    stage = Stage()
    stage.run(plan(job(), replicas(), rules=(RulePlan(Action.FAIL_GROUP, "rollout"),)))
    stage.feed(stage.exited("rollout", 0, code=9), inp.StopMember("g1", "rollout"))
    assert stage.group().state is G.RUNNING
    exit = stage.slot("rollout").exit
    assert exit is not None
    assert (exit.cause, exit.code) == (Cause.APP_EXIT, 9)
    assert stage.slot("rollout").state is S.RETIRED


def test_the_claims_of_a_members_slots_go_with_it() -> None:
    stage = Stage()
    stage.run(plan(job(), replicas(count=1), claims=(ClaimPlan("cache", scope="rollout"), ClaimPlan("ckpt"))))
    stop_member(stage, "rollout")
    stage.gone()
    assert stage.claim("g1/rollout[0]/cache").state is ClaimState.RELEASING
    assert stage.claim("g1/ckpt").state is ClaimState.READY


def test_a_floor_does_not_watch_a_member_that_was_stopped() -> None:
    stage = Stage()
    rule = RulePlan(Action.RESTART_MEMBER, "rollout", floor_grace_ms=5_000)
    stage.run(plan(job(), replicas(), rules=(rule,)))
    stage.exit("rollout")
    assert stage.group().below_floor_ms
    stop_member(stage, "rollout")
    assert stage.group().below_floor_ms == ()
    stage.gone()
    stage.wait(60_000)
    assert stage.group().state is G.RUNNING


def test_what_cannot_be_stopped_says_why() -> None:
    stage = Stage()
    stage.run(TRIO)
    assert stage.ask(inp.StopMember("g1", "nobody")).status == 404
    assert stage.ask(inp.StopMember("g9", "actor")).status == 404
    stage.ask(inp.EndGroup("g1", G.CANCELLED))
    refused = stage.ask(inp.StopMember("g1", "rollout"))
    assert (refused.status, refused.code) == (409, "conflict")


def test_the_slot_that_brings_its_member_back_starts_although_it_was_given_up_or_finished() -> None:
    """Whoever names a slot wants that one; of the others, those that are neither."""
    stage = Stage()
    give_up = RulePlan(Action.TOLERATE, "rollout")
    stage.run(plan(job(), job("prep", primary=False), replicas(count=3, least=1), rules=(give_up,)))
    stage.exit("prep", code=0)
    for index in (0, 1):
        stage.exit("rollout", index)
    for member in ("prep", "rollout"):
        stage.ask(inp.StopMember("g1", member))
    stage.gone()
    for member in ("prep", "rollout"):
        assert stage.ask(inp.RestartSlot("g1", member, 0, 1)).ok
    stage.bring_up()
    assert stage.group().stopped == ()
    assert {key: state for key, state in stage.states().items() if key != "actor[0]"} == {
        "prep[0]": "READY",
        "rollout[0]": "READY",
        "rollout[1]": "RETIRED",
        "rollout[2]": "READY",
    }
