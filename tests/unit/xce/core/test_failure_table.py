"""Property 38, the whole table of the failure policy: cause × action × state of group and slot, against the design's oracle."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.effects import Effect, Provision, Release
from gangflow.xce.core.events import FailureJudged
from gangflow.xce.core.plan import Action, BackoffPlan, Cause, ClaimPlan, GroupPlan, RulePlan
from gangflow.xce.core.state import GroupState, Slot, SlotState
from tests.unit.xce.core.failure_oracle import (
    ACTIONS,
    CAUSES,
    SEEN_TO_END,
    SLOTS,
    Outcome,
    below_floor,
    outcome,
    together,
    with_budget,
)
from tests.unit.xce.core.plans import READY, hosts, job, plan, replicas
from tests.unit.xce.core.stage import Stage, reply_to

G, S = GroupState, SlotState
JOB, REPLICA = "actor[0]", "rollout[1]"
ACTIVE = {"STARTING", "RUNNING", "DEGRADED"}
PAUSE = BackoffPlan(1_000, 1_000, 1_000)


def key(name: str) -> tuple[str, int]:
    member, index = name[:-1].split("[")
    return member, int(index)


def the_group(*rules: RulePlan) -> GroupPlan:
    """Every slot has a host of its own, and `actor` and `rollout` a claim for each of their slots."""
    return plan(
        job("keeper"),
        job("actor", ports=("http",), ready=READY),
        replicas("rollout", 3, 2),
        replicas("side", 1),
        rules=rules,
        claims=(ClaimPlan("a", scope="actor"), ClaimPlan("r", scope="rollout")),
    )


def ready_but(stage: Stage, *members: str) -> None:
    """Everybody's probes succeed, but for those of these members."""
    stage.ready(*({"keeper", "actor", "rollout", "side"} - set(members)))


def start_all(stage: Stage) -> None:
    """As far as probes are concerned; replicas above the minimum included."""
    for _ in range(2):
        stage.claims_ready()
        stage.prepare()
        stage.start()


def unready(stage: Stage, name: str) -> None:
    slot = stage.slot(*key(name))
    stage.feed(inp.TaskUnready(stage.key(slot), slot.tasks[0].host, "503"))


def bring_to(stage: Stage, group: str, slot: str, target: str) -> None:
    """A submitted group into the states that a case is about."""
    member, index = key(target)
    if group == "PREPARING":
        stage.claims_ready()
        if slot == "PREPARED":
            stage.prepare(member)
        return
    if group == "PENDING":
        refused = stage.slot("keeper")
        stage.feed(inp.TaskRefused(stage.key(refused), refused.tasks[0].host, "port 1 is taken"))
        return
    if group == "STARTING":
        if slot == "STARTING":
            for _ in range(2):
                stage.claims_ready()
                stage.prepare()
            return
        start_all(stage)
        if slot == "READY":
            ready_but(stage, "side")
        elif slot == "RUNNING":
            ready_but(stage, "side", member)
        return
    start_all(stage)
    stage.ready()
    assert stage.group().state is G.RUNNING
    if slot == "RUNNING":
        unready(stage, target)
    elif slot == "STARTING":
        assert stage.ask(inp.RestartSlot("g1", member, index, 1)).ok
        stage.gone()
        stage.claims_ready()
        stage.prepare()
    elif slot == "LOST":
        stage.lose(stage.slot(member, index).tasks[0].host, fence_ms=1_000)
    if group == "DEGRADED":
        unready(stage, "side[0]")
    elif group == "RESTARTING":
        stage.ask(inp.RestartGroup("g1"))
    elif group == "SUSPENDING":
        stage.ask(inp.SuspendGroup("g1"))
    elif group == "STOPPING":
        stage.ask(inp.EndGroup("g1", G.CANCELLED))


@cache
def scene(group: str, slot: str, target: str, *rules: RulePlan) -> Stage:
    """Made once for all causes; whoever plays on takes a copy."""
    stage = Stage(hosts(12, cpu=1_000))
    stage.submit(the_group(*rules))
    bring_to(stage, group, slot, target)
    assert stage.group().state.value == group
    assert stage.slot(*key(target)).state.value == slot
    return stage


def copy_of(stage: Stage) -> Stage:
    again = copy.copy(stage)
    again.events = []
    again.boots = dict(stage.boots)
    return again


def overdue(stage: Stage, name: str, **fields: int) -> None:
    """The slot's own deadline comes, and nobody else's."""
    group = stage.group()
    slots = dict(group.slots)
    slots[key(name)] = replace(slots[key(name)], **fields)  # type: ignore[arg-type]
    stage.state = replace(stage.state, groups={**stage.state.groups, "g1": replace(group, slots=slots)})


