"""What is remembered of asks makes them cheap and never shows."""

from __future__ import annotations

from gangflow.xce.core.asks import Grant, Refusal
from gangflow.xce.placement import Scheduler
from gangflow.xce.placement.compiled import Requests
from gangflow.xce.placement.feasible import Fits
from gangflow.xce.placement.snapshot import ClusterView
from tests.unit.xce.placement.worlds import adopt, ask, cluster, host, slots, term, without


def requests(limit: int = 0) -> Requests:
    state = cluster(host("a", cpu=8), host("b", cpu=8))
    fits = Fits(ClusterView(state.hosts, state.levels))
    fits.limit = limit or fits.limit
    return Requests(fits)


def test_groups_of_one_shape_share_what_was_compiled() -> None:
    known = requests()
    one = ask("g1", slots("m", 3, term(cpu=1)))
    other = ask("g2", slots("m", 3, term(cpu=1)))
    assert known.seen(one) is None
    assert known.whole(one) is known.whole(other)
    assert known.seen(other) is known.whole(one)
    assert known.whole(ask("g3", slots("m", 4, term(cpu=1)))) is not known.whole(one)
    assert known.whole(ask("g4", slots("n", 3, term(cpu=1)))) is not known.whole(one)
    assert known.whole(ask("g5", one.slots, excluded=("a",))) is not known.whole(one)


def test_slots_of_other_numbers_are_alike_but_not_the_same() -> None:
    known = requests()
    wanted = ask("g1", slots("m", 4, term(cpu=1)))
    first, last = known.part(wanted, wanted.slots[:2]), known.part(wanted, wanted.slots[2:])
    assert first.shape == last.shape
    assert (first.keys, last.keys) == ((("m", 0), ("m", 1)), (("m", 2), ("m", 3)))


def test_a_vector_that_was_dropped_takes_what_was_compiled_with_it() -> None:
    known = requests(limit=2)
    wanted = ask("g1", slots("m", 1, term(cpu=1)))
    before = known.whole(wanted)
    for cpu in (2, 3):
        known.whole(ask("g2", slots("m", 1, term(cpu=cpu))))
    assert known.seen(wanted) is None
    again = known.whole(wanted)
    assert again is not before
    assert again.fits[0] is not before.fits[0]


def test_a_refused_ask_that_is_passed_again_is_placed_once_there_is_room() -> None:
    state, scheduler = cluster(host("a", cpu=4)), Scheduler()
    state = adopt(state, scheduler.decide(state, [ask("g1", slots("m", 3, term(cpu=1)))]))
    waiting = [ask(f"g{i}", slots("m", 2, term(cpu=1))) for i in (2, 3, 4)]
    for _ in range(2):
        answers = scheduler.decide(state, waiting)
        assert [type(answer) for answer in answers] == [Refusal] * 3
        assert len({id(answer.reason) for answer in answers if isinstance(answer, Refusal)}) == 1
    freed = without(state, "g1")
    answers = scheduler.decide(freed, waiting)
    assert [(type(answer), answer.group) for answer in answers] == [(Grant, "g2"), (Grant, "g3"), (Refusal, "g4")]


def test_devices_that_are_picked_alike_are_not_given_twice() -> None:
    """Hosts that look alike share what was worked out for them, not the devices themselves."""
    state, scheduler = cluster(*(host(f"h{i}", gpus=4, node="n", gpu_first=4 * i) for i in range(3))), Scheduler()
    for number in range(1, 7):
        (answer,) = scheduler.decide(state, [ask(f"g{number}", slots("m", 2, term(gpus=1_000)))])
        state = adopt(state, [answer])
    taken = [
        (task.host, device)
        for group in state.groups.values()
        for slot in group.slots.values()
        for task in slot.tasks
        for device, _ in task.gpus
    ]
    assert sorted(taken) == [(f"h{i}", 4 * i + k) for i in range(3) for k in range(4)]
