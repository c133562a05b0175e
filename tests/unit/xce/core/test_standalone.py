"""Standalone claims: made and deleted by command, used by groups, retained by them, lost and made again."""

from __future__ import annotations

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.claim_ids import holders
from gangflow.xce.core.effects import Prepare, Provision, Release, Start
from gangflow.xce.core.inputs import Reply
from gangflow.xce.core.invariants_claims import claims
from gangflow.xce.core.limits import STEADY_MS
from gangflow.xce.core.plan import Access, Action, BackoffPlan, Cause, ClaimPlan, GroupPlan, RulePlan
from gangflow.xce.core.state import ClaimState, GroupState, PendCode, SlotState
from tests.unit.xce.core.plans import job, plan, replicas
from tests.unit.xce.core.stage import Stage

G, S, C = GroupState, SlotState, ClaimState


def create(stage: Stage, name: str = "data", **fields: object) -> Reply:
    return stage.ask(inp.CreateClaim(ClaimPlan(name, timeout_ms=5_000, **fields), owner="ada"))  # type: ignore[arg-type]


def made(stage: Stage, name: str = "data") -> None:
    assert create(stage, name).status == 201
    stage.claims_ready()
    assert stage.claim(name).state is C.READY


def using(name: str = "demo", access: Access = Access.EXCLUSIVE, claim: str = "data", **more: object) -> GroupPlan:
    return plan(job(), name=name, claims=(ClaimPlan("d", uses=claim, access=access),), **more)  # type: ignore[arg-type]


# --- commands -------------------------------------------------------------------------------------------------------------


def test_a_standalone_claim_is_made_at_once_and_released_when_it_is_deleted() -> None:
    stage = Stage()
    assert create(stage) == Reply(201, fields=(("id", "data"), ("state", "PROVISIONING")))
    (provision,) = stage.due(Provision)
    assert (provision.claim, provision.group, provision.name, provision.hosts) == ("data", "", "data", ())
    stage.claims_ready()
    claim = stage.claim("data")
    assert (claim.state, claim.path, claim.owner, claim.group) == (C.READY, "/claims/data", "ada", "")
    assert stage.ask(inp.DeleteClaim("data")).ok
    (release,) = stage.due(Release)
    assert (release.claim, release.path, release.retain) == ("data", "/claims/data", False)
    assert create(stage).code == "conflict", "its name is free only when nothing is left of it"
    assert stage.ask(inp.DeleteClaim("data")).ok
    stage.claims_released()
    assert stage.state.claims == {}
    assert create(stage).status == 201


def test_what_comes_late_about_a_former_claim_of_the_name_never_counts() -> None:
    stage = Stage()
    made(stage)
    assert stage.ask(inp.DeleteClaim("data")).ok
    (late,) = stage.due(Release)
    stage.claims_released()
    assert create(stage).status == 201
    (again,) = stage.due(Provision)
    stage.feed(inp.ClaimReady("data", 1, "/former"))
    assert (stage.claim("data").state, again.attempt) == (C.PROVISIONING, 2)
    stage.feed(inp.ClaimFailed("data", again.attempt, "busy"))
    assert stage.claim("data").until_ms == stage.now_ms + 1_000, "the pauses begin anew, whatever the attempts are called"
    stage.wait(1_000)
    stage.claims_ready()
    assert stage.ask(inp.DeleteClaim("data")).ok
    stage.feed(inp.ClaimReleased("data", late.attempt))
    assert stage.claim("data").state is C.RELEASING, "what is there now is not released yet"
    stage.claims_released()
    assert stage.state.claims == {}


def test_names_that_are_taken_or_not_allowed() -> None:
    stage = Stage()
    made(stage)
    assert create(stage).code == "conflict"
    assert {create(stage, name).code for name in ("g1-data", "Data", "a/b", "", "x" * 64)} == {"invalid"}
    assert stage.ask(inp.DeleteClaim("other")).code == "not_found"
    stage.run(plan(job(), claims=(ClaimPlan("ckpt"),)))
    assert stage.ask(inp.DeleteClaim("g1/ckpt")).code == "conflict", "it goes with its group"


def test_a_claim_in_use_is_not_deleted() -> None:
    """Also not while its user waits or is suspended: it would wait for ever."""
    stage = Stage()
    made(stage)
    stage.run(using(access=Access.SHARED))
    stage.submit(using("other"))
    reply = stage.ask(inp.DeleteClaim("data"))
    assert (reply.status, reply.code, reply.fields) == (409, "in_use", (("groups", "g1,g2"),))
    for group in ("g1", "g2"):
        stage.ask(inp.EndGroup(group, G.CANCELLED))
    stage.gone()
    assert stage.ask(inp.DeleteClaim("data")).ok