def exit_of(stage: Stage, slot: Slot, cause: Cause) -> inp.Input:
    return inp.TaskExited(stage.key(slot), slot.tasks[0].host, cause, 3 if cause is Cause.APP_EXIT else None)


def strike(stage: Stage, name: str, cause: str) -> None:
    """The cause comes to this slot."""
    slot = stage.slot(*key(name))
    host = slot.tasks[0].host if slot.tasks else ""
    what = Cause(cause)
    if cause in SEEN_TO_END:
        stage.feed(exit_of(stage, slot, what))
    elif what is Cause.NOT_READY:
        if slot.state is S.READY:
            unready(stage, name)
        if slot.state in (S.STARTING, S.RUNNING, S.READY):
            overdue(stage, name, until_ms=stage.now_ms + 1)
        stage.wait(1)
    elif what is Cause.RUN_LIMIT:
        if slot.state not in (S.PLACED, S.PREPARED):
            overdue(stage, name, run_until_ms=stage.now_ms + 1)
        stage.wait(1)
    elif what in (Cause.HOST_LOST, Cause.AGENT_LOST):
        stage.feed(inp.HostGone(host, 1_000, what is Cause.AGENT_LOST))
    elif what is Cause.DRAINED:
        stage.feed(inp.CloseHost(host, drain=True))
    elif what is Cause.CLAIM_LOST:
        claim = stage.claim(f"g1/{name}/{name[0]}")
        stage.feed(inp.ClaimLost(claim.id, claim.attempt, "not there"))
    else:
        stage.feed(inp.ReportSlot("g1", *slot.key, slot.incarnation, what))


def answer_to(stage: Stage, effect: Effect) -> inp.Input:
    """What an agent, or a provider, that does as it is told reports."""
    if isinstance(effect, Provision):
        return inp.ClaimReady(effect.claim, effect.attempt, f"/claims/{effect.claim}")
    if isinstance(effect, Release):
        return inp.ClaimReleased(effect.claim, effect.attempt)
    return reply_to(effect, stage.boots)


def play_on(stage: Stage) -> None:
    """Everybody does as told, second after second, until nothing moves."""
    for _ in range(24):
        before = stage.state
        stage.now_ms += 1_000
        running = [slot for slot in stage.group().slots.values() if slot.state is S.RUNNING]
        probes = [inp.TaskReady(stage.key(slot), slot.tasks[0].host) for slot in running]
        stage.feed(*(answer_to(stage, effect) for effect in stage.due()), *probes)
        if stage.state is before and not stage.due():
            return


def seen(stage: Stage, before: Stage) -> Outcome:
    """What became of it, in the oracle's words."""
    group, old = stage.group(), before.group()
    judged = {event.action for event in stage.events if isinstance(event, FailureJudged) and event.action}
    counted = [name for name in SLOTS if old.slots[key(name)].incarnation]
    again = [name for name in counted if group.slots[key(name)].incarnation > old.slots[key(name)].incarnation]
    assert all(group.slots[key(name)].incarnation - old.slots[key(name)].incarnation < 2 for name in SLOTS), "more than once"
    retired = [name for name in SLOTS if group.slots[key(name)].state is S.RETIRED and group.state is G.RUNNING]
    return Outcome(
        "",
        group.state.value,
        " ".join(sorted(judged)),
        tuple(again),
        tuple(retired),
        group.cause if group.state is G.FAILED else "",
        group.epoch - old.epoch,
    )


def expected_of(stage: Stage, wanted: Outcome) -> Outcome:
    """The oracle's outcome, without what was never placed (a replica above the minimum, while its group is PREPARING)."""
    placed = {name for name in SLOTS if stage.slot(*key(name)).incarnation}
    return replace(wanted, state="", again=tuple(name for name in wanted.again if name in placed))


SCENES = [
    (group, slot, target)
    for target in (JOB, REPLICA)
    for group, slots in {
        "PENDING": ("RELEASING",),
        "PREPARING": ("PLACED", "PREPARED"),
        "STARTING": ("STARTING", "RUNNING", "READY"),
        "RUNNING": ("STARTING", "RUNNING", "READY"),
        "DEGRADED": ("STARTING", "RUNNING", "READY"),
        "RESTARTING": ("STOPPING", "LOST"),
        "SUSPENDING": ("STOPPING", "LOST"),
        "STOPPING": ("STOPPING", "LOST"),
    }.items()
    for slot in slots
    # While a job is not up its group is DEGRADED.
    if not (group == "RUNNING" and slot == "STARTING" and target == JOB)
]


