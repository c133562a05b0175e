"""Changes of targets: accepted, drained, placed (design 3.7). How they end otherwise is in `test_scale_ends`."""

from __future__ import annotations

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.events import ChangeMoved, GroupSubmitted, SlotHeld, SlotPlaced, TargetsSet
from gangflow.xce.core.plan import Action, RulePlan
from gangflow.xce.core.state import ChangeState, GroupState, Next, PendCode, SlotState
from tests.unit.xce.core.elastic import PAIR, SHIFT, change, elastic, scale, serving
from tests.unit.xce.core.plans import hosts, job, plan
from tests.unit.xce.core.stage import Stage

G, S, D = GroupState, SlotState, ChangeState


def test_more_replicas_are_placed_at_once_where_there_is_room() -> None:
    """Scenario 66: a change of targets is no change of the template, and touches nobody who stays."""
    stage = Stage()
    stage.run(PAIR)
    before = stage.group()
    reply = scale(stage, rollout=4)
    assert (reply.status, dict(reply.fields)) == (202, {"id": "g1", "change": "c1"})
    assert dict(stage.group().targets) == {"actor": 1, "rollout": 4}
    assert (change(stage).state, change(stage).before) == (D.DONE, (("actor", 1), ("rollout", 2)))
    stage.bring_up()
    assert serving(stage, "rollout") == [0, 1, 2, 3]
    assert stage.group().plan is before.plan
    assert all(stage.group().slots[key].incarnation == slot.incarnation for key, slot in before.slots.items())


def test_the_same_targets_are_no_change() -> None:
    stage = Stage()
    stage.run(PAIR)
    decision = stage.feed(inp.ScaleGroup("g1", (("rollout", 2),)))
    assert decision.replies[0] is not None
    assert (decision.replies[0].status, dict(decision.replies[0].fields)) == (202, {"id": "g1", "change": ""})
    assert decision.events == ()


def test_fewer_replicas_drain_first_and_nothing_is_free_before_they_are_gone() -> None:
    stage = Stage()
    stage.run(plan(job(), elastic(count=3, drain_ms=5_000)))
    assert scale(stage, rollout=1).status == 202
    assert stage.states() == {"actor[0]": "READY", "rollout[0]": "READY", "rollout[1]": "DRAINING", "rollout[2]": "DRAINING"}
    assert change(stage).state is D.DRAINING
    assert not stage.due(), "deregistered, and not stopped yet"
    stage.wait(5_000)
    assert stage.states()["rollout[2]"] == "STOPPING"
    stage.gone()
    assert change(stage).state is D.DONE
    assert not stage.slot("rollout", 1).tasks
    assert not stage.slot("rollout", 2).tasks
    assert stage.group().state is G.RUNNING


def test_who_goes_without_a_place_then_not_ready_then_the_highest_index() -> None:
    stage = Stage(hosts(1, cpu=5_000))
    stage.run(plan(elastic(count=5, cpu=1_000)))
    stage.feed(inp.TaskUnready(stage.key(stage.slot("rollout", 1)), "h0", "503"))
    assert stage.slot("rollout", 1).state is S.RUNNING
    stage.ask(inp.SubmitGroup(plan(job(cpu=1), name="other")))
    scale(stage, rollout=4)
    assert [slot.index for slot in stage.group().slots.values() if slot.out] == [1]
    scale(stage, rollout=3)
    assert [slot.index for slot in stage.group().slots.values() if slot.out] == [1, 4]


def test_a_replica_that_was_given_up_goes_first_and_costs_nobody() -> None:
    """Tolerated slots count in the target; lowering it takes those that nobody is waiting for."""
    stage = Stage()
    stage.run(plan(job(), elastic(count=3), rules=(RulePlan(Action.TOLERATE, "rollout"),)))
    stage.exit("rollout", 0)
    assert stage.slot("rollout", 0).state is S.RETIRED
    scale(stage, rollout=2)
    assert serving(stage, "rollout") == [1, 2]
    assert change(stage).state is D.DONE
    stage.bring_up()
    scale(stage, rollout=3)
    stage.bring_up()
    assert serving(stage, "rollout") == [0, 1, 2], "the lowest index with no live incarnation is used again"
    assert stage.slot("rollout", 0).incarnation == 2


