"""Order, all or nothing, recovery first, surplus last, and the reasons of those who wait."""

from __future__ import annotations

import dataclasses

import pytest

from gangflow.xce.core.asks import Ask, AskKind, Grant, Refusal
from gangflow.xce.core.plan import Pack
from gangflow.xce.core.state import HostState, PendCode
from gangflow.xce.placement import Scheduler
from gangflow.xce.placement.compiled import Requests
from gangflow.xce.placement.feasible import Fits
from gangflow.xce.placement.session import PHASES, Session
from gangflow.xce.placement.snapshot import ClusterView
from tests.unit.xce.placement.worlds import adopt, ask, cluster, host, hosts_of, slots, term, with_hosts, without


def test_two_gangs_that_each_fill_the_cluster() -> None:
    """Scenario 1: 100 nodes, two gangs of 100 exclusive members; exactly one places, the other holds nothing and names it."""
    state = cluster(*(host(f"h{i}", cpu=1) for i in range(100)))
    scheduler = Scheduler()
    asks = [ask("g2", slots("m", 100, term(cpu=1))), ask("g1", slots("m", 100, term(cpu=1)))]
    grant, refusal = scheduler.decide(state, asks)
    assert isinstance(grant, Grant)
    assert isinstance(refusal, Refusal)
    assert grant.group == "g1"
    assert sorted(hosts_of(grant)) == sorted(state.hosts)
    assert (refusal.group, refusal.reason.code, refusal.reason.blocker) == ("g2", PendCode.WAITING_CAPACITY, "g1")
    assert refusal.reason.shortfall == (("cpu", 100_000),)
    assert len(refusal.slots) == 100
    # The same in the next session; and when the first is over, the other is placed.
    state = adopt(state, [grant])
    (again,) = scheduler.decide(state, asks[:1])
    assert again == refusal
    (placed,) = scheduler.decide(without(state, "g1"), asks[:1])
    assert isinstance(placed, Grant)


def test_two_applications_of_which_one_fits() -> None:
    """Scenario 4: two drivers would fit, but executors of one only: the second application gets nothing at all."""
    state = cluster(host("a", cpu=3), host("b", cpu=3))
    scheduler = Scheduler()

    def application(group: str) -> Ask:
        return ask(group, [*slots("driver", 1, term(cpu=1)), *slots("executor", 3, term(cpu=1))])

    grant, refusal = scheduler.decide(state, [application("g1"), application("g2")])
    assert isinstance(grant, Grant)
    assert isinstance(refusal, Refusal)
    (small,) = scheduler.decide(adopt(state, [grant]), [ask("g3", slots("x", 2, term(cpu=1)))])
    assert isinstance(small, Grant), "the refused application holds something"


def test_gpus_free_but_cpu_short_says_so() -> None:
    """Scenario 9: all resources are in the reason: `cpu: 8 missing on node x`."""
    state = cluster(host("x", cpu=8, gpus=8))
    scheduler = Scheduler()
    state = adopt(state, scheduler.decide(state, [ask("g1", slots("busy", 1, term(cpu=8)))]))
    (refusal,) = scheduler.decide(state, [ask("g2", slots("engine", 1, term(cpu=8, gpus=8_000)))])
    assert isinstance(refusal, Refusal)
    assert refusal.reason.text == "cpu: 8 missing on node x"
    assert refusal.reason.shortfall == (("cpu", 8_000),)
    assert refusal.reason.blocker == "g1"


def test_every_short_resource_is_named() -> None:
    state = cluster(host("x", cpu=8, mem=64, gpus=4))
    state = adopt(state, Scheduler().decide(state, [ask("g1", slots("busy", 1, term(cpu=8, gpus=3_000, mem=60)))]))
    (refusal,) = Scheduler().decide(state, [ask("g2", slots("e", 1, term(cpu=2, gpus=2_000, mem=6)))])
    assert isinstance(refusal, Refusal)
    assert refusal.reason.shortfall == (("cpu", 2_000), ("gpus", 1_000), ("mem", 2_048))
    assert refusal.reason.text == "cpu: 2, gpus: 1, mem: 2GiB missing on node x"


def test_enough_in_sum_but_on_no_host_is_a_shape() -> None:
    state = cluster(host("a", cpu=8), host("b", cpu=8))
    state = adopt(state, Scheduler().decide(state, [ask("g1", slots("j", 1, term(2, cpu=3, ptile=1)))]))
    (refusal,) = Scheduler().decide(state, [ask("g2", slots("j", 1, term(cpu=8)))])
    assert isinstance(refusal, Refusal)
    assert refusal.reason.code is PendCode.WAITING_SHAPE
    assert refusal.reason.shortfall == (("cpu", 3_000),)
    assert refusal.reason.domain == "a"
    assert refusal.reason.blocker == "g1"