@pytest.mark.parametrize(("group", "slot", "target"), SCENES)
def test_every_cause_and_action(group: str, slot: str, target: str) -> None:
    """Each row says: this group, this slot in this state, fails so, and its rule says this; what then, and in the end."""
    # What is being taken down asks no rule: the strongest action stands for all.
    for action in ACTIONS if group in ACTIVE else ["fail_group"]:
        rules = (RulePlan(Action(action), key(target)[0], backoff=PAUSE),)
        if slot == "LOST":
            # How it came to be lost is an earlier failure.
            rules = (RulePlan(Action.RESTART_MEMBER, key(target)[0], causes=(Cause.HOST_LOST,)), *rules)
        begin = scene(group, slot, target, *rules)
        for cause in CAUSES:
            row = f"{group} {target} {slot} {cause} {action}"
            stage = copy_of(begin)
            if slot == "LOST" and cause in ("host_lost", "agent_lost"):
                continue
            wanted = outcome(group, slot, target, cause, action)
            strike(stage, target, cause)
            assert stage.group().state.value == wanted.state, row
            if wanted.judged:
                exit = stage.slot(*key(target)).exit
                assert exit is not None, row
                assert exit.cause == cause, row
            play_on(stage)
            assert seen(stage, begin) == expected_of(begin, wanted), row


def calm(state: str) -> Stage:
    """A group of which nothing runs and nothing is owed."""
    stage = copy_of(scene("RUNNING", "READY", JOB, RulePlan(Action.RESTART_GROUP, "actor", backoff=PAUSE)))
    stage.ask(inp.SuspendGroup("g1") if state == "SUSPENDED" else inp.EndGroup("g1", G(state)))
    stage.gone()
    stage.claims_released()
    assert stage.group().state.value == state
    return stage


@pytest.mark.parametrize("state", ["SUSPENDED", "CANCELLED", "FAILED"])
@pytest.mark.parametrize("cause", CAUSES)
def test_what_is_not_running_does_not_fail(state: str, cause: str) -> None:
    stage = calm(state)
    ran = scene("RUNNING", "READY", JOB, RulePlan(Action.RESTART_GROUP, "actor", backoff=PAUSE)).slot("actor")
    before = stage.state.groups
    if cause in SEEN_TO_END:
        stage.feed(exit_of(stage, ran, Cause(cause)))
    elif cause in ("host_lost", "agent_lost", "drained"):
        host = ran.tasks[0].host
        stage.feed(inp.CloseHost(host, drain=True) if cause == "drained" else inp.HostGone(host, 1_000, cause == "agent_lost"))
    elif cause not in ("not_ready", "run_limit", "claim_lost"):
        stage.feed(inp.ReportSlot("g1", "actor", 0, ran.incarnation, Cause(cause)))
    stage.wait(3_600_000)
    assert stage.state.groups == before


def after_its_end(state: str) -> tuple[Stage, str]:
    """A running group with one slot that was judged already, or is finished; and the slot."""
    again, weaker = RulePlan(Action.RESTART_MEMBER, backoff=PAUSE), RulePlan(Action.TOLERATE, "rollout", causes=(Cause.OOM,))
    stage = copy_of(scene("RUNNING", "READY", REPLICA, weaker, again))
    name = JOB if state == "DONE" else REPLICA
    if state == "DONE":
        stage.exit("actor", code=0)
    elif state == "RETIRED":
        strike(stage, name, "oom")
    elif state == "BACKOFF":
        strike(stage, name, "app_exit")
    elif state == "STOPPING":
        strike(stage, name, "hung")
    elif state == "LOST":
        strike(stage, name, "host_lost")
    stage.events = []
    assert stage.slot(*key(name)).state.value == state
    return stage, name


@pytest.mark.parametrize("state", ["STOPPING", "LOST", "BACKOFF", "RETIRED", "DONE"])
@pytest.mark.parametrize("cause", CAUSES)
def test_what_was_judged_is_not_judged_again(state: str, cause: str) -> None:
    """Whatever is said of an incarnation that failed, or finished, before: no rule is asked, and it goes on as decided."""
    stage, name = after_its_end(state)
    before = stage.group()
    if before.slots[key(name)].tasks or cause not in (*SEEN_TO_END, "host_lost", "agent_lost", "drained"):
        strike(stage, name, cause)
    else:
        # It holds nothing: what is said of it is said of the place where it was.
        ran = scene("RUNNING", "READY", REPLICA, *before.plan.rules[:2]).slot(*key(name))
        stage.feed(exit_of(stage, ran, Cause.APP_EXIT))
    assert not [event for event in stage.events if isinstance(event, FailureJudged)]
    assert stage.group().state is before.state
    play_on(stage)
    assert stage.group().state is G.RUNNING
    comes_back = state in ("STOPPING", "LOST", "BACKOFF")
    assert stage.slot(*key(name)).incarnation == before.slots[key(name)].incarnation + comes_back
    assert stage.group().budgets == before.budgets