def test_a_group_can_use_only_what_is_there() -> None:
    stage = Stage()
    reply = stage.ask(inp.SubmitGroup(using()))
    assert (reply.status, reply.code) == (422, "invalid")
    assert "uses 'data': there is no standalone claim of that name" in reply.message
    made(stage)
    stage.run(plan(job(), claims=(ClaimPlan("ckpt"),)))
    assert stage.ask(inp.SubmitGroup(using("other", claim="g1/ckpt"))).code == "invalid", "it is a group's"
    stage.ask(inp.DeleteClaim("data"))
    assert stage.ask(inp.SubmitGroup(using("other"))).code == "conflict"


# --- providers' deadlines -------------------------------------------------------------------------------------------------


def test_a_provider_that_fails_or_is_slow_is_asked_again_after_growing_pauses() -> None:
    """Scenario 76: it has a deadline of its own, whether or not anybody waits for the claim."""
    stage = Stage()
    create(stage)
    waits = []
    for _ in range(8):
        (provision,) = stage.due(Provision)
        stage.feed(inp.ClaimFailed("data", provision.attempt, "disk full"))
        claim = stage.claim("data")
        assert (claim.state, claim.message) == (C.FAILED, "disk full")
        waits.append(claim.until_ms - stage.now_ms)
        stage.wait(waits[-1])
        assert stage.claim("data").state is C.PROVISIONING
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
    stage.wait(5_000)
    assert (stage.claim("data").state, stage.claim("data").message) == (C.FAILED, "not ready after 5s")
    stage.wait(60_000)
    stage.submit(using())
    stage.feed(inp.ClaimFailed("data", stage.claim("data").attempt, "no licence"))
    reason = stage.group().reason
    assert reason is not None
    assert reason.text == "claim data is FAILED (no licence)"
    assert stage.feed(inp.ClaimReady("data", 9, "/late")).events == (), "its time was over"


def test_what_is_bound_to_a_host_cannot_stand_alone() -> None:
    stage = Stage()
    create(stage)
    stage.feed(inp.ClaimReady("data", 1, "/x", "h0"))
    assert stage.claim("data").state is C.FAILED
    assert "on h0 only" in stage.claim("data").message


# --- use ------------------------------------------------------------------------------------------------------------------


def test_a_group_waits_for_its_claim_and_holds_nothing() -> None:
    """Scenario 76, Scenario 72: it is PENDING with the claim's name, others are placed, and READY wakes it."""
    stage = Stage()
    create(stage)
    stage.submit(using())
    reason = stage.group().reason
    assert reason is not None
    assert (reason.code, reason.text) == (PendCode.WAITING_CLAIMS, "claim data is PROVISIONING")
    assert not any(slot.tasks for slot in stage.group().slots.values())
    stage.submit(plan(job(), name="other"))
    stage.prepare()
    stage.start()
    assert stage.group("g2").state is G.RUNNING
    stage.claims_ready()
    assert stage.group().state is G.PREPARING
    launches = [effect.launch for effect in stage.due(Prepare)]
    assert [dict(launch.environment)["XCE_CLAIM_D"] for launch in launches] == ["/claims/data"]


def test_an_exclusive_claim_has_one_holder_and_the_next_is_woken() -> None:
    stage = Stage()
    made(stage)
    stage.run(using())
    for name in ("second", "third"):
        stage.submit(using(name))
    reason = stage.group("g2").reason
    assert reason is not None
    assert (reason.code, reason.blocker) == (PendCode.WAITING_CLAIMS, "g1")
    stage.exit("actor", code=0)
    assert stage.group("g2").state is G.PREPARING, "the first in order, as soon as nothing of the holder is left"
    reason = stage.group("g3").reason
    assert reason is not None
    assert reason.blocker == "g2"


def test_two_members_of_one_group_use_one_claim_and_it_is_held_once() -> None:
    stage = Stage()
    made(stage)
    both = tuple(ClaimPlan("d", scope=scope, uses="data", access=Access.EXCLUSIVE) for scope in ("actor", "rollout"))
    stage.run(plan(job(), replicas(count=2), claims=both))
    assert holders(stage.state.groups.values()) == {"data": [("g1", Access.EXCLUSIVE)]}
    assert [wrong for wrong in claims(stage.state) if wrong] == []


