"""What the index derives, beyond what the histories compare at every step."""

from __future__ import annotations

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.index import HEAP_SPARE, Index
from gangflow.xce.core.state import GroupState
from gangflow.xce.machine import Machine
from tests.property.greedy import Greedy
from tests.unit.xce.core.plans import hosts, plan, replicas
from tests.unit.xce.core.stage import Stage


def test_a_probe_that_flaps_leaves_nothing_behind() -> None:
    """Each loss of readiness sets a deadline that its return makes untrue, minutes before it would have come."""
    stage = Stage()
    stage.run(plan(replicas(least=1)))
    machine = Machine(stage.state, Greedy())
    key, host = stage.key(stage.slot("rollout")), stage.slot("rollout").tasks[0].host
    for edge in range(2, 4 * HEAP_SPARE, 2):
        machine.handle([inp.TaskUnready(key, host, "503", edge)], stage.now_ms)
        machine.handle([inp.TaskReady(key, host, edge + 1)], stage.now_ms)
    assert len(machine._index._heap) <= HEAP_SPARE + 2
    assert machine.next_deadline() == Machine(machine.state, Greedy()).next_deadline()


def test_all_that_is_due_at_once_is_found_whatever_else_is_in_the_heap() -> None:
    stage = Stage(hosts(4))
    for number in range(12):
        stage.submit(plan(replicas(count=1, cpu=100), name=f"group-{number}"))
    index = Index(stage.state)
    deadline = stage.group("g1").until_ms
    assert index.due(deadline - 1) == []
    assert index.due(deadline) == [f"g{number}" for number in range(1, 13)]


def test_a_name_is_free_again_when_its_group_ended_also_in_the_same_batch() -> None:
    stage = Stage()
    stage.submit(plan(replicas(), name="mine"))
    assert stage.ask(inp.SubmitGroup(plan(replicas(), name="mine"))).code == "conflict"
    stage.wait(600_000)
    stage.gone()
    stage.ask(inp.EndGroup("g1", GroupState.CANCELLED))
    stage.gone()
    one, two = stage.feed(*(inp.SubmitGroup(plan(replicas(), name="mine")) for _ in range(2))).replies
    assert one is not None
    assert two is not None
    assert (one.status, two.code) == (201, "conflict")
