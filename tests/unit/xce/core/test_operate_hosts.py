"""Hosts that operators close, drain and open; through loss and return, and from every state of what is there."""

from __future__ import annotations

import pytest

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.effects import Start, Stop
from gangflow.xce.core.plan import Action, BarrierPlan, Cause, RulePlan
from gangflow.xce.core.state import GroupState, HostState, PendCode, SlotState
from tests.unit.xce.core.plans import hosts, job, plan, replicas
from tests.unit.xce.core.stage import Stage

G, S, H = GroupState, SlotState, HostState
PAIR = plan(job(), replicas())


def close(stage: Stage, host: str, *, drain: bool = False, message: str = "") -> str:
    """The host's state after that."""
    reply = stage.ask(inp.CloseHost(host, drain, message))
    assert reply.ok, reply
    assert dict(reply.fields)["host"] == host
    return str(dict(reply.fields)["state"])


def opened(stage: Stage, host: str) -> str:
    reply = stage.ask(inp.OpenHost(host))
    assert reply.ok, reply
    return str(dict(reply.fields)["state"])


def test_a_closed_host_runs_on_and_takes_nothing_new() -> None:
    stage = Stage(hosts(2, cpu=3_000))
    stage.run(PAIR)
    assert close(stage, "h0", message="new disks") == "CLOSED"
    host = stage.state.hosts["h0"]
    assert (host.state, host.closed, host.draining) == (H.CLOSED, "new disks", False)
    assert stage.group().state is G.RUNNING
    assert stage.due(Stop) == []
    stage.run(plan(job(cpu=500), name="next"))
    assert stage.slot("actor", group="g2").tasks[0].host == "h1"
    before = stage.state
    assert close(stage, "h0") == "CLOSED"
    assert stage.state is before, "closed is closed, and why is remembered"
    assert opened(stage, "h0") == "UP"
    assert stage.state.hosts["h0"].closed == ""
    before = stage.state
    assert opened(stage, "h0") == "UP"
    assert stage.state is before


def test_hosts_that_do_not_exist_are_not_found() -> None:
    stage = Stage()
    assert stage.ask(inp.CloseHost("h9")).status == 404
    assert stage.ask(inp.OpenHost("h9")).status == 404


def test_who_waits_is_placed_when_a_host_is_opened() -> None:
    stage = Stage(hosts(1))
    close(stage, "h0")
    stage.submit(PAIR)
    assert stage.group().state is G.PENDING
    opened(stage, "h0")
    assert stage.group().state is G.PREPARING


@pytest.mark.parametrize(("drain", "cause"), [(False, "host_closed"), (True, "drained")])
def test_a_try_whose_host_is_closed_is_void(drain: bool, cause: str) -> None:
    """The release needs open hosts: what was prepared is given back, and the next try goes elsewhere."""
    stage = Stage(hosts(2, cpu=3_000))
    stage.submit(PAIR)
    stage.prepare("actor")
    close(stage, "h0", drain=drain, message="new disks")
    group = stage.group()
    assert (group.state, group.attempt, group.cause) == (G.PENDING, 0, cause)
    assert "new disks" in group.message
    assert group.reason is not None
    assert group.reason.text.startswith("the try was taken back: h0 is ")
    assert stage.due(Start) == []
    stage.gone()
    stage.wait(1_000)
    stage.bring_up()
    assert stage.group().state is G.RUNNING
    assert {task.host for slot in stage.group().slots.values() for task in slot.tasks} == {"h1"}


@pytest.mark.parametrize("started", [False, True])
def test_a_try_that_an_operator_takes_back_is_never_the_last_one(started: bool) -> None:
    stage = Stage(hosts(2, cpu=3_000))
    stage.submit(plan(job(), replicas(), barrier=BarrierPlan(max_attempts=1)))
    for _ in range(3):
        if started:
            stage.prepare()
            stage.start()
        else:
            stage.prepare("actor")
        home = stage.slot("actor").tasks[0].host
        close(stage, home, drain=True)
        assert stage.group().state is (G.RESTARTING if started else G.PENDING)
        stage.gone()
        opened(stage, home)
        stage.wait(1_000)
        assert (stage.group().state, stage.group().attempt) == (G.PREPARING, 0)
    stage.bring_up()
    assert stage.group().state is G.RUNNING


def test_a_slot_that_never_started_there_is_placed_elsewhere_without_a_rule() -> None:
    stage = Stage(hosts(2, cpu=3_000))
    stage.run(PAIR)
    stage.exit("rollout")
    stage.wait(1_000)
    assert stage.slot("rollout").state is S.PLACED
    close(stage, "h0")
    stage.gone("rollout")
    slot = stage.slot("rollout")
    assert (slot.state, slot.tasks[0].host) == (S.PLACED, "h1")
    budgets = stage.group().budgets
    assert len(budgets) == 1, "its exit paid, and its move did not"
    stage.bring_up()
    assert stage.group().state is G.RUNNING