def test_a_holder_keeps_its_claim_until_its_last_task_is_gone() -> None:
    stage = Stage()
    made(stage)
    stage.run(using())
    stage.submit(using("second"))
    stage.ask(inp.EndGroup("g1", G.CANCELLED))
    assert stage.group("g1").state is G.STOPPING
    assert stage.group("g2").state is G.PENDING
    stage.gone()
    assert stage.group("g2").state is G.PREPARING


def test_a_group_whose_restart_finds_no_place_lets_go_of_its_claim() -> None:
    """It waits as a whole again, and holds nothing: whoever waits for the claim has it."""
    stage = Stage()
    made(stage)
    stage.run(using(rules=(RulePlan(Action.RESTART_GROUP, causes=(Cause.HOST_LOST,)),), recovery_timeout_ms=20_000))
    stage.submit(using("second"))
    (host,) = {task.host for task in stage.slot("actor").tasks}
    other = next(name for name in stage.facts if name != host)
    stage.run(plan(job(cpu=4_000), name="big"))
    assert {task.host for task in stage.slot("actor", group="g3").tasks} == {other}
    stage.lose(host, fence_ms=1_000)
    stage.wait(1_000)
    assert stage.group("g1").state is G.RESTARTING
    reason = stage.group("g2").reason
    assert reason is not None
    assert reason.blocker == "g1", "a group that restarts keeps what it has"
    while stage.group("g1").state is G.RESTARTING:
        stage.wait(5_000)
    assert stage.group("g1").state is G.PENDING
    stage.up_host(host, "b2")
    placed = [group.id for group in stage.state.groups.values() if group.state is G.PREPARING]
    assert placed == ["g1"], "by order of submission"


def test_a_claim_of_a_member_is_seen_by_that_member_only() -> None:
    stage = Stage()
    made(stage)
    stage.submit(plan(job(), replicas(), claims=(ClaimPlan("d", scope="rollout", uses="data"),)))
    seen = {effect.task.member: dict(effect.launch.environment).get("XCE_CLAIM_D") for effect in stage.due(Prepare)}
    assert seen == {"actor": None, "rollout": "/claims/data"}


# --- lost -----------------------------------------------------------------------------------------------------------------


def test_who_runs_with_a_lost_claim_fails_and_waits_for_it() -> None:
    stage = Stage()
    made(stage)
    rule = RulePlan(Action.RESTART_MEMBER, causes=(Cause.CLAIM_LOST,), backoff=BackoffPlan(500, 1_000, 500))
    stage.run(using(rules=(rule,)))
    stage.feed(inp.ClaimLost("data", 1, "gone from the server"))
    exit = stage.slot("actor").exit
    assert exit is not None
    assert (exit.cause, exit.message) == (Cause.CLAIM_LOST, "claim data is lost: gone from the server")
    stage.gone()
    stage.wait(500)
    assert stage.slot("actor").state is S.PLACED
    assert stage.due(Prepare) == [], "its environment would name what is not there"
    assert stage.due(Provision) == [], "a claim that was lost is made again after a pause"
    stage.wait(500)
    stage.bring_up()
    assert stage.slot("actor").state is S.READY
    assert stage.claim("data").attempt == 2


def test_a_claim_lost_before_the_start_voids_the_try() -> None:
    """Its path was told to those who prepared: nothing starts with it. The group waits for the claim and holds nothing."""
    stage = Stage()
    made(stage)
    stage.submit(plan(job(), job("ref", cpu=1_000), claims=using().claims))
    stage.prepare("actor")
    stage.feed(inp.ClaimLost("data", 1))
    assert (stage.group().state, stage.group().cause) == (G.PENDING, "claim_lost")
    stage.gone()
    stage.wait(1_000)
    stage.claims_ready()
    stage.bring_up()
    assert stage.group().state is G.RUNNING


def test_a_claim_lost_while_another_is_still_being_made_voids_nothing() -> None:
    """Nobody was told of it yet."""
    stage = Stage()
    made(stage)
    stage.submit(plan(job(), claims=(*using().claims, ClaimPlan("ckpt"))))
    assert stage.due(Prepare) == []
    stage.feed(inp.ClaimLost("data", 1))
    assert stage.group().state is G.PREPARING
    stage.feed(inp.ClaimReady("g1/ckpt", 1, "/ckpt"))
    assert stage.due(Start) == stage.due(Prepare) == []
    stage.wait(1_000)
    stage.bring_up()
    assert stage.group().state is G.RUNNING