def test_order_is_priority_then_submission_then_id() -> None:
    state = cluster(host("a", cpu=1))
    one = slots("m", 1, term(cpu=1))
    asks = [
        ask("g10", one, submitted_ms=5),
        ask("g9", one, submitted_ms=5),
        ask("g2", one, submitted_ms=9),
        ask("g11", one, priority=60, submitted_ms=99),
    ]
    for expected in ("g11", "g9", "g10", "g2"):
        answers = Scheduler().decide(state, asks)
        assert [answer.group for answer in answers if isinstance(answer, Grant)] == [expected]
        asks = [one for one in asks if one.group != expected]


def test_a_later_group_may_go_where_an_earlier_one_does_not_fit() -> None:
    state = cluster(host("a", cpu=4))
    answers = Scheduler().decide(state, [ask("g1", slots("m", 5, term(cpu=1))), ask("g2", slots("m", 4, term(cpu=1)))])
    assert [(type(answer), answer.group) for answer in answers] == [(Grant, "g2"), (Refusal, "g1")]


def test_recovery_comes_before_minima_of_higher_priority_and_surplus_last() -> None:
    state = cluster(host("a", cpu=2))
    one = slots("m", 1, term(cpu=1))
    asks = [
        ask("g1", one, AskKind.SURPLUS, priority=99),
        ask("g2", one, AskKind.MINIMUM, priority=90),
        ask("g3", one, AskKind.RECOVERY, priority=1),
    ]
    answers = Scheduler().decide(state, asks)
    assert [(type(answer), answer.group) for answer in answers] == [(Grant, "g3"), (Grant, "g2"), (Refusal, "g1")]


def test_recovery_and_surplus_place_what_they_can() -> None:
    state = cluster(host("a", cpu=2))
    for kind in (AskKind.RECOVERY, AskKind.SURPLUS):
        grant, refusal = Scheduler().decide(state, [ask("g1", slots("m", 3, term(cpu=1)), kind)])
        assert isinstance(grant, Grant)
        assert isinstance(refusal, Refusal)
        assert [slot[:2] for slot in grant.slots] == [("m", 0), ("m", 1)]
        assert refusal.slots == (("m", 2),)


def test_recovery_together_is_all_or_nothing() -> None:
    state = cluster(host("a", cpu=2))
    (answer,) = Scheduler().decide(state, [ask("g1", slots("m", 3, term(cpu=1)), AskKind.RECOVERY, together=True)])
    assert isinstance(answer, Refusal)
    assert len(answer.slots) == 3


def test_a_replacement_stays_in_the_domain_of_what_is_held() -> None:
    state = cluster(*(host(f"h{i}", f"s{i // 2}", cpu=4) for i in range(4)), levels=("switch",))
    lost = slots("m", 1, term(cpu=2))
    for pack in (Pack("switch", True), Pack("switch")):
        (answer,) = Scheduler().decide(state, [ask("g1", lost, AskKind.RECOVERY, pack=pack, held=(("m", "h3"),))])
        assert hosts_of(answer)[0] in ("h2", "h3")
    full = adopt(state, Scheduler().decide(state, [ask("g2", slots("x", 1, term(2, cpu=4)), pack=Pack("switch"))]))
    state = with_hosts(full, *(host(f"h{i}", "s1", cpu=4, state=HostState.LOST) for i in (2, 3)))
    (refusal,) = Scheduler().decide(state, [ask("g1", lost, AskKind.RECOVERY, pack=Pack("switch", True), held=(("m", "h3"),))])
    assert isinstance(refusal, Refusal)
    assert refusal.reason.domain == "s1"
    assert ("not up", 2) in refusal.reason.excluded


@pytest.mark.parametrize("state", [HostState.UNKNOWN, HostState.LOST, HostState.FENCED, HostState.CLOSED])
def test_only_hosts_that_are_up_take_new_work(state: HostState) -> None:
    world = cluster(host("a", state=state), host("b"))
    scheduler = Scheduler()
    (answer,) = scheduler.decide(world, [ask("g1", slots("m", 8, term(cpu=1)))])
    assert {*hosts_of(answer)} == {"b"}
    (refusal,) = scheduler.decide(world, [ask("g1", slots("m", 9, term(cpu=1)))])
    assert isinstance(refusal, Refusal)
    assert refusal.reason.code is PendCode.WAITING_CAPACITY
    (answer,) = scheduler.decide(with_hosts(world, host("a")), [ask("g1", slots("m", 9, term(cpu=1)))])
    assert isinstance(answer, Grant)