def test_an_index_is_not_given_away_while_its_old_incarnation_terminates() -> None:
    """Scenario 66: what is terminating is not counted as there, and not mixed up with what replaces it."""
    stage = Stage()
    stage.run(plan(elastic(count=2)))
    scale(stage, rollout=1)
    assert stage.slot("rollout", 1).state is S.STOPPING
    scale(stage, rollout=2)
    assert stage.slot("rollout", 1).out
    assert stage.slot("rollout", 2).state is S.PLACED
    stage.gone()
    stage.bring_up()
    assert serving(stage, "rollout") == [0, 2]
    assert change(stage).state is D.DONE


def test_what_does_not_fit_is_refused_with_the_shortfall_and_changes_nothing() -> None:
    stage = Stage(hosts(1, cpu=4_000))
    stage.run(plan(elastic(cpu=1_500)))
    decision = stage.feed(inp.ScaleGroup("g1", (("rollout", 3),)))
    reply = decision.replies[0]
    assert reply is not None
    assert (reply.status, reply.code) == (409, "no_fit")
    assert dict(reply.fields) == {"id": "g1", "reason": "WAITING_CAPACITY", "shortfall.cpu": 1_500}
    assert "rollout[2]" in reply.message
    assert decision.events == ()


def test_a_shift_at_the_limit_is_one_transaction_down_first() -> None:
    """Scenario 58: prefill down, decode up on a full cluster. Nothing is above what there is; nobody else gets in between."""
    stage = Stage(hosts(1, cpu=4_000))
    stage.run(SHIFT)
    other = stage.submit(plan(job(cpu=1_000), name="other"))
    assert scale(stage, prefill=3).code == "no_fit", "no room for one more without anything in return"
    assert scale(stage, prefill=0, decode=4).code == "invalid", "prefill's minimum is 1"
    assert scale(stage, prefill=1, decode=3).status == 202
    assert change(stage).state is D.DRAINING
    waits = stage.slot("decode", 2)
    assert (waits.state, waits.tasks) == (S.PENDING, ()), "all of its place is still in the hands of prefill[1]"
    assert waits.reason is not None
    assert (waits.reason.code, waits.reason.shortfall[0]) == (PendCode.WAITING_CAPACITY, ("cpu", 1_000))
    assert "prefill[1]" in waits.reason.text
    stage.gone()
    assert change(stage).state is D.DONE
    assert stage.slot("decode", 2).state is S.PLACED
    assert stage.group(other).state is G.PENDING
    stage.bring_up()
    assert (serving(stage, "prefill"), serving(stage, "decode")) == ([0], [0, 1, 2])
    assert stage.group(other).state is G.PENDING


def test_what_a_place_needs_beyond_the_downs_is_held_from_the_first_moment() -> None:
    """Two small ones go, one large one comes: the rest of its place is free now, and nobody else may have it meanwhile."""
    stage = Stage(hosts(1, cpu=5_000))
    stage.run(plan(elastic("prefill", 3, cpu=1_000), elastic("decode", 0, 0, cpu=3_000)))
    assert scale(stage, prefill=2, decode=1).status == 202
    held = stage.slot("decode", 0)
    assert (held.next, dict(held.tasks[0].counters)) == (Next.SCALE, {"cpu": 2_000})
    other = stage.submit(plan(job(cpu=1_000), name="other"))
    assert stage.group(other).state is G.PENDING
    stage.gone()
    assert dict(stage.slot("decode", 0).tasks[0].counters) == {"cpu": 3_000}
    assert stage.group(other).state is G.PENDING


