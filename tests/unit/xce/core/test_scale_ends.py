"""How changes of targets end otherwise: superseded, out of time, without the host that they counted on, with their group."""

from __future__ import annotations

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.plan import Action, Cause, RulePlan, ScalePlan
from gangflow.xce.core.state import ChangeState, GroupState, PendCode, SlotState
from tests.unit.xce.core.elastic import SHIFT, change, elastic, scale, serving
from tests.unit.xce.core.plans import hosts, job, plan
from tests.unit.xce.core.stage import Stage

G, S, D = GroupState, SlotState, ChangeState


def test_a_newer_change_takes_over_what_goes_and_what_was_promised() -> None:
    stage = Stage(hosts(1, cpu=4_000))
    stage.run(SHIFT)
    scale(stage, prefill=1, decode=3)
    assert scale(stage, prefill=1, decode=2).status == 202
    assert (change(stage, "c1").state, change(stage, "c1").message) == (D.FAILED, "superseded by c2")
    assert stage.slot("decode", 2).state is S.RETIRED, "never placed, and not wanted any more"
    assert scale(stage, prefill=1, decode=3).status == 202, "what prefill[1] gives back is still to be had"
    assert change(stage, "c3").downs == (("prefill", 1),)
    stage.gone()
    assert (change(stage, "c3").state, stage.slot("decode", 2).state) == (D.DONE, S.PLACED)


def test_a_newer_change_of_another_member_keeps_the_places_that_are_promised() -> None:
    stage = Stage(hosts(1, cpu=5_000))
    stage.run(SHIFT)
    scale(stage, prefill=1, decode=4)
    assert change(stage).ups == (("decode", 3),), "one fits now, the other waits for prefill[1]"
    promised = change(stage).grants
    scale(stage, decode=3)
    assert (change(stage).grants, change(stage).state) == ((), D.DRAINING)
    scale(stage, decode=4)
    assert change(stage).grants == promised
    stage.gone()
    assert change(stage).state is D.DONE


def test_scaling_back_needs_no_more_room_than_what_is_on_its_way_out() -> None:
    """On a full host: down and up again while the old incarnation drains. The new one has the old one's room."""
    stage = Stage(hosts(1, cpu=4_000))
    stage.run(plan(elastic(count=4, cpu=1_000, drain_ms=10_000)))
    scale(stage, rollout=3)
    assert stage.slot("rollout", 3).state is S.DRAINING
    assert scale(stage, rollout=4).status == 202
    assert stage.slot("rollout", 4).state is S.PENDING
    stage.wait(10_000)
    stage.gone()
    assert (stage.slot("rollout", 3).state, stage.slot("rollout", 4).state) == (S.RETIRED, S.PLACED)


def test_a_change_that_takes_too_long_fails_and_what_stands_is_the_target() -> None:
    stage = Stage(hosts(1, cpu=4_000))
    stage.run(plan(*SHIFT.members, scale=ScalePlan(timeout_ms=30_000)))
    scale(stage, prefill=1, decode=3)
    stage.wait(30_000)
    ended = change(stage)
    assert (ended.state, ended.grants, ended.ended_ms) == (D.FAILED, (), stage.now_ms)
    assert "decode[2] waits" in ended.message
    assert "prefill[1] is STOPPING" in ended.message
    assert dict(stage.group().targets) == {"prefill": 1, "decode": 2}
    assert stage.slot("decode", 2).state is S.RETIRED
    stage.gone()
    assert not stage.slot("prefill", 1).tasks, "nobody holds it for a change that is over"
    assert stage.group().state is G.RUNNING


def test_the_commands_own_timeout_counts() -> None:
    stage = Stage(hosts(1, cpu=4_000))
    stage.run(SHIFT)
    stage.ask(inp.ScaleGroup("g1", (("prefill", 1), ("decode", 3)), 2_000))
    stage.wait(1_999)
    assert change(stage).state is D.DRAINING
    stage.wait(1)
    assert change(stage).state is D.FAILED


def test_a_host_that_is_lost_meanwhile_leaves_the_replica_waiting_with_its_reason() -> None:
    stage = Stage(hosts(2, cpu=2_000))
    stage.run(SHIFT)
    host = stage.slot("prefill", 1).tasks[0].host
    scale(stage, prefill=1, decode=3)
    stage.lose(host, fence_ms=5_000)
    waits = stage.slot("decode", 2)
    assert (waits.state, waits.tasks, change(stage).grants) == (S.PENDING, (), ())
    assert waits.reason is not None
    assert waits.reason.code is PendCode.WAITING_CAPACITY
    stage.wait(5_000)
    assert (change(stage).state, change(stage).ups) == (D.PLACING, (("decode", 2),))
    stage.up_host(host, "b2")
    assert stage.slot("decode", 2).state is S.PLACED, "there is room again: it needs no promise any more"
    assert change(stage).state is D.DONE