def test_a_backoff_on_a_closed_host_moves_and_has_first_claim_meanwhile() -> None:
    """Scenario 2: what a group lost by a drain is held for it, should the host come back while it waits."""
    stage = Stage(hosts(1, cpu=3_000))
    stage.run(PAIR)
    close(stage, "h0")
    stage.exit("rollout")
    stage.wait(1_000)
    slot = stage.slot("rollout")
    assert slot.state is S.PENDING
    assert slot.tasks
    assert slot.reason is not None
    assert slot.reason.code is PendCode.WAITING_CAPACITY
    opened(stage, "h0")
    assert stage.slot("rollout").state is S.PLACED


def test_what_a_drain_takes_is_judged_together_and_spends_no_budget() -> None:
    """Scenario 43: an event of a host is a failure of all that runs there, for the rules to judge."""
    stage = Stage(hosts(2, cpu=4_000))
    stage.run(plan(job(), replicas(count=3, least=1), rules=(RulePlan(Action.RESTART_ROLE, "rollout", max_restarts=1),)))
    assert close(stage, "h0", drain=True) == "CLOSED"
    assert stage.state.hosts["h0"].draining
    group = stage.group()
    assert group.state is G.DEGRADED
    causes = {slot.exit.cause for slot in group.slots.values() if slot.exit is not None}
    assert causes == {Cause.DRAINED}
    assert [use.rule for use in group.budgets] == [1], "the job's own default counts machines' losses; the role's does not"
    stage.gone()
    stage.wait(1_000)
    stage.bring_up()
    assert stage.group().state is G.RUNNING
    assert {task.host for slot in stage.group().slots.values() for task in slot.tasks} == {"h1"}
    opened(stage, "h0")
    assert stage.group().state is G.RUNNING


def test_a_drained_group_below_its_minimum_keeps_first_claim_on_its_places() -> None:
    """Scenario 2: the drained host returns; the job that would take the place finds it held, for a bounded time."""
    stage = Stage(hosts(2, cpu=1_000))
    stage.run(plan(replicas(count=2), recovery_timeout_ms=30_000))
    close(stage, "h0", drain=True)
    stage.gone()
    stage.wait(1_000)
    assert stage.slot("rollout").tasks
    stage.submit(plan(job(), name="squatter", priority=90))
    opened(stage, "h0")
    assert (stage.slot("rollout").state, stage.group("g2").state) == (S.PLACED, G.PENDING)
    late = Stage(hosts(2, cpu=1_000))
    late.run(plan(replicas(count=2), recovery_timeout_ms=30_000))
    close(late, "h0", drain=True)
    late.gone()
    late.wait(1_000)
    late.wait(30_000)
    assert late.slot("rollout").tasks == ()
    late.submit(plan(job(), name="squatter", priority=90))
    opened(late, "h0")
    assert late.group("g2").state is G.PREPARING


def test_what_drains_goes_on_for_a_while_and_is_not_ready_meanwhile() -> None:
    stage = Stage(hosts(2, cpu=3_000))
    stage.run(plan(job(), replicas(count=2, least=1, drain_ms=20_000)))
    close(stage, "h0", drain=True)
    slot = stage.slot("rollout")
    assert (slot.state, slot.until_ms) == (S.DRAINING, stage.now_ms + 20_000)
    assert stage.slot("actor").state is S.STOPPING, "it has no time to drain"
    assert {stop.task.member for stop in stage.due(Stop)} == {"actor"}
    stage.gone()
    stage.wait(20_000)
    assert stage.slot("rollout").state is S.STOPPING
    stage.gone()
    slot = stage.slot("rollout")
    assert (slot.state, slot.tasks[0].host) == (S.PLACED, "h1"), "its pause ran while it drained"
    assert slot.exit is not None
    assert slot.exit.cause is Cause.DRAINED


def test_a_job_that_finishes_while_it_drains_is_done() -> None:
    """Finished is not lost: nothing of it is run again."""
    stage = Stage(hosts(2, cpu=3_000))
    stage.run(plan(job(tasks=2, drain_ms=60_000), replicas(count=1)))
    close(stage, "h0", drain=True)
    assert stage.slot("actor").state is S.DRAINING
    stage.exit("actor", task=0, code=0)
    assert stage.slot("actor").state is S.DRAINING
    stage.exit("actor", task=1, code=0)
    assert stage.slot("actor").state is S.DONE
    stage.gone()
    assert stage.group().state is G.SUCCEEDED