def test_closed_hosts_that_would_do_are_named_in_the_reason() -> None:
    closed = [host(f"c{i}", cpu=4, state=HostState.CLOSED) for i in range(2)]
    request = ask("g1", slots("m", 1, term(cpu=1)))
    (refusal,) = Scheduler().decide(cluster(*closed), [request])
    assert isinstance(refusal, Refusal)
    assert refusal.reason.text.endswith("cpu: 1 missing in the cluster; closed by an operator: 2 hosts")
    assert refusal.reason.excluded == (("closed by an operator", 2),)
    world = cluster(*closed, host("l", cpu=4, state=HostState.LOST), host("u", cpu=4))
    scheduler = Scheduler()
    (refusal,) = scheduler.decide(world, [ask("g1", slots("m", 6, term(cpu=1)))])
    assert isinstance(refusal, Refusal)
    assert "; closed by an operator: 2 hosts" in refusal.reason.text
    assert refusal.reason.excluded == (("closed by an operator", 2), ("not up", 1))
    (refusal,) = scheduler.decide(world, [ask("g1", slots("m", 14, term(cpu=1)))])
    assert isinstance(refusal, Refusal)
    assert "closed" not in refusal.reason.text, "they would not be enough"
    world = with_hosts(world, *(host(f"c{i}", cpu=4, state=HostState.LOST) for i in range(2)))
    (refusal,) = scheduler.decide(world, [ask("g1", slots("m", 6, term(cpu=1)))])
    assert isinstance(refusal, Refusal)
    assert refusal.reason.excluded == (("not up", 3),)


def test_excluded_hosts_are_not_used_and_are_counted() -> None:
    state = cluster(host("a"), host("b"))
    (answer,) = Scheduler().decide(state, [ask("g1", slots("m", 8, term(cpu=1)), excluded=("a",))])
    assert {*hosts_of(answer)} == {"b"}
    (refusal,) = Scheduler().decide(state, [ask("g1", slots("m", 9, term(cpu=1)), excluded=("a",))])
    assert isinstance(refusal, Refusal)
    assert ("excluded", 1) in refusal.reason.excluded
    assert refusal.reason.code is PendCode.WAITING_CAPACITY


def test_a_grant_that_was_not_adopted_is_taken_back() -> None:
    state = cluster(host("a", cpu=1))
    scheduler = Scheduler()
    wanted = ask("g1", slots("m", 1, term(cpu=1)))
    first = scheduler.decide(state, [wanted])
    assert scheduler.decide(state, [wanted]) == first


def test_hosts_that_come_and_go_are_noticed() -> None:
    state = cluster(host("a", cpu=1))
    scheduler = Scheduler()
    wanted = [ask("g1", slots("m", 2, term(cpu=1)))]
    assert isinstance(scheduler.decide(state, wanted)[0], Refusal)
    assert isinstance(scheduler.decide(with_hosts(state, host("b", cpu=1)), wanted)[0], Grant)
    assert isinstance(scheduler.decide(state, wanted)[0], Refusal)
    assert isinstance(scheduler.decide(with_hosts(state, host("a", cpu=2)), wanted)[0], Grant)


def test_a_cluster_without_hosts_waits_for_them() -> None:
    (answer,) = Scheduler().decide(cluster(), [ask("g1", slots("m", 1, term(cpu=1)))])
    assert isinstance(answer, Refusal)
    assert (answer.reason.code, answer.reason.shortfall) == (PendCode.WAITING_CAPACITY, (("cpu", 1_000),))


def test_an_ask_without_slots_is_granted_nothing() -> None:
    assert Scheduler().decide(cluster(host("a")), [ask("g1", ())]) == (Grant("g1", ()),)


def test_who_is_not_reached_in_a_session_waits_for_its_turn() -> None:
    state = cluster(host("a", cpu=8))
    view = ClusterView(state.hosts, state.levels)
    view.refresh(state)
    session = Session(Requests(Fits(view)), [ask(f"g{i}", slots("m", 1, term(cpu=1))) for i in range(1, 4)], work=2)
    for _, phase in PHASES:
        phase(session)
    *granted, last = session.answers
    assert [answer.group for answer in granted] == ["g1", "g2"]
    assert isinstance(last, Refusal)
    assert (last.reason.code, last.reason.blocker) == (PendCode.WAITING_TURN, "g2")


def test_phases_carry_the_numbers_of_the_design() -> None:
    assert sorted(number for number, _ in PHASES) == [1, 2, 3, 7, 8]


def test_equal_shapes_are_refused_alike() -> None:
    state = cluster(host("a", cpu=4))
    wide = slots("m", 5, term(cpu=1))
    answers = Scheduler().decide(
        state, [ask("g1", wide), ask("g2", wide), ask("g3", [dataclasses.replace(one) for one in wide])]
    )
    assert len({answer.reason for answer in answers if isinstance(answer, Refusal)}) == 1
    assert len(answers) == 3