def test_a_host_that_is_closed_meanwhile_takes_nobody_new() -> None:
    stage = Stage(hosts(2, cpu=2_000))
    stage.run(SHIFT)
    host = stage.slot("prefill", 1).tasks[0].host
    scale(stage, prefill=1, decode=3)
    stage.ask(inp.CloseHost(host))
    stage.gone()
    assert change(stage).state is D.PLACING
    assert stage.slot("decode", 2).state is S.PENDING
    stage.ask(inp.OpenHost(host))
    assert change(stage).state is D.DONE


def test_a_replica_that_goes_and_loses_its_host_is_gone_when_that_is_fenced() -> None:
    stage = Stage(hosts(2, cpu=2_000))
    stage.run(plan(elastic("prefill", 1, 0, cpu=2_000), elastic("decode", 2, cpu=1_000)))
    host = stage.slot("prefill").tasks[0].host
    scale(stage, prefill=0)
    stage.lose(host, fence_ms=5_000)
    assert change(stage).state is D.DRAINING
    stage.wait(5_000)
    assert (stage.slot("prefill").state, change(stage).state) == (S.RETIRED, D.DONE)


def test_targets_survive_the_failure_and_the_restart_of_their_group() -> None:
    """Scenario 40: 2 by the template, 5 by a change. A failure that restarts the whole group brings back 5."""
    stage = Stage(hosts(2, cpu=4_000))
    stage.run(plan(job(), elastic(count=2), rules=(RulePlan(Action.RESTART_GROUP, "actor", max_restarts=1),)))
    scale(stage, rollout=5)
    stage.bring_up()
    assert serving(stage, "rollout") == [0, 1, 2, 3, 4]
    stage.exit("actor")
    stage.gone()
    stage.wait(1_000)
    for _ in range(2):
        stage.bring_up()
    assert stage.group().epoch == 2
    assert dict(stage.group().targets) == {"actor": 1, "rollout": 5}
    assert serving(stage, "rollout") == [0, 1, 2, 3, 4]


def test_targets_survive_suspension_and_what_was_scaled_away_stays_away() -> None:
    """Scenario 40."""
    stage = Stage()
    stage.run(plan(job(), elastic(count=3)))
    scale(stage, rollout=1)
    stage.gone()
    stage.ask(inp.SuspendGroup("g1"))
    stage.gone()
    stage.ask(inp.ResumeGroup("g1"))
    for _ in range(2):
        stage.bring_up()
    assert serving(stage, "rollout") == [0]
    assert [slot.index for slot in stage.group().slots.values() if slot.out] == [1, 2]


def test_a_restart_in_the_middle_of_a_change_gives_back_what_it_held_and_keeps_its_targets() -> None:
    stage = Stage(hosts(1, cpu=5_000))
    stage.run(plan(elastic("prefill", 3, cpu=1_000), elastic("decode", 0, 0, cpu=3_000)))
    scale(stage, prefill=2, decode=1)
    assert stage.slot("decode").tasks
    stage.ask(inp.RestartGroup("g1"))
    assert (change(stage).state, change(stage).message) == (D.DONE, "the targets are set; the group is RESTARTING")
    assert not stage.slot("decode").tasks
    stage.gone()
    for _ in range(2):
        stage.bring_up()
    assert (serving(stage, "prefill"), serving(stage, "decode")) == ([0, 1], [0])


def test_a_group_that_ends_ends_its_change() -> None:
    stage = Stage(hosts(1, cpu=4_000))
    stage.run(SHIFT)
    scale(stage, prefill=1, decode=3)
    stage.ask(inp.EndGroup("g1", G.CANCELLED))
    assert change(stage).state is D.FAILED
    stage.gone()
    assert stage.group().state is G.CANCELLED


def test_a_group_that_does_not_run_for_the_moment_refuses() -> None:
    stage = Stage()
    stage.run(plan(job(), elastic()))
    stage.ask(inp.RestartGroup("g1"))
    reply = scale(stage, rollout=3)
    assert (reply.status, reply.code, dict(reply.fields)) == (409, "conflict", {"id": "g1", "state": "RESTARTING"})
    stage.ask(inp.EndGroup("g1", G.CANCELLED))
    stage.gone()
    assert scale(stage, rollout=3).code == "conflict"
    assert scale(stage, "g7", rollout=3).code == "not_found"


