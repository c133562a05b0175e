"""Hosts that one group avoids, within the guards: opt-in, counted in a window, most of it up elsewhere, capped, liftable."""

from __future__ import annotations

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.plan import Action, BackoffPlan, BarrierPlan, Cause, ClaimPlan, ExclusionPlan, GroupPlan, RulePlan
from gangflow.xce.core.state import GroupState, SlotState
from tests.unit.xce.core.plans import hosts, job, plan, replicas
from tests.unit.xce.core.stage import Stage

G, S = GroupState, SlotState
AGAIN = RulePlan(Action.RESTART_MEMBER, "rollout", backoff=BackoffPlan(1_000, 1_000, 1_000))


def spread(count: int = 4, **more: object) -> tuple[Stage, GroupPlan]:
    """A stage on which each replica has a host of its own, and one more is free."""
    exclusion = ExclusionPlan(after=2, window_ms=60_000, **more)  # type: ignore[arg-type]
    return Stage(hosts(count + 1, cpu=1_000)), plan(replicas(count=count, least=1), rules=(AGAIN,), exclusion=exclusion)


def fail(stage: Stage, index: int, cause: Cause | None = None) -> None:
    """The replica fails, and is brought up again."""
    stage.exit("rollout", index, cause=cause)
    stage.wait(1_000)
    stage.gone()
    stage.bring_up()


def test_a_host_on_which_slots_fail_again_and_again_is_left() -> None:
    """Scenario 71: all but one are up, and that one keeps failing on its host: the group is kept away from it."""
    stage, group = spread()
    stage.run(group)
    home = stage.slot("rollout", 1).tasks[0].host
    fail(stage, 1)
    assert stage.group().excluded == ()
    assert [blame.host for blame in stage.group().blames] == [home]
    assert stage.slot("rollout", 1).tasks[0].host == home, "once is no reason to leave"
    fail(stage, 1)
    assert stage.group().excluded == (home,)
    assert stage.slot("rollout", 1).tasks[0].host == "h4"
    assert stage.group().state is G.RUNNING
    assert stage.slot("rollout", 1).incarnation == 3


def test_without_opting_in_nothing_is_counted() -> None:
    stage = Stage(hosts(3, cpu=1_000))
    stage.run(plan(replicas(count=2, least=1), rules=(AGAIN,)))
    for _ in range(4):
        fail(stage, 0)
    assert (stage.group().excluded, stage.group().blames) == ((), ())


def test_a_group_of_which_half_is_down_blames_itself() -> None:
    """Scenario 71: when much of it fails, the fault is hardly the hosts'."""
    stage, group = spread(2)
    stage.run(group)
    for _ in range(3):
        fail(stage, 0)
    assert stage.group().excluded == (), "one of two is not more than half"
    stage, group = spread(4)
    stage.run(group)
    for _ in range(3):
        stage.feed(*(stage.exited("rollout", n) for n in range(4)))
        stage.wait(1_000)
        stage.bring_up()
    assert stage.group().excluded == ()
    fail(stage, 0)
    assert len(stage.group().excluded) == 1, "what happened then still counts, once most of it is up"


def test_there_is_a_cap() -> None:
    stage, group = spread(5, at_most=1)
    stage.run(group)
    for index in (0, 1):
        fail(stage, index)
        fail(stage, index)
    assert len(stage.group().excluded) == 1
    assert stage.slot("rollout", 1).state is S.READY


def test_old_failures_do_not_count() -> None:
    stage, group = spread()
    stage.run(group)
    fail(stage, 0)
    stage.wait(60_000)
    fail(stage, 0)
    assert stage.group().excluded == ()
    fail(stage, 0)
    assert len(stage.group().excluded) == 1


def test_a_hosts_failures_in_one_batch_are_one() -> None:
    stage = Stage(hosts(4, cpu=2_000))
    stage.run(plan(replicas(count=6, least=1), rules=(AGAIN,), exclusion=ExclusionPlan(after=2)))
    stage.feed(stage.exited("rollout", 0), stage.exited("rollout", 1))
    assert stage.slot("rollout", 0).tasks[0].host == stage.slot("rollout", 1).tasks[0].host
    assert stage.group().excluded == ()


def test_verdicts_of_coordinators_and_what_we_stopped_speak_against_no_host() -> None:
    stage, group = spread()
    stage.run(group)
    for _ in range(3):
        slot = stage.slot("rollout")
        stage.ask(inp.ReportSlot("g1", "rollout", 0, slot.incarnation, Cause.HUNG))
        stage.gone()
        stage.wait(1_000)
        stage.bring_up()
        stage.ask(inp.DrainSlot("g1", "rollout", 0, stage.slot("rollout").incarnation))
        stage.gone()
        stage.wait(1_000)
        stage.bring_up()
    assert (stage.group().excluded, stage.group().blames) == ((), ())


def test_one_that_never_becomes_ready_speaks_against_the_host_where_it_is_not() -> None:
    stage, group = spread()
    stage.run(group)
    home = stage.slot("rollout").tasks[0].host
    for _ in range(2):
        stage.feed(inp.TaskUnready(stage.key(stage.slot("rollout")), home, "503"))
        stage.wait(600_000)
        stage.gone()
        stage.wait(1_000)
        stage.prepare()
        stage.start()
        stage.ready()
    assert [blame.host for blame in stage.group().blames] == [home]