def test_all_downs_are_gone_before_any_of_their_room_is_used() -> None:
    stage = Stage(hosts(2, cpu=2_000))
    stage.run(plan(elastic("prefill", 3, cpu=1_000), elastic("decode", 1, 1, cpu=1_000)))
    scale(stage, prefill=1, decode=3)
    going = [slot for slot in stage.group().slots.values() if slot.out]
    stage.feed(inp.TaskExited(stage.key(going[0]), going[0].tasks[0].host, signal=15))
    kept = stage.group().slots[going[0].key]
    assert (kept.state, kept.tasks[0].counters) == (S.RETIRED, going[0].tasks[0].counters), "it keeps it for the change"
    assert stage.slot("decode", 1).state is S.PENDING
    assert not stage.group(stage.submit(plan(job(cpu=1_000), name="other"))).slots["actor", 0].tasks
    stage.gone()
    assert [stage.slot("decode", index).state for index in (1, 2)] == [S.PLACED, S.PLACED]


def test_what_fits_now_does_not_wait_for_what_drains() -> None:
    stage = Stage(hosts(1, cpu=5_000))
    stage.run(plan(elastic("prefill", 2, cpu=1_000, drain_ms=60_000), elastic("decode", 2, cpu=1_000)))
    scale(stage, prefill=1, decode=4)
    assert [stage.slot("decode", index).state for index in (2, 3)] == [S.PLACED, S.PENDING]
    assert change(stage).ups == (("decode", 3),)


def test_a_burst_of_changes_starts_nothing_of_the_earlier_and_stops_nobody_who_stays() -> None:
    """Scenario 66: five changes in one batch are one change; the last is the one that counts, and each has an end."""
    stage = Stage(hosts(1, cpu=8_000))
    stage.run(plan(elastic(count=4, cpu=1_000)))
    bursts = [6, 1, 8, 2, 5]
    decision = stage.feed(*(inp.ScaleGroup("g1", (("rollout", target),)) for target in bursts))
    assert [reply and reply.status for reply in decision.replies] == [202] * 5
    assert not [slot for slot in stage.group().slots.values() if slot.live and slot.out]
    placed = [event for event in decision.events if isinstance(event, SlotPlaced)]
    assert [(event.member, event.index) for event in placed] == [("rollout", 4)]
    ends = {one.id: (one.state, one.message) for one in stage.group().changes}
    assert ends["c1"] == (D.FAILED, "superseded by c2")
    assert ends["c5"][0] is D.DONE
    assert dict(stage.group().targets) == {"rollout": 5}


def test_what_one_change_of_a_batch_gives_up_another_group_may_hold() -> None:
    """Each command is decided on what is true at its place in the batch, holds of the commands before it included."""
    stage = Stage(hosts(1, cpu=4_000))
    stage.run(plan(elastic(count=1, cpu=1_000), name="one"))
    stage.run(plan(elastic(count=1, cpu=1_000), name="two"))
    decision = stage.feed(
        inp.ScaleGroup("g1", (("rollout", 3),)),
        inp.ScaleGroup("g2", (("rollout", 2),)),
        inp.ScaleGroup("g1", (("rollout", 1),)),
        inp.ScaleGroup("g2", (("rollout", 3),)),
        inp.ScaleGroup("g1", (("rollout", 2),)),
    )
    assert [reply and (reply.status, reply.code) for reply in decision.replies] == [
        (202, "ok"),
        (409, "no_fit"),
        (202, "ok"),
        (202, "ok"),
        (409, "no_fit"),
    ]
    assert dict(stage.group("g1").targets) == {"rollout": 1}
    assert dict(stage.group("g2").targets) == {"rollout": 3}


