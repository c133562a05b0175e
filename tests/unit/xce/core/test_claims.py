"""Template claims: made after placement, kept through tries and epochs, released as an obligation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.effects import Prepare, Provision, Release, Start
from gangflow.xce.core.plan import Action, BackoffPlan, Cause, ClaimPlan, RulePlan
from gangflow.xce.core.state import ClaimState, GroupState, SlotState
from tests.unit.xce.core.plans import hosts, job, plan, replicas
from tests.unit.xce.core.stage import Stage

G, S, C = GroupState, SlotState, ClaimState
CKPT = ClaimPlan("ckpt", retain=True, timeout_ms=5_000, parameters=(("size", "1"),))
SCRATCH = ClaimPlan("scratch", scope="rollout")
WITH = plan(job(), replicas(), claims=(CKPT,))


def test_a_claim_is_made_after_placement_and_named_to_the_tasks() -> None:
    stage = Stage(hosts(0))
    stage.submit(WITH)
    assert stage.claim("g1/ckpt").state is C.NEW
    assert stage.due(Provision) == []
    stage.facts = {one.name: one for one in hosts(1)}
    stage.up_host("h0")
    (provision,) = stage.due(Provision)
    assert (provision.claim, provision.attempt, provision.hosts) == ("g1/ckpt", 1, ("h0",))
    assert stage.due(Prepare) == [], "a task's environment names its claims"
    stage.claims_ready()
    launches = [effect.launch for effect in stage.due(Prepare)]
    assert len(launches) == 3
    assert all(dict(launch.environment)["XCE_CLAIM_CKPT"] == "/claims/g1/ckpt" for launch in launches)


def test_the_barrier_waits_for_the_claims() -> None:
    """Scenario 73: READY claims are a part of the release's condition."""
    stage = Stage()
    stage.submit(plan(job(), replicas(), claims=(SCRATCH,)))
    assert len(stage.due(Provision)) == 2
    stage.prepare("actor")
    stage.feed(inp.ClaimReady("g1/rollout[0]/scratch", 1, "/s0"))
    stage.prepare()
    assert stage.due(Start) == []
    assert stage.group().state is G.PREPARING
    stage.claims_ready()
    stage.prepare()
    assert stage.group().state is G.STARTING


def test_a_failed_claim_is_tried_again_within_the_try() -> None:
    """Scenario 76: a provider that fails or hangs has a deadline of its own, and only its group waits."""
    stage = Stage()
    stage.submit(WITH)
    stage.submit(plan(job(), name="other"))
    stage.feed(inp.ClaimFailed("g1/ckpt", 1, "disk full"))
    assert stage.claim("g1/ckpt").message == "disk full"
    stage.prepare()
    assert stage.group("g2").state is G.STARTING
    stage.wait(1_000)
    assert (stage.claim("g1/ckpt").state, stage.claim("g1/ckpt").attempt) == (C.PROVISIONING, 2)
    assert stage.feed(inp.ClaimReady("g1/ckpt", 1, "/late")).events == (), "an answer to an earlier attempt"
    stage.wait(5_000)
    assert stage.claim("g1/ckpt").state is C.FAILED
    assert "not ready after 5s" in stage.claim("g1/ckpt").message
    stage.wait(2_000)
    stage.bring_up()
    assert stage.group().state is G.RUNNING


def test_a_claim_that_stays_broken_voids_the_try_by_name() -> None:
    stage = Stage()
    stage.submit(replace(WITH, barrier=replace(WITH.barrier, timeout_ms=20_000)))
    while stage.group().state is G.PREPARING:
        for effect in stage.due(Provision):
            stage.feed(inp.ClaimFailed(effect.claim, effect.attempt, "no such pool"))
        stage.wait(1_000)
    assert stage.group().cause == "barrier_timeout"
    assert "claim ckpt is FAILED (no such pool)" in stage.group().message


