"""After the start, slot by slot: restart in place, another place, first claim, readiness that is lost."""

from __future__ import annotations

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.effects import Prepare, Start
from gangflow.xce.core.plan import Action, Cause, RulePlan
from gangflow.xce.core.state import GroupState, PendCode, SlotState
from tests.unit.xce.core.plans import hosts, job, plan, replicas
from tests.unit.xce.core.stage import Stage

G, S = GroupState, SlotState
AGAIN = RulePlan(Action.RESTART_GROUP, "actor", max_restarts=5)


def test_a_restarted_replica_keeps_its_place_and_starts_alone() -> None:
    """Scenario 73 at a restart: it waits for nobody but itself, and its peers run on."""
    stage = Stage()
    stage.run(plan(job(), replicas()))
    before = stage.slot("rollout")
    stage.exit("rollout")
    assert stage.slot("rollout").tasks, "a slot in BACKOFF keeps its allocation"
    assert stage.due(Prepare, Start) == []
    stage.wait(1_000)
    after = stage.slot("rollout")
    assert after.state is S.PLACED
    assert (after.incarnation, after.epoch, after.restarts) == (2, 1, 1)
    assert [(t.host, t.ports) for t in after.tasks] == [(t.host, t.ports) for t in before.tasks]
    stage.prepare()
    assert stage.slot("rollout").state is S.STARTING
    stage.bring_up()
    assert stage.group().state is G.RUNNING


def test_the_backoff_of_one_slot_grows() -> None:
    stage = Stage()
    stage.run(plan(job(), replicas()))
    waits = []
    for _ in range(3):
        stage.exit("rollout")
        waits.append(stage.slot("rollout").until_ms - stage.now_ms)
        stage.wait(waits[-1])
        stage.bring_up()
    assert waits == [1_000, 2_000, 4_000]


def test_a_lost_slot_moves_only_when_its_host_is_fenced() -> None:
    """Scenario 17: while the old incarnation may still run there is no other."""
    stage = Stage(hosts(3, cpu=1_000))
    stage.run(plan(replicas(count=2)))
    stage.lose("h0")
    slot = stage.slot("rollout")
    assert slot.state is S.LOST
    assert slot.tasks
    stage.wait(4_999)
    assert stage.slot("rollout").incarnation == 1
    stage.wait(1)
    slot = stage.slot("rollout")
    assert (slot.state, slot.incarnation, slot.tasks[0].host) == (S.PLACED, 2, "h2")


def test_first_claim_holds_the_lost_units_for_a_bounded_time() -> None:
    """Scenario 2: what a broken group lost is its own when it comes back in time, and anybody's after that."""
    stage = Stage(hosts(2, cpu=1_000))
    stage.run(plan(replicas(count=2), recovery_timeout_ms=30_000))
    stage.lose("h0", fence_ms=1_000)
    stage.wait(1_000)
    stage.wait(1_000)
    slot = stage.slot("rollout")
    assert slot.state is S.PENDING
    assert slot.tasks, "its units are held, should they come back"
    assert slot.reason is not None
    assert slot.reason.code is PendCode.WAITING_CAPACITY
    stage.submit(plan(job(), name="squatter"))
    stage.up_host("h0", "b2")
    assert stage.slot("rollout").state is S.PLACED
    assert stage.group("g2").state is G.PENDING
    late = Stage(hosts(2, cpu=1_000))
    late.run(plan(replicas(count=2), recovery_timeout_ms=30_000))
    late.lose("h0", fence_ms=1_000)
    for ms in (1_000, 1_000, 30_000):
        late.wait(ms)
    assert late.slot("rollout").tasks == ()
    late.submit(plan(job(), name="squatter", priority=90))
    late.up_host("h0", "b2")
    assert late.group("g2").state is G.PREPARING, "the claim is over: it queues at its group's own place"
    assert late.slot("rollout").state is S.PENDING


def test_what_is_left_of_a_place_of_two_hosts_is_used_again() -> None:
    """The claim of a slot on what it lost must not stand in its own way."""
    stage = Stage(hosts(3, cpu=1_000))
    stage.run(plan(job(tasks=2), rules=(RulePlan(Action.RESTART_MEMBER, "actor"),)))
    stage.lose("h1", fence_ms=1_000)
    stage.gone()
    stage.wait(1_000)
    assert [task.host for task in stage.slot("actor").tasks] == ["h0", "h2"]
    stage.bring_up()
    assert stage.group().state is G.RUNNING