def test_a_member_that_a_user_stopped_is_not_scaled() -> None:
    stage = Stage()
    stage.run(plan(job(), elastic("rollout"), elastic("judge", cpu=500)))
    stage.ask(inp.StopMember("g1", "judge"))
    stage.gone()
    assert scale(stage, judge=3).code == "conflict"
    assert scale(stage, rollout=3).status == 202


def test_stopping_the_member_that_gives_room_leaves_the_change_whole() -> None:
    stage = Stage(hosts(1, cpu=5_000))
    stage.run(plan(job(cpu=1_000), *SHIFT.members))
    scale(stage, prefill=1, decode=3)
    stage.ask(inp.StopMember("g1", "prefill"))
    stage.gone()
    assert (change(stage).state, stage.slot("decode", 2).state) == (D.DONE, S.PLACED)


def test_what_was_scaled_away_and_fails_on_its_way_asks_no_rule() -> None:
    stage = Stage()
    stage.run(plan(job(), elastic(drain_ms=10_000), rules=(RulePlan(Action.FAIL_GROUP, "rollout"),)))
    scale(stage, rollout=1)
    stage.exit("rollout", 1)
    assert (stage.group().state, change(stage).state) == (G.RUNNING, D.DONE)
    batch = stage.exited("rollout", 0)
    stage.ask(inp.ScaleGroup("g1", (("rollout", 2),)))
    stage.bring_up()
    stage.feed(batch)
    assert stage.group().state is G.STOPPING, "of what is wanted it is asked"


def test_what_fails_in_the_very_batch_that_scales_it_away_asks_no_rule() -> None:
    stage = Stage()
    stage.run(plan(job(), elastic(least=1), rules=(RulePlan(Action.FAIL_GROUP, "rollout"),)))
    stage.feed(inp.ScaleGroup("g1", (("rollout", 1),)), stage.exited("rollout", 1))
    assert (stage.group().state, change(stage).state) == (G.RUNNING, D.DONE)
    exit = stage.slot("rollout", 1).exit
    assert exit is not None
    assert exit.cause is Cause.APP_EXIT, "how it ended is kept"


def test_giving_up_never_breaks_a_minimum() -> None:
    """A replica that never found its place goes out of the target, unless the minimum would be broken by that."""
    stage = Stage(hosts(2, cpu=2_000))
    stage.run(plan(elastic("prefill", 2, 1, cpu=1_000), elastic("decode", 2, 2, cpu=1_000)))
    scale(stage, prefill=1, decode=3)
    lost = stage.slot("decode", 1).tasks[0].host
    stage.lose(lost, fence_ms=600_000)
    assert stage.slot("decode", 1).state is S.LOST
    stage.wait(600_000)
    assert change(stage).state is D.FAILED
    assert dict(stage.group().targets)["decode"] >= 2


def test_what_was_given_up_goes_first_so_that_the_minimum_is_left() -> None:
    """A group that waits, resumed with one of two replicas given up: the one that is left is the one that can start."""
    stage = Stage()
    stage.run(plan(elastic(), rules=(RulePlan(Action.TOLERATE, "rollout"),)))
    stage.bring_up()
    stage.exit("rollout", 0)
    stage.ask(inp.SuspendGroup("g1"))
    stage.gone()
    for name in stage.state.hosts:
        stage.ask(inp.CloseHost(name))
    stage.ask(inp.ResumeGroup("g1"))
    assert scale(stage, rollout=1).ok
    assert {index: slot.out for (_, index), slot in stage.group().slots.items()} == {0: True, 1: False}
    for name in stage.state.hosts:
        stage.ask(inp.OpenHost(name))
    stage.bring_up()
    assert stage.group().state is G.RUNNING
    assert serving(stage, "rollout") == [1]


def test_giving_up_counts_no_replica_that_a_rule_gave_up() -> None:
    """One that waits is all that can make the minimum: it goes on waiting, although its change took too long."""
    stage = Stage(hosts(3, cpu=1_000))
    rule = RulePlan(Action.TOLERATE, "decode", floor=0, floor_grace_ms=600_000)
    members = (elastic("prefill", 2, drain_ms=60_000), elastic("decode", 1))
    stage.run(plan(*members, rules=(rule,), scale=ScalePlan(timeout_ms=5_000)))
    stage.bring_up()
    home = stage.slot("decode").tasks[0].host
    stage.exit("decode")
    stage.ask(inp.CloseHost(home))
    assert scale(stage, prefill=1, decode=2).ok
    stage.wait(5_000)
    assert change(stage).state is D.FAILED
    assert (stage.slot("decode", 0).state, stage.slot("decode", 1).state) == (S.RETIRED, S.PENDING)
    assert not stage.slot("decode", 1).out
    stage.ask(inp.OpenHost(home))
    stage.bring_up()
    assert stage.group().state is G.RUNNING