def test_a_group_claim_outlives_tries_and_epochs() -> None:
    stage = Stage()
    stage.submit(replace(WITH, rules=(RulePlan(Action.RESTART_GROUP, "actor"), *WITH.rules)))
    stage.claims_ready()
    bad = stage.due(Prepare)[0]
    stage.feed(inp.TaskRefused(bad.task, bad.host, "no"))
    assert stage.claim("g1/ckpt").state is C.READY
    stage.gone()
    stage.wait(1_000)
    stage.bring_up()
    stage.exit("actor")
    stage.gone()
    stage.wait(1_000)
    stage.bring_up()
    assert stage.group().state is G.RUNNING
    assert (stage.claim("g1/ckpt").state, stage.claim("g1/ckpt").attempt) == (C.READY, 1)


def test_release_is_owed_until_confirmed_and_then_the_group_can_be_forgotten() -> None:
    """Scenario 13: the release is an obligation of the state, however often its provider fails."""
    stage = Stage()
    stage.run(replace(WITH, claims=(replace(CKPT, retain=False),)))
    stage.exit("actor", code=0)
    stage.gone()
    assert stage.group().state is G.SUCCEEDED
    for _ in range(5):
        (release,) = stage.due(Release)
        assert (release.claim, release.path, release.retain) == ("g1/ckpt", "/claims/g1/ckpt", False)
        stage.wait(48 * 3_600_000)
    assert "g1" in stage.state.groups, "it is not forgotten while something is owed"
    stage.claims_released()
    assert stage.claim("g1/ckpt").state is C.GONE
    stage.wait(48 * 3_600_000)
    assert stage.state.groups == {}
    assert stage.state.claims == {}


def test_a_claim_that_was_never_made_is_not_released() -> None:
    stage = Stage(hosts(0))
    stage.submit(WITH)
    stage.ask(inp.EndGroup("g1", G.CANCELLED))
    assert stage.claim("g1/ckpt").state is C.GONE
    assert stage.due() == []


def test_a_slot_claim_goes_with_its_slot() -> None:
    stage = Stage()
    stage.run(plan(job(), replicas(count=2, least=1), claims=(SCRATCH,), rules=(RulePlan(Action.TOLERATE, "rollout"),)))
    stage.exit("rollout", 1)
    assert [effect.claim for effect in stage.due(Release)] == ["g1/rollout[1]/scratch"]
    assert stage.claim("g1/rollout[0]/scratch").state is C.READY
    stage.ask(inp.RestartSlot("g1", "rollout", 1, 1))
    assert stage.claim("g1/rollout[1]/scratch").state is C.RELEASING
    stage.claims_released()
    assert stage.claim("g1/rollout[1]/scratch").state is C.PROVISIONING, "wanted again while it was being released"
    stage.bring_up()
    assert stage.slot("rollout", 1).state is S.READY


def test_a_host_bound_claim_is_undone_with_a_voided_try() -> None:
    stage = Stage()
    stage.submit(WITH)
    stage.feed(inp.ClaimReady("g1/ckpt", 1, "/local", "h0"))
    bad = stage.due(Prepare)[0]
    stage.feed(inp.TaskRefused(bad.task, bad.host, "no"))
    assert stage.claim("g1/ckpt").state is C.RELEASING
    stage.gone()
    stage.claims_released()
    stage.wait(1_000)
    assert (stage.claim("g1/ckpt").state, stage.claim("g1/ckpt").attempt) == (C.PROVISIONING, 2)