def test_a_task_that_fails_while_it_drains_takes_the_others_with_it() -> None:
    stage = Stage(hosts(2, cpu=3_000))
    stage.run(plan(job(tasks=2, drain_ms=60_000), replicas(count=1)))
    close(stage, "h0", drain=True)
    stage.exit("actor", task=0, code=9)
    assert stage.slot("actor").state is S.STOPPING
    assert [stop.task.task for stop in stage.due(Stop) if stop.task.member == "actor"] == [1]
    stage.gone()
    exit = stage.slot("actor").exit
    assert exit is not None
    assert exit.cause is Cause.DRAINED, "that is why it was on its way down"
    assert stage.group().state is G.DEGRADED


def test_one_slot_is_drained_alone() -> None:
    stage = Stage(hosts(2, cpu=3_000))
    stage.run(plan(job(), replicas(count=2, least=1, drain_ms=5_000)))
    assert stage.ask(inp.DrainSlot("g1", "rollout", 0, 1)).ok
    assert stage.states() == {"actor[0]": "READY", "rollout[0]": "DRAINING", "rollout[1]": "READY"}
    assert stage.group().state is G.RUNNING
    before = stage.state
    assert stage.ask(inp.DrainSlot("g1", "rollout", 0, 1)).ok
    assert stage.state is before
    stage.wait(5_000)
    stage.gone()
    stage.bring_up()
    assert stage.slot("rollout").incarnation == 2
    assert stage.ask(inp.DrainSlot("g1", "rollout", 0, 1)).code == "superseded"
    stage.exit("rollout", 1)
    refused = stage.ask(inp.DrainSlot("g1", "rollout", 1, 1))
    assert (refused.status, dict(refused.fields)) == (409, {"state": "BACKOFF"})


@pytest.mark.parametrize("way", ["rule", "user"])
def test_whoever_takes_the_whole_group_down_does_not_wait_for_a_drain(way: str) -> None:
    stage = Stage(hosts(2, cpu=3_000))
    rules = (RulePlan(Action.RESTART_GROUP, "actor", max_restarts=3),)
    stage.run(plan(job(), replicas(count=2, least=1, drain_ms=600_000), rules=rules))
    stage.ask(inp.DrainSlot("g1", "rollout", 0, 1))
    if way == "rule":
        stage.exit("actor")
    else:
        stage.ask(inp.SuspendGroup("g1"))
    assert stage.slot("rollout").state is S.STOPPING


def test_a_closed_host_that_is_lost_comes_back_closed() -> None:
    """Scenario 43: an operator's fact is not undone by an agent that registers again."""
    stage = Stage(hosts(2, cpu=3_000))
    stage.run(PAIR)
    close(stage, "h0", message="new disks")
    stage.lose("h0", fence_ms=5_000)
    assert stage.state.hosts["h0"].state is H.LOST
    assert close(stage, "h0") == "LOST", "still closed, and lost"
    assert stage.slot("rollout").state is S.LOST
    stage.wait(5_000)
    assert stage.state.hosts["h0"].state is H.FENCED
    stage.gone()
    stage.up_host("h0", "b2")
    host = stage.state.hosts["h0"]
    assert (host.state, host.closed) == (H.CLOSED, "new disks")
    stage.lose("h0")
    assert opened(stage, "h0") == "LOST"
    stage.up_host("h0", "b3")
    assert stage.state.hosts["h0"].state is H.UP


def test_a_host_that_is_lost_can_be_closed_for_its_return() -> None:
    stage = Stage(hosts(2, cpu=3_000))
    stage.lose("h0", fence_ms=1_000)
    assert close(stage, "h0", drain=True) == "LOST"
    stage.up_host("h0", "b2")
    assert stage.state.hosts["h0"].state is H.CLOSED


def test_an_agent_of_a_closed_host_says_nothing_new_when_it_registers_again() -> None:
    stage = Stage(hosts(2, cpu=3_000))
    stage.run(PAIR)
    close(stage, "h0")
    keys = [stage.key(slot) for slot in stage.group().slots.values()]
    before = stage.state
    stage.up_host("h0", "b1", keys)
    assert stage.state is before


def test_a_restart_leaves_a_closed_host() -> None:
    stage = Stage(hosts(2, cpu=3_000))
    stage.run(PAIR)
    close(stage, "h0")
    stage.ask(inp.RestartGroup("g1"))
    stage.gone()
    assert stage.group().state is G.PREPARING
    assert {task.host for slot in stage.group().slots.values() for task in slot.tasks} == {"h1"}
    stage.bring_up()
    assert stage.group().state is G.RUNNING