def test_a_surplus_replica_that_waits_has_a_reason_of_its_own_and_holds_nobody_up() -> None:
    """Scenarios 29 and 88: waiting is no start. The group runs, its extra replica says why it waits, later groups go by."""
    stage = Stage(hosts(1, cpu=4_000))
    stage.run(plan(elastic(count=3, least=1, cpu=1_500)))
    waits = stage.slot("rollout", 2)
    assert waits.reason is not None
    assert (waits.reason.code, stage.group().reason, stage.group().state) == (PendCode.WAITING_CAPACITY, None, G.RUNNING)
    large = stage.submit(plan(job(cpu=4_000), name="large"))
    small = stage.submit(plan(job(cpu=500), name="small"))
    stage.bring_up()
    assert (stage.group(large).state, stage.group(small).state) == (G.PENDING, G.RUNNING)
    assert stage.group(large).reason is not None
    assert stage.group(large).reason != waits.reason


def test_targets_of_a_group_that_waits_or_prepares_are_only_set() -> None:
    stage = Stage(hosts(1, cpu=4_000))
    blocker = stage.run(plan(job(cpu=4_000), name="blocker"))
    stage.submit(plan(elastic(count=2, least=1, cpu=1_000)))
    assert scale(stage, "g2", rollout=4).status == 202
    assert (change(stage, group="g2").state, stage.group("g2").state) == (D.DONE, G.PENDING)
    assert scale(stage, "g2", rollout=1).status == 202
    assert stage.states("g2") == {f"rollout[{n}]": "PENDING" if n == 0 else "RETIRED" for n in range(4)}
    stage.ask(inp.EndGroup(blocker, G.CANCELLED))
    stage.gone()
    assert stage.group("g2").state is G.PREPARING
    assert scale(stage, "g2", rollout=3).status == 202
    stage.bring_up()
    stage.bring_up()
    assert serving(stage, "rollout", "g2") == [0, 1, 2]


def test_a_group_that_prepares_keeps_its_minimum_whatever_is_taken_out() -> None:
    stage = Stage(hosts(2, cpu=2_000))
    stage.submit(plan(elastic(count=4, least=2, cpu=1_000)))
    assert stage.group().state is G.PREPARING
    scale(stage, rollout=2)
    assert [stage.slot("rollout", index).state for index in (0, 1)] == [S.PLACED, S.PLACED]
    stage.bring_up()
    assert serving(stage, "rollout") == [0, 1]


def test_zero_of_everything_suspends_and_keeps_the_targets() -> None:
    stage = Stage()
    stage.run(plan(elastic("prefill", 2, cpu=500), elastic("decode", 1, cpu=500)))
    reply = scale(stage, prefill=0, decode=0)
    assert (reply.status, dict(reply.fields)) == (202, {"id": "g1", "state": "SUSPENDING", "change": ""})
    stage.gone()
    assert stage.group().state is G.SUSPENDED
    assert dict(stage.group().targets) == {"prefill": 2, "decode": 1}
    assert stage.ask(inp.ResumeGroup("g1")).ok
    stage.bring_up()
    stage.bring_up()
    assert (serving(stage, "prefill"), serving(stage, "decode")) == ([0, 1], [0])


def test_zero_replicas_beside_a_job_is_a_target_like_any_other() -> None:
    stage = Stage()
    stage.run(plan(job(), elastic(count=2, least=0)))
    assert scale(stage, rollout=0).status == 202
    stage.gone()
    assert (stage.group().state, change(stage).state) == (G.RUNNING, D.DONE)


def test_the_journal_says_what_was_set_and_held() -> None:
    stage = Stage(hosts(1, cpu=5_000))
    stage.run(plan(elastic("prefill", 3, cpu=1_000), elastic("decode", 0, 0, cpu=3_000)))
    decision = stage.feed(inp.ScaleGroup("g1", (("prefill", 2), ("decode", 1)), 5_000))
    told = [event for event in decision.events if isinstance(event, ChangeMoved | TargetsSet | SlotHeld)]
    assert [type(event).__name__ for event in told] == ["ChangeMoved", "TargetsSet", "SlotHeld", "ChangeMoved"]
    assert told[1] == TargetsSet("g1", (("prefill", 2), ("decode", 1)), (("decode", 0),), (("prefill", 2),))
    assert change(stage).until_ms == stage.now_ms + 5_000
    assert not any(isinstance(event, GroupSubmitted) for event in decision.events)