@pytest.mark.parametrize("first", ACTIONS)
@pytest.mark.parametrize("second", ACTIONS)
def test_failures_of_one_batch_are_judged_together(first: str, second: str) -> None:
    """The strongest action wins over the group; weaker ones each do their own part."""
    rules = (RulePlan(Action(first), "actor", backoff=PAUSE), RulePlan(Action(second), "rollout", backoff=PAUSE))
    begin = scene("RUNNING", "READY", JOB, *rules)
    stage = copy_of(begin)
    stage.feed(*(exit_of(stage, stage.slot(*key(name)), Cause.APP_EXIT) for name in (REPLICA, JOB)))
    judged = [(event.member, event.action) for event in stage.events if isinstance(event, FailureJudged)]
    wanted = together(first, second)
    assert judged == [("actor", wanted[0]), ("rollout", wanted[1])], "in member order"
    play_on(stage)
    rows = [outcome("RUNNING", "READY", name, "app_exit", action) for name, action in zip((JOB, REPLICA), wanted, strict=True)]
    assert stage.group().state.value == rows[0].rest
    if rows[0].rest == "RUNNING":
        result = seen(stage, begin)
        assert set(result.again) == {*rows[0].again, *rows[1].again}
        assert set(result.given_up) == {*rows[0].given_up, *rows[1].given_up}


@pytest.mark.parametrize("then", ACTIONS)
def test_a_floor_that_is_broken_for_longer_than_its_grace(then: str) -> None:
    """Nobody failed: two of three replicas stay unready, and the floor is two."""
    rule = RulePlan(Action.RESTART_MEMBER, "rollout", max_restarts=3, floor_grace_ms=5_000, backoff=PAUSE, then=Action(then))
    if then == "restart_member":
        rule = replace(rule, action=Action.RESTART_ROLE)
    begin = scene("RUNNING", "READY", REPLICA, rule)
    stage = copy_of(begin)
    waits = ("rollout[0]", "rollout[2]")
    for name in waits:
        unready(stage, name)
    assert stage.group().below_floor_ms == (("rollout", stage.now_ms),)
    stage.wait(4_999)
    assert stage.group().state is G.DEGRADED
    stage.wait(1)
    wanted = below_floor(then, waits)
    assert stage.group().state.value == wanted.state
    play_on(stage)
    assert seen(stage, begin) == replace(wanted, state="")
    assert stage.group().below_floor_ms == () or stage.group().state is G.FAILED


SPENT: dict[str, Callable[[], RulePlan]] = {
    "count": lambda: RulePlan(Action.RESTART_MEMBER, "rollout", max_restarts=1, backoff=PAUSE),
    "time": lambda: RulePlan(Action.RESTART_MEMBER, "rollout", max_elapsed_ms=20_000, backoff=PAUSE),
    "": lambda: RulePlan(Action.RESTART_MEMBER, "rollout", max_restarts=2, max_elapsed_ms=600_000, backoff=PAUSE),
}


@pytest.mark.parametrize("how", SPENT)
@pytest.mark.parametrize("then", [action for action in ACTIONS if action != "restart_member"])
def test_a_budget_in_count_and_in_time_whichever_is_first(how: str, then: str) -> None:
    """Scenario 22: one restart is paid, and 30 s later comes the next failure."""
    for counts in (False, True):
        rule = replace(SPENT[how](), then=Action(then), count_machine_losses=counts)
        begin = copy_of(scene("RUNNING", "READY", REPLICA, rule))
        strike(begin, REPLICA, "app_exit")
        play_on(begin)
        begin.wait(30_000)
        assert begin.group().state is G.RUNNING
        for cause in CAUSES:
            row = f"{how} then {then}, machines count: {counts}, {cause}"
            stage = copy_of(begin)
            action = with_budget(cause, "restart_member", then, spent=bool(how), counts_machines=counts)
            strike(stage, REPLICA, cause)
            play_on(stage)
            wanted = replace(outcome("RUNNING", "READY", REPLICA, cause, action), state="")
            assert seen(stage, begin) == wanted, row