def test_an_exclusion_is_lifted_by_hand() -> None:
    stage, group = spread()
    stage.run(group)
    home = stage.slot("rollout").tasks[0].host
    assert stage.ask(inp.LiftExclusion("g1", home)).status == 404
    fail(stage, 0)
    fail(stage, 0)
    assert stage.group().excluded == (home,)
    reply = stage.ask(inp.LiftExclusion("g1", home))
    assert dict(reply.fields) == {"id": "g1", "host": home}
    assert (stage.group().excluded, stage.group().blames) == ((), ())


def test_without_another_host_it_stays_gated_and_its_budget_is_not_touched() -> None:
    """Scenario 69: the replacement is not let onto the host that it replaces, and waiting costs no restart."""
    stage = Stage(hosts(4, cpu=1_000))
    rule = RulePlan(Action.RESTART_MEMBER, "rollout", max_restarts=3, backoff=BackoffPlan(1_000, 1_000, 1_000))
    stage.run(plan(replicas(count=4, least=3), rules=(rule,), exclusion=ExclusionPlan(after=2)))
    home = stage.slot("rollout").tasks[0].host
    fail(stage, 0)
    fail(stage, 0)
    assert stage.group().excluded == (home,)
    spent = stage.group().budgets
    for _ in range(100):
        stage.wait(60_000)
        stage.bring_up()
    slot = stage.slot("rollout")
    assert (slot.state, slot.incarnation, slot.tasks) == (S.PENDING, 2, ())
    assert slot.reason is not None
    assert stage.group().budgets == spent
    assert stage.group().state is G.RUNNING
    assert stage.ask(inp.LiftExclusion("g1", home)).ok
    stage.bring_up()
    assert stage.slot("rollout").tasks[0].host == home


def test_a_slot_that_has_not_started_there_yet_starts_elsewhere() -> None:
    stage = Stage(hosts(4, cpu=2_000))
    stage.run(plan(job(), replicas(count=6, least=1), rules=(AGAIN,), exclusion=ExclusionPlan(after=1)))
    home = stage.slot("rollout", 1).tasks[0].host
    other = next(s for s in stage.group().slots.values() if s.member == "rollout" and s.index != 1 and s.tasks[0].host == home)
    stage.ask(inp.RestartSlot("g1", "rollout", other.index, 1))
    stage.gone()
    assert stage.slot("rollout", other.index).state is S.PLACED
    stage.exit("rollout", 1)
    assert stage.group().excluded == (home,)
    stage.gone()
    assert stage.slot("rollout", other.index).tasks[0].host != home


def test_a_restart_of_the_group_leaves_its_excluded_hosts() -> None:
    stage, group = spread()
    stage.run(group)
    home = stage.slot("rollout").tasks[0].host
    fail(stage, 0)
    fail(stage, 0)
    stage.ask(inp.RestartGroup("g1"))
    stage.gone()
    stage.bring_up()
    assert stage.group().state is G.RUNNING
    assert home not in {task.host for slot in stage.group().slots.values() for task in slot.tasks}


def test_no_host_is_blamed_for_a_claim() -> None:
    """A claim that is lost, or that its provider cannot make, is not the fault of the hosts that wait for it."""
    stage = Stage(hosts(5, cpu=1_000))
    claims = (ClaimPlan("data", timeout_ms=1_000), ClaimPlan("cache", scope="rollout", timeout_ms=1_000))
    members = (replicas(count=4, least=1, ready=None),)
    barrier = BarrierPlan(timeout_ms=5_000)
    exclusion = ExclusionPlan(after=1, window_ms=60_000)
    stage.run(plan(*members, rules=(AGAIN,), claims=claims, exclusion=exclusion, barrier=barrier))
    stage.bring_up()
    stage.feed(inp.ClaimLost("g1/rollout[1]/cache", 1))
    assert stage.slot("rollout", 1).exit is not None
    assert stage.slot("rollout", 1).exit.cause is Cause.CLAIM_LOST  # type: ignore[union-attr]
    stage.gone()
    stage.wait(1_000)
    assert stage.slot("rollout", 1).state is S.PLACED
    stage.wait(5_000)
    assert stage.slot("rollout", 1).exit.cause is Cause.START_FAILED  # type: ignore[union-attr]
    assert (stage.group().blames, stage.group().excluded) == ((), ())


def test_of_a_start_that_takes_too_long_only_the_hosts_that_did_not_prepare_are_blamed() -> None:
    stage = Stage(hosts(6, cpu=1_000))
    members = (replicas(count=3, least=1, ready=None), job(tasks=2))
    rules = (AGAIN, RulePlan(Action.RESTART_MEMBER))
    barrier = BarrierPlan(timeout_ms=5_000)
    stage.run(plan(*members, rules=rules, exclusion=ExclusionPlan(after=3), barrier=barrier))
    stage.bring_up()
    stage.exit("actor")
    stage.gone()
    stage.wait(1_000)
    slot = stage.slot("actor")
    before = [blame.host for blame in stage.group().blames]
    stage.feed(inp.TaskPrepared(stage.key(slot), slot.tasks[0].host, "b1"))
    stage.wait(5_000)
    assert before == [slot.tasks[0].host], "there it failed"
    assert {blame.host: len(blame.at_ms) for blame in stage.group().blames} == dict.fromkeys([t.host for t in slot.tasks], 1)