def test_a_flapping_claim_is_made_again_after_growing_pauses_and_forgiven_when_it_stands() -> None:
    stage = Stage()
    made(stage)
    pauses = []
    for _ in range(8):
        claim = stage.claim("data")
        stage.feed(inp.ClaimLost("data", claim.attempt, "away"))
        pauses.append(stage.claim("data").until_ms - stage.now_ms)
        stage.wait(pauses[-1])
        stage.claims_ready()
    assert pauses == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
    stage.wait(STEADY_MS)
    stage.feed(inp.ClaimLost("data", stage.claim("data").attempt))
    assert (stage.claim("data").losses, stage.claim("data").until_ms - stage.now_ms) == (1, 1_000)
    assert stage.feed(inp.ClaimLost("data", 1)).events == (), "of an earlier attempt"


def test_a_groups_own_claim_is_lost_for_all_who_see_it_and_made_again_in_its_pause() -> None:
    stage = Stage()
    rules = (RulePlan(Action.RESTART_MEMBER, causes=(Cause.CLAIM_LOST,), backoff=BackoffPlan(500, 1_000, 500)),)
    stage.run(plan(job(), replicas(count=2), claims=(ClaimPlan("ckpt"), ClaimPlan("own", scope="rollout")), rules=rules))
    stage.feed(inp.ClaimLost("g1/rollout[1]/own", 1, "disk gone"))
    assert stage.slot("rollout", 1).state is S.STOPPING
    assert (stage.slot("rollout", 0).state, stage.slot("actor").state) == (S.READY, S.READY)
    stage.gone()
    stage.wait(500)
    assert (stage.slot("rollout", 1).state, stage.claim("g1/rollout[1]/own").state) == (S.PLACED, C.LOST)
    stage.wait(500)
    assert stage.claim("g1/rollout[1]/own").state is C.PROVISIONING
    stage.bring_up()
    stage.feed(inp.ClaimLost("g1/ckpt", 1))
    assert {slot.state for slot in stage.group().slots.values()} == {S.STOPPING}


# --- order of making ------------------------------------------------------------------------------------------------------


def test_claims_are_made_in_the_order_that_after_says() -> None:
    stage = Stage()
    made(stage)
    own = ClaimPlan("cache", scope="actor", after=("weights", "d"))
    stage.submit(plan(job(), claims=(own, ClaimPlan("weights", after=("base",)), ClaimPlan("base"), *using().claims)))
    assert [effect.claim for effect in stage.due(Provision)] == ["g1/base"]
    assert stage.claim("g1/actor[0]/cache").state is C.NEW
    stage.claims_ready()
    (weights,) = stage.due(Provision)
    assert (weights.claim, weights.after) == ("g1/weights", (("base", "/claims/g1/base"),))
    stage.feed(inp.ClaimFailed("g1/weights", 1, "no"))
    assert stage.claim("g1/actor[0]/cache").state is C.NEW
    stage.wait(1_000)
    stage.claims_ready()
    (cache,) = stage.due(Provision)
    assert cache.claim == "g1/actor[0]/cache"
    assert dict(cache.after) == {"weights": "/claims/g1/weights", "d": "/claims/data"}
    stage.bring_up()
    assert stage.group().state is G.RUNNING


# --- retain ---------------------------------------------------------------------------------------------------------------


def test_retained_claims_live_on_as_standalone_ones() -> None:
    stage = Stage()
    keep = (ClaimPlan("ckpt", retain=True), ClaimPlan("cache", scope="rollout", retain=True), ClaimPlan("scratch"))
    stage.run(plan(job(), replicas(count=2, least=1), claims=keep, owner="ada", rules=(RulePlan(Action.TOLERATE, "rollout"),)))
    stage.exit("rollout", 1)
    assert stage.claim("g1/rollout[1]/cache").state is C.READY, "it outlives its slot, too"
    stage.exit("actor", code=0)
    stage.gone()
    assert [effect.claim for effect in stage.due(Release)] == ["g1/scratch"]
    claim = stage.claim("g1-ckpt")
    assert (claim.state, claim.path, claim.owner, claim.made_as) == (C.READY, "/claims/g1/ckpt", "ada", "g1/ckpt")
    assert stage.claim("g1-rollout-0-cache").made_as == "g1/rollout[0]/cache"
    assert "g1-rollout-1-cache" in stage.state.claims
    stage.claims_released()
    stage.wait(48 * 3_600_000)
    assert stage.state.groups == {}
    assert sorted(stage.state.claims) == ["g1-ckpt", "g1-rollout-0-cache", "g1-rollout-1-cache"]
    # It can be used, is made again as what it was made as, and goes when it is deleted.
    stage.run(using(claim="g1-ckpt", access=Access.SHARED, name="next"))
    stage.ask(inp.EndGroup("g2", G.CANCELLED))
    stage.gone()
    stage.feed(inp.ClaimLost("g1-rollout-0-cache", 1))
    stage.wait(1_000)
    (again,) = stage.due(Provision)
    assert (again.claim, again.made_as) == ("g1-rollout-0-cache", "g1/rollout[0]/cache")
    assert (again.group, again.name, again.slot) == ("g1", "cache", ("rollout", 0))
    stage.ask(inp.DeleteClaim("g1-ckpt"))
    (release,) = stage.due(Release)
    assert (release.claim, release.made_as, release.group, release.name) == ("g1-ckpt", "g1/ckpt", "g1", "ckpt")
    assert (release.path, release.retain) == ("/claims/g1/ckpt", False)


