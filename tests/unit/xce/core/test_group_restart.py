"""The restart of a whole group, and recoveries of several groups at once: in order, all or nothing, given back in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.asks import Ask, Grant, Refusal
from gangflow.xce.core.effects import Prepare, Start, Stop
from gangflow.xce.core.invariants import check
from gangflow.xce.core.plan import Action, RulePlan
from gangflow.xce.core.state import GroupState, Next, PendCode, SlotState, State
from gangflow.xce.machine import handle
from tests.property.greedy import Greedy
from tests.unit.xce.core.plans import hosts, job, plan, replicas
from tests.unit.xce.core.stage import Stage

G, S = GroupState, SlotState
AGAIN = RulePlan(Action.RESTART_GROUP, "actor", max_restarts=5)


def test_restart_group_waits_until_every_old_slot_is_gone() -> None:
    """Scenario 38: nothing of the new epoch is even prepared while anything of the old one may run."""
    stage = Stage()
    stage.run(plan(job(), replicas(), rules=(AGAIN,)))
    places = {key: [(t.host, t.ports) for t in slot.tasks] for key, slot in stage.group().slots.items()}
    stage.exit("actor")
    assert stage.group().state is G.RESTARTING
    stage.wait(10_000)
    first, second = stage.due(Stop)
    stage.feed(inp.TaskExited(first.task, first.host, signal=15))
    assert stage.group().state is G.RESTARTING
    assert stage.due(Prepare) == []
    stage.feed(inp.TaskExited(second.task, second.host, signal=15))
    assert stage.group().state is G.PREPARING
    assert {key: [(t.host, t.ports) for t in slot.tasks] for key, slot in stage.group().slots.items()} == places
    stage.bring_up()
    group = stage.group()
    assert (group.state, group.epoch) == (G.RUNNING, 2)
    assert {slot.epoch for slot in group.slots.values()} == {2}


def test_the_barrier_serves_a_group_restart_too() -> None:
    """Scenario 73: at a restart, too, nobody runs before everybody is prepared."""
    stage = Stage()
    stage.run(plan(job(), replicas(), rules=(AGAIN,)))
    stage.exit("actor")
    stage.gone()
    stage.wait(1_000)
    stage.prepare("rollout")
    assert stage.due(Start) == []
    stage.prepare("actor")
    assert len(stage.due(Start)) == 3


def test_a_group_restart_runs_finished_jobs_again() -> None:
    stage = Stage()
    stage.run(plan(job("prepare"), job("actor"), rules=(AGAIN,)))
    stage.exit("prepare", code=0)
    assert stage.slot("prepare").tasks == (), "what finished holds nothing"
    stage.exit("actor")
    stage.wait(1_000)
    assert stage.group().state is G.PREPARING
    stage.bring_up()
    assert stage.states() == {"prepare[0]": "READY", "actor[0]": "READY"}


def test_a_group_restart_replaces_lost_places_under_first_claim() -> None:
    stage = Stage(hosts(3, cpu=1_000))
    stage.run(plan(job(), replicas(count=1), rules=(replace(AGAIN, member=""),)))
    stage.lose("h0", fence_ms=1_000)
    assert stage.group().state is G.RESTARTING
    stage.gone()
    stage.wait(1_000)
    group = stage.group()
    assert group.state is G.PREPARING
    assert stage.slot("actor").tasks[0].host == "h2"
    assert stage.slot("rollout").tasks[0].host == "h1"
    stage.bring_up()
    assert stage.group().state is G.RUNNING


def test_a_group_restart_without_a_place_releases_everything_in_the_end() -> None:
    """Scenario 6 and 3: what it still holds is given back when its first claim is over, and it waits at its old place."""
    stage = Stage(hosts(2, cpu=1_000))
    stage.run(plan(job(), replicas(count=1), rules=(replace(AGAIN, member=""),), recovery_timeout_ms=20_000))
    submitted = stage.group().submitted_ms
    stage.lose("h0", fence_ms=1_000)
    stage.gone()
    stage.wait(1_000)
    assert stage.group().state is G.RESTARTING
    assert stage.slot("rollout").tasks, "held for the restart"
    assert stage.slot("actor").next is Next.RESTART
    stage.wait(20_000)
    group = stage.group()
    assert group.state is G.PENDING
    assert group.submitted_ms == submitted
    assert group.reason is not None
    assert group.reason.code is PendCode.WAITING_CAPACITY
    assert not any(slot.tasks for slot in group.slots.values())
    stage.up_host("h0", "b2")
    stage.bring_up()
    assert stage.group().state is G.RUNNING


def test_a_group_restart_takes_all_its_places_or_none() -> None:
    """Scenario 6: a part of the places that it lacks is of no use to it, and must not be kept from others."""

    class InPart(Greedy):
        """Grants every slot of a recovery on its own, whatever was asked."""

        def decide(self, state: State, asks: Sequence[Ask]) -> tuple[Grant | Refusal, ...]:
            return super().decide(state, [replace(ask, together=False) for ask in asks])

    stage = Stage(hosts(3, cpu=1_000))
    stage.run(plan(job(), replicas(count=2), rules=(replace(AGAIN, member=""),)))
    stage.feed(inp.HostGone("h0", 1_000), inp.HostGone("h1", 1_000))
    stage.gone()
    stage.now_ms += 1_000
    decision = handle(stage.state, [inp.Tick(), inp.HostUp(hosts(4, cpu=1_000)[3], "b1")], stage.now_ms, InPart())
    group = decision.state.groups["g1"]
    assert group.state is G.RESTARTING
    assert not check(decision.state)
    assert [slot.incarnation for slot in group.slots.values()] == [1, 1, 1]


def test_two_groups_that_each_hold_what_the_other_lacks_do_not_wait_for_each_other() -> None:
    """Scenario 6: recoveries are ordered, and one that cannot complete gives back what it took: then the first one can."""
    stage = Stage(hosts(4, cpu=1_000))
    rules = (replace(AGAIN, member=""),)
    for name in ("first", "second"):
        stage.run(plan(job(), replicas(count=1), name=name, rules=rules, recovery_timeout_ms=20_000))
    assert {task.host for slot in stage.group("g2").slots.values() for task in slot.tasks} == {"h2", "h3"}
    stage.feed(inp.HostGone("h1", 1_000), inp.HostGone("h3", 1_000))
    stage.gone()
    stage.wait(1_000)
    assert [stage.group(group).state for group in ("g1", "g2")] == [G.RESTARTING, G.RESTARTING]
    assert [stage.slot("actor", group=group).tasks[0].host for group in ("g1", "g2")] == ["h0", "h2"]
    stage.wait(20_000)
    assert [stage.group(group).state for group in ("g1", "g2")] == [G.PREPARING, G.PENDING]
    assert {task.host for slot in stage.group().slots.values() for task in slot.tasks} == {"h0", "h2"}
    assert not any(slot.tasks for slot in stage.group("g2").slots.values())
    stage.bring_up()
    assert stage.group().state is G.RUNNING


def test_of_two_recoveries_the_first_in_order_takes_what_comes_back() -> None:
    """Scenario 6: never one slot each."""
    stage = Stage(hosts(8, cpu=1_000))
    rule = RulePlan(Action.RESTART_MEMBER, "rollout")
    for name, priority in (("low", 50), ("high", 80)):
        stage.run(plan(replicas(count=4), name=name, priority=priority, rules=(rule,), recovery_timeout_ms=1_000))
    stage.feed(*(inp.HostGone(name, 1_000) for name in ("h0", "h1", "h4", "h5")))
    for ms in (1_000, 1_000, 1_000):
        stage.wait(ms)
    waits = {group: [s.index for s in stage.group(group).slots.values() if s.state is S.PENDING] for group in ("g1", "g2")}
    assert waits == {"g1": [0, 1], "g2": [0, 1]}
    facts = hosts(10, cpu=1_000)[8:]
    stage.feed(*(inp.HostUp(one, "b1") for one in facts))
    assert [stage.slot("rollout", n, "g2").state for n in (0, 1)] == [S.PLACED, S.PLACED]
    assert [stage.slot("rollout", n, "g1").state for n in (0, 1)] == [S.PENDING, S.PENDING]


def test_a_first_claim_whose_place_came_back_ends_with_that() -> None:
    """What another slot still waits for is no deadline of this one; should it lose its place again, that is a new claim."""
    stage = Stage(hosts(2, cpu=1_000))
    stage.run(plan(job("a"), job("b"), recovery_timeout_ms=10_000))
    place = {member: stage.slot(member).tasks[0].host for member in ("a", "b")}
    stage.feed(inp.CloseHost(place["a"]))
    stage.ask(inp.RestartGroup("g1"))
    stage.gone()
    stage.wait(5_000)
    stage.feed(inp.CloseHost(place["b"]))
    stage.feed(inp.OpenHost(place["a"]))
    assert (stage.slot("a").until_ms, stage.slot("b").until_ms) == (0, stage.now_ms + 10_000)
    stage.wait(5_000)
    assert stage.group().state is G.RESTARTING
    stage.feed(inp.OpenHost(place["b"]))
    assert {member: stage.slot(member).tasks[0].host for member in ("a", "b")} == place
    stage.bring_up()
    assert stage.group().state is G.RUNNING
