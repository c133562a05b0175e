"""A session ends when its work is done up: whoever it did not reach has his turn in the next one, which comes at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.asks import Ask, Grant, Refusal
from gangflow.xce.core.state import GroupState, PendCode, Reason, State
from gangflow.xce.machine import Machine, next_deadline
from tests.property.greedy import Greedy
from tests.unit.xce.core.plans import hosts, job, plan, replicas
from tests.unit.xce.core.stage import Stage

NOW = 1_000_000


class OneAtATime:
    """Sessions that try one ask each."""

    def __init__(self) -> None:
        self.sessions = 0

    def decide(self, state: State, asks: Sequence[Ask]) -> tuple[Grant | Refusal, ...]:
        self.sessions += 1
        late = Reason(PendCode.WAITING_TURN, f"not reached, ended after {asks[0].group}", blocker=asks[0].group)
        passed = (Refusal(ask.group, late, tuple((slot.member, slot.index) for slot in ask.slots)) for ask in asks[1:])
        return (*Greedy().decide(state, asks[:1]), *passed)


def started(cpu: int) -> tuple[Machine, OneAtATime]:
    scheduler = OneAtATime()
    machine = Machine(State(), scheduler)
    up = [inp.HostUp(one, "boot") for one in hosts(1, cpu=cpu)]
    machine.handle([inp.StartTerm("test"), *up], NOW)
    return machine, scheduler


def test_groups_that_a_session_did_not_reach_are_asked_again_at_once() -> None:
    machine, _ = started(cpu=3_000)
    submissions = [inp.SubmitGroup(plan(job(), name=f"n{i}")) for i in range(3)]
    machine.handle(submissions, NOW)
    states = [group.state for group in machine.state.groups.values()]
    assert states == [GroupState.PREPARING, GroupState.PENDING, GroupState.PENDING]
    for placed in (2, 3):
        deadline = machine.next_deadline()
        assert deadline is not None
        assert deadline <= NOW
        machine.handle([inp.Tick()], NOW)
        states = [group.state for group in machine.state.groups.values()]
        assert states.count(GroupState.PREPARING) == placed


def test_whoever_had_his_turn_and_does_not_fit_wakes_nobody() -> None:
    machine, scheduler = started(cpu=1_000)
    machine.handle([inp.SubmitGroup(plan(job(cpu=2_000), name=f"n{i}")) for i in range(3)], NOW)
    ticks = 0
    while (deadline := machine.next_deadline()) is not None and deadline <= NOW:
        machine.handle([inp.Tick()], NOW)
        ticks += 1
        assert ticks < 10
    assert [group.reason.code for group in machine.state.groups.values() if group.reason] == [PendCode.WAITING_CAPACITY] * 3
    before = scheduler.sessions
    assert machine.handle([inp.Tick()], NOW).events == ()
    assert scheduler.sessions == before


def test_surplus_of_a_running_group_that_was_not_reached_is_asked_again_at_once() -> None:
    stage = Stage(hosts(1, cpu=2_000))
    group = stage.run(plan(job(), replicas(count=2, least=1)))
    waits = stage.slot("rollout", 1)
    assert waits.reason is not None
    assert waits.reason.code is PendCode.WAITING_CAPACITY
    since = next_deadline(stage.state)
    late = replace(waits, reason=Reason(PendCode.WAITING_TURN, "not reached", blocker="g7"))
    old = stage.group(group)
    passed = replace(stage.state, groups={group: replace(old, slots={**old.slots, late.key: late})})
    assert since is None or since > stage.now_ms
    assert (next_deadline(passed) or stage.now_ms + 1) <= stage.now_ms
    stage.state = passed
    stage.wait(0)
    assert stage.slot("rollout", 1).reason == waits.reason
    assert next_deadline(stage.state) == since