def test_names_of_retained_claims_never_meet() -> None:
    stage = Stage()
    keep = (ClaimPlan("actor-0-x", retain=True), ClaimPlan("x", scope="actor", retain=True))
    stage.run(plan(job(), claims=keep))
    stage.exit("actor", code=0)
    assert sorted(stage.state.claims) == ["g1-actor-0-x", "g1-actor-0-x-2", "g1/actor-0-x", "g1/actor[0]/x"]


def test_what_was_never_whole_or_is_bound_to_a_host_is_let_go_and_left_in_place() -> None:
    """Nobody could use it from elsewhere; its provider keeps what there is."""
    stage = Stage()
    stage.submit(plan(job(), claims=(ClaimPlan("a", retain=True), ClaimPlan("b", retain=True))))
    stage.feed(inp.ClaimReady("g1/a", 1, "/local", "h0"), inp.ClaimFailed("g1/b", 1, "no"))
    stage.ask(inp.EndGroup("g1", G.CANCELLED))
    stage.gone()
    assert [(effect.claim, effect.retain) for effect in stage.due(Release)] == [("g1/a", True), ("g1/b", True)]


# --- bound to hosts -------------------------------------------------------------------------------------------------------


def test_a_claim_that_was_left_behind_is_released_where_it_was_before_it_is_made_anew() -> None:
    stage = Stage()
    rule = RulePlan(Action.RESTART_MEMBER)
    stage.submit(plan(job(tasks=2, cpu=3_000), claims=(ClaimPlan("m", scope="actor"),), rules=(rule,)))
    stage.feed(inp.ClaimReady("g1/actor[0]/m", 1, "/cache/m", hosts=("h0", "h1")))
    claim = stage.claim("g1/actor[0]/m")
    assert (claim.host, claim.hosts) == ("h0", ("h0", "h1"))
    refusal = stage.due(Prepare)[0]
    stage.feed(inp.TaskRefused(refusal.task, refusal.host, "no"))
    (release,) = stage.due(Release)
    assert release.hosts == ("h0", "h1")
    stage.gone()
    stage.wait(1_000)
    assert stage.group().state is G.PREPARING
    assert stage.claim("g1/actor[0]/m").state is C.RELEASING
    stage.claims_released()
    (provision,) = stage.due(Provision)
    assert (provision.attempt, provision.hosts) == (2, ("h0", "h1"))


def test_a_claim_that_is_made_where_its_slot_is_not_any_more_is_not_used() -> None:
    """The slot moved while its claim was being made: what comes late is released, and made where the slot is now."""
    stage = Stage()
    stage.submit(plan(job(), claims=(ClaimPlan("m", scope="actor"),)))
    assert [effect.hosts for effect in stage.due(Provision)] == [("h0",)]
    stage.lose("h0", fence_ms=0)
    stage.wait(1_000)
    assert stage.group().state is G.PREPARING
    assert [effect.hosts for effect in stage.due(Provision)] == [("h1",)]
    stage.up_host("h0", "b2")
    attempt = stage.claim("g1/actor[0]/m").attempt
    stage.feed(inp.ClaimReady("g1/actor[0]/m", attempt, "/on/h0", "h0"))
    assert stage.due(Prepare) == []
    assert [effect.hosts for effect in stage.due(Release)] == [("h0",)]
    stage.claims_released()
    assert [effect.hosts for effect in stage.due(Provision)] == [("h1",)]


def test_losing_one_of_the_hosts_of_a_claim_loses_it() -> None:
    stage = Stage()
    stage.submit(plan(job(tasks=2, cpu=3_000), claims=(ClaimPlan("m", scope="actor"),)))
    stage.feed(inp.ClaimReady("g1/actor[0]/m", 1, "/cache/m", hosts=("h0", "h1")))
    stage.bring_up()
    stage.lose("h1")
    assert stage.claim("g1/actor[0]/m").state is C.LOST