def test_what_is_left_of_a_place_stays_held_while_the_rest_is_missing() -> None:
    stage = Stage(hosts(2, cpu=1_000))
    stage.run(plan(job(tasks=2), rules=(RulePlan(Action.RESTART_MEMBER, "actor"),)))
    stage.submit(plan(job(), name="other", priority=90))
    stage.lose("h1", fence_ms=1_000)
    stage.gone()
    stage.wait(1_000)
    assert stage.slot("actor").state is S.PENDING
    assert stage.group("g2").state is G.PENDING
    stage.up_host("h1", "b2")
    stage.bring_up()
    assert stage.group().state is G.RUNNING


def test_a_restarted_slot_that_is_refused_is_placed_anew() -> None:
    stage = Stage()
    stage.run(plan(job(), replicas()))
    stage.exit("rollout")
    stage.wait(1_000)
    again = stage.due(Prepare)[0]
    stage.feed(inp.TaskRefused(again.task, again.host, "port 20000 is taken"))
    slot = stage.slot("rollout")
    assert slot.state is S.BACKOFF
    assert slot.tasks == (), "the place itself may be the fault"
    assert slot.exit is not None
    assert slot.exit.cause is Cause.START_FAILED
    stage.wait(2_000)
    stage.bring_up()
    assert stage.group().state is G.RUNNING


def test_an_operator_restarts_outside_rules_and_budgets() -> None:
    """Scenario 37: one member is resumed by hand, also one that was given up; no budget is spent."""
    stage = Stage()
    rule = RulePlan(Action.TOLERATE, "rollout")
    stage.run(plan(job(), replicas(count=3, least=1), rules=(rule,)))
    stage.exit("rollout", 2)
    assert stage.slot("rollout", 2).state is S.RETIRED
    assert stage.ask(inp.RestartSlot("g1", "rollout", 2, 1)).ok
    stage.bring_up()
    assert stage.slot("rollout", 2).state is S.READY
    assert stage.group().tolerated == ()
    assert stage.ask(inp.RestartSlot("g1", "rollout", 0, 1)).ok
    assert stage.slot("rollout", 0).state is S.STOPPING
    stage.gone()
    stage.bring_up()
    slot = stage.slot("rollout", 0)
    assert (slot.state, slot.incarnation) == (S.READY, 2)
    assert slot.exit is not None
    assert slot.exit.cause is None, "what a user stopped matches no rule"
    assert stage.group().budgets == ()
    stale = stage.ask(inp.RestartSlot("g1", "rollout", 0, 1))
    assert (stale.status, stale.code) == (409, "superseded")
    assert stage.ask(inp.RestartSlot("g1", "rollout", 9, 1)).status == 404


def test_a_replica_that_waited_is_asked_for_again_when_its_group_starts_again() -> None:
    """Why it waited in the group's last life says nothing about its next one: it is placed as soon as there is room."""
    stage = Stage(hosts(2, cpu=2_000))
    stage.run(plan(job(), replicas(count=3, least=1), rules=(AGAIN,)))
    stage.lose("h1", fence_ms=1_000)
    stage.wait(1_000)
    waits = next(slot for slot in stage.group().slots.values() if slot.state is S.PENDING)
    assert waits.reason is not None
    stage.wait(600_000)
    stage.exit("actor")
    assert stage.group().state is G.RESTARTING
    assert stage.slot("rollout", waits.index).reason is None
    stage.gone()
    stage.up_host("h1", "b2")
    stage.bring_up()
    stage.wait(1_000)
    stage.bring_up()
    assert set(stage.states().values()) == {"READY"}


