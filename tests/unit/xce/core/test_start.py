"""Place → prepare → release: all or nothing, behind one barrier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.asks import Ask, Grant, Refusal
from gangflow.xce.core.effects import Prepare, Start, Unprepare
from gangflow.xce.core.evolve_group import PREPARING_REASON
from gangflow.xce.core.plan import Action, BackoffPlan, BarrierPlan, Cause, ClaimPlan, RulePlan
from gangflow.xce.core.state import GroupState, PendCode, SlotState, State
from gangflow.xce.machine import handle
from tests.property.greedy import Greedy
from tests.unit.xce.core.plans import hosts, job, plan, replicas
from tests.unit.xce.core.stage import Stage

G, S = GroupState, SlotState
PAIR = plan(job(), replicas())


def test_two_gangs_of_the_whole_cluster_never_run_partially() -> None:
    """Scenario 1: two groups that each need everything, submitted together: one has all, the other holds nothing."""
    stage = Stage(hosts(4))
    whole = [plan(job(tasks=4, cpu=4_000), name=name) for name in ("one", "two")]
    stage.feed(*(inp.SubmitGroup(each) for each in whole))
    one, two = stage.group("g1"), stage.group("g2")
    assert (one.state, two.state) == (G.PREPARING, G.PENDING)
    assert not any(slot.tasks for slot in two.slots.values())
    assert two.reason is not None
    assert dict(two.reason.shortfall)["cpu"] > 0
    stage.bring_up()
    for task in range(4):
        stage.exit("actor", task=task, code=0)
    assert (stage.group("g1").state, stage.group("g2").state) == (G.SUCCEEDED, G.PREPARING)


def test_admission_takes_the_whole_minimum_at_once() -> None:
    """Scenario 4: two groups whose drivers would both fit: the first takes its workers too, the second starts no driver."""
    stage = Stage(hosts(1, cpu=4_000))
    for name in ("one", "two"):
        stage.submit(plan(job("driver"), replicas("worker", 2), name=name))
    assert stage.states("g1") == {"driver[0]": "PLACED", "worker[0]": "PLACED", "worker[1]": "PLACED"}
    assert set(stage.states("g2").values()) == {"PENDING"}


def test_nothing_starts_before_everybody_is_prepared() -> None:
    """Scenario 73: no member runs until all peers are prepared; the release is one record, in the batch of the last of them."""
    stage = Stage()
    stage.submit(PAIR)
    assert len(stage.due(Prepare)) == 3
    stage.prepare("rollout")
    assert stage.due(Start) == []
    assert "BarrierReleased" not in stage.kinds()
    last = stage.due(Prepare)[0]
    decision = stage.feed(inp.TaskPrepared(last.task, last.host, "b1"))
    assert "BarrierReleased" in [type(event).__name__ for event in decision.events]
    assert [type(effect) for effect in decision.effects] == [Start] * 3
    assert stage.group().state is G.STARTING
    assert stage.group().epoch == 1


def test_starting_becomes_running_when_every_minimum_is_ready() -> None:
    stage = Stage()
    stage.submit(PAIR)
    stage.prepare()
    stage.start()
    assert stage.states() == {"actor[0]": "READY", "rollout[0]": "RUNNING", "rollout[1]": "RUNNING"}
    stage.feed(inp.TaskReady(stage.key(stage.slot("rollout")), stage.slot("rollout").tasks[0].host))
    assert stage.group().state is G.STARTING
    stage.ready()
    assert stage.group().state is G.RUNNING
    assert stage.group().first_running_ms == stage.now_ms


def test_placed_and_preparing_differ_from_never_placed() -> None:
    """Scenario 35: pending, placed, prepared and started are states of their own, with nothing told by timing."""
    stage = Stage(hosts(1, cpu=3_000))
    stage.submit(PAIR)
    stage.submit(plan(job(), name="later"))
    assert stage.slot("actor").state is S.PLACED
    assert stage.slot("actor", group="g2").state is S.PENDING
    stage.prepare("actor")
    assert stage.slot("actor").state is S.PREPARED
    assert stage.slot("rollout").state is S.PLACED
    stage.prepare()
    assert stage.slot("actor").state is S.STARTING
    stage.start("actor")
    assert stage.slot("actor").state is S.READY


def test_a_token_of_an_earlier_boot_prepares_nothing() -> None:
    stage = Stage()
    stage.submit(PAIR)
    first = stage.due(Prepare)[0]
    assert stage.feed(inp.TaskPrepared(first.task, first.host, "an older boot")).events == ()
    stage.prepare("actor")
    stage.up_host("h0", "b2")
    assert stage.slot("actor").state is S.PLACED, "what the agent's last boot had prepared is void"
    stage.prepare()
    assert stage.group().state is G.STARTING


def test_a_refusal_voids_the_try_and_capacity_comes_back_when_confirmed() -> None:
    """Scenario 15 for a start: nothing of a voided try is held once its agents confirmed, and nothing sooner."""
    stage = Stage()
    stage.submit(PAIR)
    stage.prepare("actor")
    bad = stage.due(Prepare)[0]
    stage.feed(inp.TaskRefused(bad.task, bad.host, "port 20000 is taken"))
    group = stage.group()
    assert group.state is G.PENDING
    assert (group.attempt, group.cause) == (1, "start_failed")
    assert "rollout[0] on h0: port 20000 is taken" in group.message
    assert group.reason is not None
    assert group.reason.code is PendCode.BACKOFF
    assert stage.states() == {"actor[0]": "RELEASING", "rollout[0]": "PENDING", "rollout[1]": "RELEASING"}
    assert len(stage.due(Unprepare)) == 2
    stage.wait(1_000)
    assert stage.group().state is G.PENDING, "its slots are still being unprepared"
    stage.gone()
    assert stage.group().state is G.PREPARING
    assert stage.slot("actor").incarnation == 2


def test_a_refusal_that_would_repeat_fails_at_once() -> None:
    stage = Stage()
    stage.submit(PAIR)
    bad = stage.due(Prepare)[0]
    stage.feed(inp.TaskRefused(bad.task, bad.host, "no such executable: run", permanent=True))
    stage.gone()
    assert stage.group().state is G.FAILED
    assert "no such executable: run" in stage.group().message


def test_tries_are_bounded_and_the_last_cause_is_kept() -> None:
    """Scenario 37, before the start: a check that fails again and again ends the group after its tries."""
    stage = Stage()
    stage.submit(replace(PAIR, barrier=BarrierPlan(max_attempts=3, backoff=BackoffPlan(1_000, 2_000, 60_000))))
    waits = []
    for _ in range(3):
        assert stage.group().state is G.PREPARING
        bad = stage.due(Prepare)[0]
        stage.feed(inp.TaskRefused(bad.task, bad.host, "disk full"))
        waits.append(stage.group().until_ms - stage.now_ms)
        stage.gone()
        stage.wait(max(0, stage.group().until_ms - stage.now_ms))
    assert waits[:2] == [1_000, 2_000], "the backoff grows"
    assert stage.group().state is G.FAILED
    assert stage.group().cause == "start_failed"
    assert "disk full" in stage.group().message


def test_the_barrier_timeout_names_who_was_not_prepared() -> None:
    """Scenario 54, before the release: the timeout says which member on which host."""
    stage = Stage()
    stage.submit(PAIR)
    stage.prepare("actor")
    stage.wait(PAIR.barrier.timeout_ms)
    assert stage.group().state is G.PENDING
    assert stage.group().cause == "barrier_timeout"
    assert "rollout[0]: h0 did not prepare it" in stage.group().message


def test_a_host_lost_before_the_release_voids_the_try() -> None:
    """Scenario 39: a group that never started goes back to placement, and no rule or floor is asked."""
    stage = Stage()
    stage.submit(PAIR)
    stage.prepare("actor")
    stage.lose("h0")
    assert stage.group().state is G.PENDING
    assert stage.group().cause == "host_lost"
    assert "FailureJudged" not in stage.kinds()
    stage.wait(5_000)
    assert stage.group().state is G.PREPARING
    assert {task.host for slot in stage.group().slots.values() for task in slot.tasks} == {"h1"}


def test_a_machine_lost_before_the_first_running_goes_back_to_placement() -> None:
    """Scenario 39: after the release, but before it ever ran, the whole group is placed anew; its rules are not asked."""
    stage = Stage()
    stage.submit(PAIR)
    stage.prepare()
    stage.start()
    stage.lose("h0")
    assert stage.group().state is G.RESTARTING
    stage.wait(5_000)
    assert stage.group().state is G.PENDING
    assert stage.group().attempt == 1
    stage.wait(1_000)
    stage.bring_up()
    assert stage.group().state is G.RUNNING
    assert stage.group().attempt == 0
    assert stage.group().epoch == 2
    assert stage.slot("rollout").tasks[0].host == "h1"


def test_machine_faults_before_the_first_running_are_bounded() -> None:
    stage = Stage(hosts(1))
    stage.submit(replace(PAIR, barrier=BarrierPlan(max_attempts=2, backoff=BackoffPlan(100, 1_000, 100))))
    for _ in range(2):
        stage.prepare()
        stage.start()
        stage.lose("h0", fence_ms=1_000)
        stage.wait(1_000)
        stage.up_host("h0", f"b{stage.now_ms}")
        stage.wait(100)
    assert stage.group().state is G.FAILED
    assert stage.group().cause == "host_lost"


def test_start_timeout_names_the_slot_the_address_and_the_error() -> None:
    """Scenario 54: an address nobody answers at is named, with what was last heard there, and nothing waits for ever."""
    stage = Stage()
    stage.submit(replace(PAIR, barrier=BarrierPlan(start_timeout_ms=30_000)))
    stage.prepare()
    stage.start()
    slot = stage.slot("rollout", 1)
    stage.feed(inp.TaskUnready(stage.key(slot), slot.tasks[0].host, "connection refused"))
    stage.feed(inp.TaskReady(stage.key(stage.slot("rollout", 0)), "h0"))
    stage.wait(30_000)
    group = stage.group()
    assert group.state is G.STOPPING
    assert group.cause == "not_ready"
    assert f"rollout[1] not ready after 30s: tried http://10.0.0.0:{slot.tasks[0].ports[0][1]}/health on h0" in group.message
    assert "connection refused" in group.message
    stage.gone()
    assert stage.group().state is G.FAILED


def test_a_rule_may_restart_the_group_that_does_not_become_ready() -> None:
    stage = Stage()
    rule = RulePlan(Action.RESTART_GROUP, causes=(Cause.NOT_READY,), max_restarts=1)
    stage.submit(replace(PAIR, barrier=BarrierPlan(start_timeout_ms=30_000), rules=(rule, *PAIR.rules)))
    for expected in (G.RESTARTING, G.STOPPING):
        stage.prepare()
        stage.start()
        stage.wait(30_000)
        assert stage.group().state is expected
        stage.gone()
        stage.wait(1_000)
    assert stage.group().state is G.FAILED


def test_ready_timeout_is_a_slot_failure_that_the_rules_judge() -> None:
    stage = Stage()
    stage.submit(plan(job(), replicas(ready_timeout_ms=10_000)))
    stage.prepare()
    stage.start()
    stage.feed(inp.TaskReady(stage.key(stage.slot("rollout", 0)), "h0"))
    stage.wait(10_000)
    slow = stage.slot("rollout", 1)
    assert slow.state is S.STOPPING
    assert slow.exit is not None
    assert slow.exit.cause is Cause.NOT_READY
    assert "no answer" in slow.exit.message
    stage.gone()
    stage.wait(1_000)
    stage.bring_up()
    assert stage.group().state is G.RUNNING
    assert stage.slot("rollout", 1).incarnation == 2


def test_a_ready_probe_that_fails_again_degrades_the_group() -> None:
    """Scenario 34: "was it ever satisfied" stays true, "is it now" does not."""
    stage = Stage()
    stage.run(PAIR)
    first = stage.group().first_running_ms
    slot = stage.slot("rollout")
    stage.wait(60_000)
    stage.feed(inp.TaskUnready(stage.key(slot), "h0", "503"))
    assert stage.slot("rollout").state is S.RUNNING
    assert stage.group().state is G.DEGRADED
    assert stage.group().first_running_ms == first
    stage.feed(inp.TaskReady(stage.key(slot), "h0"))
    assert stage.group().state is G.RUNNING


def test_surplus_replicas_come_after_the_release_and_hold_nobody_back() -> None:
    stage = Stage(hosts(1, cpu=3_000))
    stage.submit(plan(job(), replicas(count=3, least=1)))
    assert stage.states() == {"actor[0]": "PLACED", "rollout[0]": "PLACED", "rollout[1]": "PENDING", "rollout[2]": "PENDING"}
    stage.prepare()
    assert stage.group().state is G.STARTING
    assert stage.slot("rollout", 1).state is S.PLACED
    waiting = stage.slot("rollout", 2)
    assert waiting.reason is not None
    assert waiting.reason.code is PendCode.WAITING_CAPACITY
    stage.bring_up()
    assert stage.group().state is G.RUNNING
    assert stage.slot("rollout", 1).state is S.READY


def test_a_probe_that_answers_before_the_start_was_reported_counts() -> None:
    """Reports may be late: what is ready runs."""
    stage = Stage()
    stage.submit(PAIR)
    stage.prepare()
    stage.start("actor")
    for index in (0, 1):
        stage.feed(inp.TaskReady(stage.key(stage.slot("rollout", index)), "h0"))
    assert stage.group().state is G.RUNNING
    stage.feed(inp.TaskStarted(stage.key(stage.slot("rollout")), "h0", 77))
    assert stage.slot("rollout").tasks[0].pid == 77


def test_a_start_that_is_refused_is_a_slot_failure() -> None:
    """After the release: an agent of another boot refuses the start, and holds nothing."""
    stage = Stage()
    stage.submit(PAIR)
    stage.prepare()
    slot = stage.slot("rollout")
    stage.feed(inp.TaskRefused(stage.key(slot), "h0", "prepared under boot b0"))
    again = stage.slot("rollout")
    assert again.state is S.BACKOFF
    assert again.exit is not None
    assert again.exit.cause is Cause.START_FAILED
    assert stage.group().state is G.STARTING


def test_a_preparation_that_its_agent_gave_up_voids_the_try() -> None:
    """An agent that fenced itself says so with an exit, also for what it had only prepared."""
    stage = Stage()
    stage.submit(PAIR)
    stage.prepare("actor")
    slot = stage.slot("actor")
    stage.feed(inp.TaskExited(stage.key(slot), slot.tasks[0].host, signal=9))
    assert stage.group().state is G.PENDING
    assert "actor[0] on h0: its agent gave up what was prepared" in stage.group().message


def test_whoever_was_refused_is_asked_again_only_when_something_came_back() -> None:
    """A group that waits costs nothing while nothing changes, however often it is looked at."""

    class Counting(Greedy):
        """Counts its sessions."""

        sessions = 0

        def decide(self, state: State, asks: Sequence[Ask]) -> tuple[Grant | Refusal, ...]:
            self.sessions += 1
            return super().decide(state, asks)

    stage = Stage(hosts(1, cpu=3_000))
    stage.run(plan(job(), replicas(count=3, least=1)))
    stage.submit(plan(job(cpu=2_000), name="waits"))
    scheduler = Counting()
    for n in range(3):
        inputs = [inp.PutValue(group, "x", str(n)) for group in ("g1", "g2")]
        stage.state = handle(stage.state, inputs, stage.now_ms, scheduler).state
    assert scheduler.sessions == 0
    decision = handle(stage.state, [stage.exited("actor", code=0)], stage.now_ms, scheduler)
    assert scheduler.sessions > 0
    assert decision.state.groups["g1"].state is G.STOPPING


def test_a_claim_that_cannot_be_made_is_named_while_the_try_waits_for_it() -> None:
    stage = Stage()
    stage.submit(plan(job(), claims=(ClaimPlan("ckpt"),)))
    slow = stage.group().reason
    assert slow is not None
    assert slow.text == "placed; waits for claim ckpt, which is made by directory"
    claim = stage.claim("g1/ckpt")
    stage.feed(inp.ClaimFailed(claim.id, claim.attempt, "disk full"))
    group = stage.group()
    assert group.state is G.PREPARING
    assert group.reason is not None
    assert group.reason.code is PendCode.PREPARING
    assert "attempt 1 to make claim g1/ckpt failed (disk full)" in group.reason.text
    stage.wait(1_000)
    assert stage.claim("g1/ckpt").attempt == 2
    assert stage.group().reason == group.reason, "it is not there yet"
    stage.claims_ready()
    assert stage.group().reason == PREPARING_REASON
