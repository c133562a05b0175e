"""The tables, the evolution and the checker themselves: nothing is missing from them, and they do catch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from enum import StrEnum
from typing import Any, get_args

import pytest

from gangflow.xce.core import events as ev
from gangflow.xce.core import inputs as inp
from gangflow.xce.core.evolve import APPLY, apply
from gangflow.xce.core.invariants import check, check_step
from gangflow.xce.core.lifecycle import TRANSITIONS, InvalidTransition, check_edge
from gangflow.xce.core.plan import BackoffPlan
from gangflow.xce.core.state import (
    BudgetUse,
    ChangeState,
    ClaimState,
    Group,
    GroupState,
    HostState,
    Next,
    PendCode,
    Reason,
    Slot,
    SlotState,
    State,
    Task,
    TaskKey,
    TaskPhase,
)
from gangflow.xce.machine import COMMANDS, REPORTS, Machine, handle, next_deadline
from tests.property.greedy import Greedy
from tests.unit.xce.core.plans import hosts, job, plan, replicas
from tests.unit.xce.core.stage import Stage

G, S = GroupState, SlotState


def test_every_state_has_a_row_and_leads_to_states() -> None:
    kinds = {
        "group": GroupState,
        "slot": SlotState,
        "claim": ClaimState,
        "host": HostState,
        "task": TaskPhase,
        "change": ChangeState,
    }
    assert set(TRANSITIONS) == set(kinds)
    for entity, kind in kinds.items():
        table = TRANSITIONS[entity]
        assert set(table) == set(kind)
        for following in table.values():
            assert set(following) <= set(kind)
            assert all(following.values()), "each edge says when it is taken"


def test_ended_is_ended() -> None:
    for state in GroupState:
        assert state.terminal is (TRANSITIONS["group"][state] == {})


def test_every_event_and_every_input_has_its_function() -> None:
    assert set(APPLY) == set(get_args(ev.Event))
    assert set(COMMANDS) == set(get_args(inp.Command))
    assert set(REPORTS) == set(get_args(inp.Report))


def test_an_edge_that_is_not_there_is_an_error_with_a_story() -> None:
    with pytest.raises(InvalidTransition, match="DONE → RUNNING"):
        check_edge("slot", "g1/a[0]", S.DONE, S.RUNNING)
    stage = Stage()
    stage.run(plan(job()))
    machine = Machine(stage.state, Greedy())
    machine.handle([inp.TakeCoordination("g1")], stage.now_ms)

    class Broken(Greedy):
        """Answers what nobody asked."""

        def decide(self, state: Any, asks: Any) -> Any:
            raise InvalidTransition("group", "g1", G.RUNNING, G.PENDING)

    machine._scheduler = Broken()
    with pytest.raises(InvalidTransition) as caught:
        machine.handle([inp.SubmitGroup(plan(job(), name="x")), inp.TakeCoordination("g1")], stage.now_ms)
    assert any("TakeCoordination" in line for line in caught.value.story)
    assert any("CoordinatorStarted" in line for line in caught.value.story)
    assert machine.state.groups.keys() == {"g1"}, "nothing of the batch is true"


@pytest.mark.parametrize(
    "event",
    [
        ev.GroupChanged("g1", G.PENDING, G.PREPARING),
        ev.GroupChanged("g1", G.RUNNING, G.SUCCEEDED),
        ev.GroupPlaced("g1", 5),
        ev.SlotChanged("g1", "actor", 0, 1, S.READY, S.PLACED),
        ev.SlotChanged("g1", "actor", 0, 1, S.STARTING, S.RUNNING),
        ev.SlotPlaced("g1", "actor", 0, 2, 1, ()),
        ev.TaskMoved(TaskKey("g1", 1, "actor", 0, 1, 0), "h0", TaskPhase.PREPARED),
        ev.HostChanged("h0", HostState.FENCED),
    ],
)
def test_no_event_takes_an_edge_that_is_not_there(event: ev.Event) -> None:
    stage = Stage()
    stage.run(plan(job()))
    with pytest.raises(InvalidTransition):
        apply(stage.state, event, stage.now_ms)


def test_applying_changes_only_what_it_touches_and_never_the_state_before() -> None:
    stage = Stage()
    stage.run(plan(job(), replicas()))
    stage.submit(plan(job(), name="other"))
    before = stage.state
    copied = (dict(before.groups), dict(before.groups["g1"].slots), before.groups["g1"].slots["actor", 0])
    after = handle(before, [stage.exited("rollout")], stage.now_ms, Greedy()).state
    assert (dict(before.groups), dict(before.groups["g1"].slots), before.groups["g1"].slots["actor", 0]) == copied
    assert after.groups["g2"] is before.groups["g2"]
    assert after.groups["g1"].slots["actor", 0] is before.groups["g1"].slots["actor", 0]
    assert after.hosts is before.hosts


def odd(value: Any) -> Any:
    """A value of the same kind that is not the default."""
    if isinstance(value, StrEnum) or value is None:
        return value
    if isinstance(value, int):
        return value + 41
    return f"{value}?" if isinstance(value, str) else value


def test_an_event_keeps_every_field_that_it_does_not_speak_of() -> None:
    """A field that is added to a slot or task must survive an edge that has nothing to do with it."""
    stage = Stage()
    stage.run(plan(job()))
    group = stage.group()
    old = group.slots["actor", 0]
    task = replace(
        old.tasks[0], **{f.name: odd(getattr(old.tasks[0], f.name)) for f in fields(Task) if f.name not in ("index", "host")}
    )
    slot = replace(old, restarts=7, epoch=3, tasks=(task,), exit=None, incarnation=9)
    state = replace(stage.state, groups={"g1": replace(group, slots={old.key: slot})})
    changed = (
        apply(state, ev.SlotChanged("g1", "actor", 0, 9, S.READY, S.STOPPING, Next.END, 5), 77).groups["g1"].slots[old.key]
    )
    spoken_of = {"state", "since_ms", "until_ms", "next"}
    for field in fields(Slot):
        if field.name not in spoken_of:
            assert getattr(changed, field.name) == getattr(slot, field.name), field.name
    key = TaskKey("g1", 3, "actor", 0, 9, 0)
    moved = apply(state, ev.TaskMoved(key, "h0", TaskPhase.GONE), 77).groups["g1"].slots[old.key].tasks[0]
    for field in fields(Task):
        if field.name not in {"phase", "message"}:
            assert getattr(moved, field.name) == getattr(task, field.name), field.name
    noted = apply(state, ev.CoordinatorStarted("g1", 4), 77).groups["g1"]
    for field in fields(Group):
        if field.name != "coordinator_term":
            assert getattr(noted, field.name) == getattr(state.groups["g1"], field.name), field.name


def test_a_tick_that_changes_nothing_is_nothing() -> None:
    stage = Stage()
    stage.run(plan(job(), replicas()))
    decision = handle(stage.state, [inp.Tick()], stage.now_ms + 5_000, Greedy())
    assert decision.state is stage.state
    assert (decision.events, decision.effects, decision.replies) == ((), (), (None,))


def test_time_never_runs_backwards() -> None:
    stage = Stage()
    stage.run(plan(job()))
    decision = handle(stage.state, [inp.TakeCoordination("g1")], 5, Greedy())
    assert decision.now_ms == stage.state.now_ms
    assert decision.state.now_ms == stage.state.now_ms


def test_nothing_to_wait_for_is_no_deadline() -> None:
    stage = Stage()
    assert next_deadline(stage.state) is None
    stage.submit(plan(job(), replicas()))
    assert next_deadline(stage.state) == stage.now_ms + 600_000
    stage.bring_up()
    assert next_deadline(stage.state) is None
    stage.exit("rollout")
    assert next_deadline(stage.state) == stage.now_ms + 1_000


def test_a_machine_equals_the_pure_function() -> None:
    stage = Stage()
    machine = Machine(stage.state, Greedy())
    for one in (inp.SubmitGroup(plan(job(), replicas())), inp.HostGone("h0", 100), inp.Tick(), inp.EndGroup("g1", G.CANCELLED)):
        stage.now_ms += 100
        expected = handle(machine.state, [one], stage.now_ms, Greedy())
        assert machine.handle([one], stage.now_ms) == expected
        assert machine.state == expected.state
        assert machine.next_deadline() == next_deadline(expected.state)


# --- the checker catches --------------------------------------------------------------------------------------------------


def with_slot(state: State, /, **fields_: Any) -> State:
    group = state.groups["g1"]
    slot = group.slots["rollout", 0]
    return replace(state, groups={"g1": replace(group, slots={**group.slots, slot.key: replace(slot, **fields_)})})


def with_group(state: State, /, **fields_: Any) -> State:
    return replace(state, groups={"g1": replace(state.groups["g1"], **fields_)})


def gone_tasks(state: State) -> tuple[Task, ...]:
    return tuple(replace(task, phase=TaskPhase.GONE) for task in state.groups["g1"].slots["rollout", 0].tasks)


PLANTED: dict[str, tuple[str, Callable[[State], State]]] = {
    "a slot of another epoch": ("I1", lambda s: with_slot(s, epoch=9)),
    "a group that runs below its minimum": ("I2", lambda s: with_slot(s, state=S.STARTING)),
    "a degraded group that lacks nothing": ("I2", lambda s: with_group(s, state=G.DEGRADED)),
    "more than a host has": (
        "I3",
        lambda s: with_slot(
            s, tasks=tuple(replace(t, counters=(("cpu", 99_000),)) for t in s.groups["g1"].slots["rollout", 0].tasks)
        ),
    ),
    "a port twice": ("I3", lambda s: with_slot(s, tasks=s.groups["g1"].slots["rollout", 1].tasks)),
    "an ended group that holds something": ("I5", lambda s: with_group(s, state=G.FAILED, goal=G.FAILED, cause="x")),
    "gone, but for one task": ("I5", lambda s: with_slot(s, state=S.BACKOFF, reason=Reason(PendCode.BACKOFF))),
    "DONE, and holds": ("I6", lambda s: with_slot(s, state=S.DONE, tasks=gone_tasks(s))),
    "a first claim without a limit": ("I6", lambda s: with_slot(s, state=S.PENDING, tasks=gone_tasks(s))),
    "a deadline that passed": ("I6", lambda s: with_group(s, until_ms=s.now_ms)),
    "waits without a reason": ("I9", lambda s: with_slot(s, state=S.PENDING, tasks=())),
    "short of nothing": ("I9", lambda s: with_group(s, reason=Reason(PendCode.WAITING_CAPACITY))),
    "over its budget": ("I10", lambda s: with_group(s, budgets=(BudgetUse(2, "rollout", 0, (s.now_ms,) * 6),))),
    "finished without an end": ("I11", lambda s: with_slot(s, state=S.DONE, tasks=())),
    "targets that moved": ("I12", lambda s: with_group(s, targets=(("actor", 1), ("rollout", 5)))),
    "nothing follows an exit": ("I15", lambda s: with_slot(s, state=S.EXIT, tasks=())),
    "a live slot of gone tasks": ("I15", lambda s: with_slot(s, tasks=gone_tasks(s))),
    "a goal while it runs": ("I15", lambda s: with_group(s, goal=G.FAILED)),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_checker_catches(name: str) -> None:
    stage = Stage()
    stage.run(plan(job(), replicas()))
    number, plant = PLANTED[name]
    found = check(plant(stage.state))
    assert any(fault.startswith(f"{number} ") for fault in found), found


def test_the_checker_of_steps_catches() -> None:
    stage = Stage()
    stage.submit(plan(job(), replicas()))
    release = ev.BarrierReleased("g1", 1, stage.now_ms + 1)
    after = apply(stage.state, release, stage.now_ms)
    assert any(fault.startswith("I1 ") for fault in check_step(stage.state, [release], after))
    assert any(fault.startswith("I8 ") for fault in check_step(stage.state, [release], stage.state))
    assert any(fault.startswith("I14 ") for fault in check_step(stage.state, [], replace(stage.state, term=9)))


def test_plans_are_plain_data() -> None:
    assert is_dataclass(plan(job()))
    assert hash(plan(job(), replicas(), barrier=replace(plan(job()).barrier, backoff=BackoffPlan(1)))) is not None
    assert hosts(1)[0].node == "n0"