def test_a_restart_that_would_do_nothing_is_refused_and_says_in_which_state_the_slot_is() -> None:
    """Scenario 37: an operator who is told "ok" may rely on it; PENDING, LOST, STOPPING, PLACED are told apart."""
    stage = Stage(hosts(3, cpu=2_000))
    stage.run(plan(job(), replicas(count=3, least=1, cpu=1_500)))
    waits, lost, down = (stage.slot("rollout", n) for n in range(3))
    assert {len(slot.tasks) for slot in (waits, lost)} == {1}
    stage.lose(lost.tasks[0].host, fence_ms=60_000)
    assert stage.slot("rollout", 1).state is S.LOST
    # It has a backoff to wait for: that is what an operator can take away.
    assert stage.ask(inp.RestartSlot("g1", "rollout", 1, 1)).ok
    assert stage.slot("rollout", 1).until_ms == stage.now_ms
    refused = stage.ask(inp.RestartSlot("g1", "rollout", 1, 1))
    assert (refused.status, refused.code, dict(refused.fields)) == (409, "conflict", {"state": "LOST"})
    assert "rollout[1] is LOST" in refused.message

    assert stage.ask(inp.RestartSlot("g1", "rollout", 0, 1)).ok
    refused = stage.ask(inp.RestartSlot("g1", "rollout", 0, 1))
    assert (refused.status, dict(refused.fields)) == (409, {"state": "STOPPING"})
    stage.gone()
    refused = stage.ask(inp.RestartSlot("g1", "rollout", 0, 2))
    assert (refused.status, dict(refused.fields)) == (409, {"state": "PLACED"})
    assert down.state is S.PENDING
    refused = stage.ask(inp.RestartSlot("g1", "rollout", 2, 0))
    assert (refused.status, dict(refused.fields)) == (409, {"state": "PENDING"})
    assert "its reason says for what" in refused.message


def test_an_operator_takes_the_pause_from_one_that_is_still_being_stopped() -> None:
    stage = Stage()
    stage.run(plan(job(), replicas()))
    slot = stage.slot("rollout")
    stage.feed(inp.ReportSlot("g1", "rollout", 0, 1, Cause.HUNG))
    assert (stage.slot("rollout").state, stage.slot("rollout").until_ms) == (S.STOPPING, stage.now_ms + 1_000)
    assert stage.ask(inp.RestartSlot("g1", "rollout", 0, slot.incarnation)).ok
    stage.gone()
    assert stage.slot("rollout").state is S.PLACED


# --- readiness that is lost ----------------------------------------------------------------------------------------------


def unready(stage: Stage, member: str, index: int = 0, *, edge: int = 0, message: str = "503") -> None:
    """The task's probe fails."""
    slot = stage.slot(member, index)
    stage.feed(inp.TaskUnready(stage.key(slot), slot.tasks[0].host, message, edge))


def ready_again(stage: Stage, member: str, index: int = 0, *, edge: int = 0) -> None:
    slot = stage.slot(member, index)
    stage.feed(inp.TaskReady(stage.key(slot), slot.tasks[0].host, edge))


def test_a_service_that_was_ready_and_hangs_is_restarted_without_coordinator_live_probe_or_grace() -> None:
    """Every wait has a deadline: a lost readiness is waited for as long as the first one, then the rules are asked."""
    stage = Stage()
    stage.run(plan(job(), replicas(count=1, ready_timeout_ms=30_000)))
    assert stage.slot("rollout").ready_ms == stage.now_ms
    stage.wait(100_000)
    unready(stage, "rollout")
    assert (stage.group().state, stage.slot("rollout").until_ms) == (G.DEGRADED, stage.now_ms + 30_000)
    stage.wait(29_999)
    assert stage.slot("rollout").state is S.RUNNING
    stage.wait(1)
    slot = stage.slot("rollout")
    assert slot.state is S.STOPPING
    assert slot.exit is not None
    assert slot.exit.cause is Cause.NOT_READY
    assert slot.exit.message.startswith("was ready, broke, and is not ready again after 30s: tried http://")
    stage.gone()
    stage.wait(1_000)
    assert stage.slot("rollout").ready_ms == 0, "the next incarnation has never been ready"
    stage.bring_up()
    assert stage.group().state is G.RUNNING


def test_a_service_that_hangs_each_time_ends_its_group_by_rule() -> None:
    """Scenario 49, at its weakest: no floor, no grace, no coordinator; the budget of the rule is what ends it."""
    stage = Stage()
    rule = RulePlan(Action.RESTART_MEMBER, "rollout", max_restarts=2)
    stage.run(plan(job(), replicas(count=1, ready_timeout_ms=30_000), rules=(rule,)))
    for _ in range(3):
        unready(stage, "rollout")
        stage.wait(30_000)
        stage.gone()
        if not stage.group().state.terminal:
            stage.wait(60_000)
            stage.bring_up()
    stage.gone()
    assert (stage.group().state, stage.group().cause) == (G.FAILED, "not_ready")
    assert "was ready" in stage.group().message