def test_losing_the_host_of_a_claim_fails_those_who_use_it() -> None:
    stage = Stage(hosts(2, cpu=2_000))
    rule = RulePlan(Action.RESTART_GROUP, causes=(Cause.CLAIM_LOST,))
    stage.submit(plan(job(cpu=2_000), replicas(count=1), claims=(CKPT,), rules=(rule,)))
    stage.feed(inp.ClaimReady("g1/ckpt", 1, "/local", "h1"))
    stage.bring_up()
    assert stage.group().state is G.RUNNING
    stage.lose("h1", fence_ms=1_000)
    exit = stage.slot("actor").exit
    assert exit is not None
    assert exit.cause is Cause.CLAIM_LOST
    assert stage.claim("g1/ckpt").state is C.LOST
    assert stage.group().state is G.RESTARTING
    stage.gone()
    stage.wait(1_000)
    stage.up_host("h1", "b2")
    stage.wait(1_000)
    assert (stage.claim("g1/ckpt").state, stage.claim("g1/ckpt").attempt) == (C.PROVISIONING, 2)


@pytest.mark.parametrize("fenced", [False, True])
def test_a_host_that_is_lost_after_its_agent_takes_its_claims_along(fenced: bool) -> None:
    stage = Stage(hosts(2, cpu=2_000))
    rule = RulePlan(Action.RESTART_GROUP, causes=(Cause.CLAIM_LOST,))
    stage.submit(plan(job(cpu=2_000), replicas(count=1), claims=(CKPT,), rules=(rule,)))
    stage.feed(inp.ClaimReady("g1/ckpt", 1, "/local", "h1"))
    stage.bring_up()
    stage.feed(inp.HostGone("h1", 1_000, agent_only=True))
    if fenced:
        stage.wait(1_000)
    assert (stage.claim("g1/ckpt").state, stage.group().state is G.RESTARTING) == (C.READY, False)
    stage.feed(inp.HostGone("h1", 1_000))
    assert stage.claim("g1/ckpt").state is C.LOST
    assert stage.group().state is G.RESTARTING
    before = stage.state
    stage.feed(inp.HostGone("h1", 1_000))
    assert stage.state == before


def test_a_failed_claim_waits_for_what_it_comes_after_without_a_deadline_of_its_own() -> None:
    """Its pause is over while that is not there: it is made in its turn, and until then time alone changes nothing."""
    stage = Stage()
    stage.submit(plan(replicas(count=1), claims=(CKPT, replace(SCRATCH, after=("ckpt",)))))
    stage.feed(inp.ClaimReady("g1/ckpt", 1, "/ckpt"))
    stage.feed(inp.ClaimFailed("g1/rollout[0]/scratch", 1, "disk full"))
    stage.feed(inp.ClaimLost("g1/ckpt", 1))
    assert stage.group().state is G.PREPARING
    for _ in range(3):
        stage.wait(1_000)
    assert stage.claim("g1/rollout[0]/scratch").state is C.FAILED
    assert stage.claim("g1/rollout[0]/scratch").message == "disk full"
    stage.claims_ready()
    assert stage.claim("g1/rollout[0]/scratch").state is C.PROVISIONING
    stage.bring_up()
    assert stage.group().state is G.RUNNING


def test_a_claim_made_on_a_host_that_is_lost_by_then_is_made_again() -> None:
    """Nobody may start with it: the answer was on its way when the host went."""
    stage = Stage(hosts(3, cpu=2_000))
    rule = RulePlan(Action.RESTART_MEMBER, causes=(Cause.CLAIM_LOST,), backoff=BackoffPlan(5_000, 1_000, 5_000))
    stage.submit(plan(replicas(count=1), claims=(CKPT,), rules=(rule,)))
    stage.feed(inp.ClaimReady("g1/ckpt", 1, "/local", "h1"))
    stage.bring_up()
    stage.feed(inp.ClaimLost("g1/ckpt", 1))
    stage.gone()
    stage.wait(5_000)
    stage.lose("h1")
    stage.feed(inp.ClaimReady("g1/ckpt", 2, "/local", "h1"))
    assert stage.claim("g1/ckpt").state is C.FAILED
    assert "h1" in stage.claim("g1/ckpt").message
    assert stage.slot("rollout").state is S.PLACED
    assert stage.due(Prepare) == []
    stage.wait(2_000)
    stage.bring_up()
    assert stage.slot("rollout").state is S.READY