def test_an_engine_that_dies_every_time_has_a_cap_of_its_own_and_its_set_a_floor() -> None:
    """Scenario 49: each engine is started as often as its rule says; then it is given up while enough are left, and the one
    that would break the floor ends the group."""
    stage = Stage()
    rule = RulePlan(Action.RESTART_MEMBER, "rollout", max_restarts=2, then=Action.TOLERATE)
    stage.run(plan(job(), replicas(count=3, least=2), rules=(rule,)))

    def die(index: int, times: int) -> list[int]:
        """The incarnations that ran and died."""
        died = []
        for _ in range(times):
            died.append(stage.slot("rollout", index).incarnation)
            stage.exit("rollout", index)
            stage.wait(60_000)
            stage.bring_up()
        return died

    assert die(0, 3) == [1, 2, 3]
    assert stage.slot("rollout", 0).state is S.RETIRED
    stage.wait(3_600_000)
    stage.bring_up()
    assert stage.slot("rollout", 0).incarnation == 3, "given up is given up: the window does not bring it back"
    assert die(1, 2) == [1, 2], "what the first one spent is not counted to the second"
    assert stage.group().state is G.RUNNING
    stage.exit("rollout", 1)
    stage.gone()
    group = stage.group()
    assert (group.state, group.cause) == (G.FAILED, "app_exit")
    assert group.message.startswith("rollout[1]")
    assert [slot.incarnation for key, slot in group.slots.items() if key[0] == "rollout"] == [3, 3, 1]


def test_a_readiness_that_comes_back_has_no_deadline_any_more() -> None:
    stage = Stage()
    stage.run(plan(job(), replicas(count=1, ready_timeout_ms=30_000)))
    first = stage.slot("rollout").ready_ms
    stage.wait(1_000)
    unready(stage, "rollout")
    stage.wait(29_000)
    ready_again(stage, "rollout")
    stage.wait(1_000_000)
    slot = stage.slot("rollout")
    assert (slot.state, slot.incarnation, slot.ready_ms, slot.until_ms) == (S.READY, 1, first, 0)
    unready(stage, "rollout")
    assert stage.slot("rollout").until_ms == stage.now_ms + 30_000, "each loss has its own time"


def test_edges_that_come_late_or_twice_change_nothing() -> None:
    """An agent numbers the edges of a probe; whatever the network does to the reports, the newest edge is what is true."""
    stage = Stage()
    stage.run(plan(job(), replicas(count=1)))
    unready(stage, "rollout", edge=2)
    assert stage.slot("rollout").state is S.RUNNING
    ready_again(stage, "rollout", edge=1)
    assert stage.slot("rollout").state is S.RUNNING, "the edge before the last"
    ready_again(stage, "rollout", edge=3)
    unready(stage, "rollout", edge=2)
    ready_again(stage, "rollout", edge=3)
    assert (stage.slot("rollout").state, stage.slot("rollout").tasks[0].edge) == (S.READY, 3)
    unready(stage, "rollout", edge=4)
    ready_again(stage, "rollout", edge=3)
    assert stage.slot("rollout").state is S.RUNNING
    assert stage.ask(inp.RestartSlot("g1", "rollout", 0, 1)).ok
    stage.gone()
    stage.bring_up()
    unready(stage, "rollout", edge=1)
    assert stage.slot("rollout").state is S.RUNNING, "another incarnation counts anew"


def test_an_operator_ends_a_backoff() -> None:
    stage = Stage()
    stage.run(plan(job(), replicas()))
    stage.exit("rollout")
    assert stage.ask(inp.RestartSlot("g1", "rollout", 0, 1)).ok
    assert stage.slot("rollout").state is S.PLACED


def test_a_slot_that_may_not_be_restarted_says_why() -> None:
    stage = Stage()
    stage.submit(plan(job(), replicas()))
    reply = stage.ask(inp.RestartSlot("g1", "rollout", 0, 1))
    assert (reply.status, reply.code) == (409, "conflict")
    assert "PREPARING" in reply.message
