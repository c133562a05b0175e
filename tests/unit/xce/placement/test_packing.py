"""Where things go: best fit, domains, spans, devices, ports."""

from __future__ import annotations

from gangflow.xce.core.asks import AskKind, Grant, Refusal
from gangflow.xce.core.plan import Pack, Per, TaskTerm, Use
from gangflow.xce.core.state import PendCode
from gangflow.xce.placement import Scheduler
from tests.unit.xce.placement.worlds import adopt, ask, cluster, host, hosts_of, slots, tasks_of, term


def test_replicas_fill_the_tightest_hosts_first() -> None:
    state = cluster(host("a", cpu=8), host("b", cpu=2), host("c", cpu=4))
    (answer,) = Scheduler().decide(state, [ask("g1", slots("r", 5, term(cpu=1)))])
    assert sorted(hosts_of(answer)) == ["b", "b", "c", "c", "c"]


def test_tasks_of_one_slot_stand_on_few_hosts() -> None:
    state = cluster(host("a", cpu=2), host("b", cpu=6), host("c", cpu=4))
    (whole,) = Scheduler().decide(state, [ask("g1", slots("j", 1, term(4, cpu=1)))])
    assert hosts_of(whole) == ["c"] * 4
    (spread,) = Scheduler().decide(state, [ask("g1", slots("j", 1, term(8, cpu=1)))])
    assert hosts_of(spread) == ["a"] * 2 + ["b"] * 6


def test_span_hosts_1_keeps_a_slot_on_one_host() -> None:
    state = cluster(host("a", cpu=3), host("b", cpu=3))
    (answer,) = Scheduler().decide(state, [ask("g1", slots("j", 1, term(4, cpu=1, one_host=True)))])
    assert isinstance(answer, Refusal)
    assert answer.reason.code is PendCode.NEVER_FITS
    (answer,) = Scheduler().decide(state, [ask("g1", slots("j", 2, term(3, cpu=1, one_host=True)))])
    assert hosts_of(answer) == ["a"] * 3 + ["b"] * 3


def test_ptile_puts_exactly_n_tasks_on_a_host_and_the_rest_on_another() -> None:
    state = cluster(*(host(name, cpu=8) for name in "abcd"))
    (answer,) = Scheduler().decide(state, [ask("g1", slots("j", 1, term(7, cpu=1, ptile=2)))])
    counts = {name: hosts_of(answer).count(name) for name in "abcd"}
    assert sorted(counts.values()) == [1, 2, 2, 2]
    (refused,) = Scheduler().decide(state, [ask("g1", slots("j", 1, term(9, cpu=1, ptile=2)))])
    assert isinstance(refused, Refusal)
    assert refused.reason.shortfall == (("hosts", 1),)


def test_compound_terms_are_numbered_in_order_whichever_is_harder() -> None:
    state = cluster(host("small", cpu=1), host("large", cpu=8))
    (answer,) = Scheduler().decide(state, [ask("g1", slots("j", 1, term(1, cpu=1), term(1, cpu=8)))])
    assert [(task.index, task.host) for task in tasks_of(answer)] == [(0, "small"), (1, "large")]


def test_uses_per_host_and_per_job_are_paid_once() -> None:
    uses = (Use("cpu", 1_000), Use("mem", 1_024, Per.HOST), Use("licence", 1, Per.JOB))
    state = cluster(host("a", cpu=2, counters=(("licence", 0),)), host("b", cpu=2, counters=(("licence", 1),)))
    (answer,) = Scheduler().decide(state, [ask("g1", slots("j", 1, TaskTerm(4, uses)))])
    tasks = tasks_of(answer)
    assert sorted(task.host for task in tasks) == ["a", "a", "b", "b"]
    used = {name: sum(dict(task.counters).get(name, 0) for task in tasks) for name in ("cpu", "mem", "licence")}
    assert used == {"cpu": 4_000, "mem": 2_048, "licence": 1}
    assert [task.host for task in tasks if dict(task.counters).get("licence")] == ["b"]


def test_a_fraction_of_a_gpu_stays_on_one_device() -> None:
    state = cluster(host("a", gpus=2))
    (answer,) = Scheduler().decide(state, [ask("g1", slots("r", 2, term(gpus=600)))])
    assert [task.gpus for task in tasks_of(answer)] == [((0, 600),), ((1, 600),)]
    state = adopt(state, [answer])
    (answer,) = Scheduler().decide(state, [ask("g2", slots("r", 1, term(gpus=600)))])
    assert isinstance(answer, Refusal)
    assert answer.reason.code is PendCode.WAITING_SHAPE
    assert answer.reason.shortfall == (("gpus", 200),)
    (answer,) = Scheduler().decide(state, [ask("g3", slots("r", 2, term(gpus=400)))])
    assert [task.gpus for task in tasks_of(answer)] == [((0, 400),), ((1, 400),)]


def test_whole_devices_are_numbered_as_their_node_numbers_them() -> None:
    state = cluster(host("v0", node="n", gpus=2), host("v1", node="n", gpus=2, gpu_first=2))
    scheduler = Scheduler()
    (answer,) = scheduler.decide(state, [ask("g1", slots("r", 2, term(gpus=2_000)))])
    assert [task.gpus for task in tasks_of(answer)] == [((0, 1_000), (1, 1_000)), ((2, 1_000), (3, 1_000))]
    (refused,) = scheduler.decide(adopt(state, [answer]), [ask("g2", slots("r", 1, term(gpus=1)))])
    assert isinstance(refused, Refusal)


def test_virtual_hosts_of_one_node_share_its_ports() -> None:
    state = cluster(host("v0", node="n", cpu=1, ports=(7_000, 3)), host("v1", node="n", cpu=8, ports=(7_000, 3)))
    (answer,) = Scheduler().decide(state, [ask("g1", slots("r", 3, term(cpu=1), ports=("http",)))])
    numbers = [number for task in tasks_of(answer) for _, number in task.ports]
    assert sorted(numbers) == [7_000, 7_001, 7_002]
    (refused,) = Scheduler().decide(adopt(state, [answer]), [ask("g2", slots("r", 1, term(cpu=1), ports=("http",)))])
    assert isinstance(refused, Refusal)
    assert dict(refused.reason.shortfall)["ports"] == 1


def test_each_task_gets_one_number_for_each_port_name() -> None:
    state = cluster(host("a", ports=(9_000, 8)))
    (answer,) = Scheduler().decide(state, [ask("g1", slots("r", 2, term(cpu=1), ports=("http", "rpc")))])
    assert [task.ports for task in tasks_of(answer)] == [(("http", 9_000), ("rpc", 9_001)), (("http", 9_002), ("rpc", 9_003))]


LEVELS = ("block", "switch")


def tree(cpu: int = 4) -> list:
    """Two blocks of two switches of two hosts."""
    return [host(f"h{i}", f"b{i // 4}", f"s{i // 2}", cpu=cpu) for i in range(8)]


def test_a_required_pack_takes_the_tightest_domain_that_holds_all() -> None:
    state = cluster(*tree(), levels=LEVELS)
    state = adopt(state, Scheduler().decide(state, [ask("g1", slots("x", 1, term(3, cpu=1)), pack=Pack("switch"))]))
    (answer,) = Scheduler().decide(state, [ask("g2", slots("j", 1, term(5, cpu=1)), pack=Pack("switch", True))])
    assert {*hosts_of(answer)} == {"h0", "h1"}
    (answer,) = Scheduler().decide(state, [ask("g2", slots("j", 1, term(6, cpu=1)), pack=Pack("switch", True))])
    assert {*hosts_of(answer)} == {"h2", "h3"}


def test_a_required_pack_that_fits_no_domain_waits_for_topology() -> None:
    state = cluster(*tree(), levels=LEVELS)
    thirds = [ask(f"g{i + 1}", slots("x", 1, term(3, cpu=1, select=f"switch==s{i}"))) for i in range(4)]
    busy = adopt(state, Scheduler().decide(state, thirds))
    # Five of eight CPUs are free on each switch.
    (answer,) = Scheduler().decide(busy, [ask("g9", slots("j", 3, term(2, cpu=1)), pack=Pack("switch", True))])
    assert isinstance(answer, Refusal)
    assert answer.reason.code is PendCode.WAITING_TOPOLOGY
    assert answer.reason.shortfall == (("cpu", 1_000),)
    assert answer.reason.domain == "b0/s0"
    assert answer.reason.blocker == "g1"


def test_a_preferred_pack_uses_few_domains_when_one_is_too_small() -> None:
    state = cluster(*tree(), levels=LEVELS)
    (answer,) = Scheduler().decide(
        state, [ask("g1", [*slots("a", 1, term(8, cpu=1)), *slots("r", 4, term(cpu=1))], pack=Pack("switch"))]
    )
    assert len({state.hosts[name].facts.path[1] for name in hosts_of(answer)}) == 2


def test_pack_of_a_member_and_of_a_group_hold_together() -> None:
    state = cluster(*tree(), levels=LEVELS)
    wanted = [*slots("a", 1, term(6, cpu=1)), *slots("r", 6, term(cpu=1))]
    (answer,) = Scheduler().decide(
        state, [ask("g1", wanted, pack=Pack("block", True), pack_members=(("r", Pack("switch", True)),))]
    )
    assert len({state.hosts[name].facts.path[0] for name in hosts_of(answer)}) == 1
    assert len({state.hosts[name].facts.path[1] for name in hosts_of(answer, "r")}) == 1


def test_an_engine_never_straddles_the_domain_that_its_slot_was_packed_into() -> None:
    """Scenario 10: an engine with tensor parallelism over n tasks stays in one domain."""
    state = cluster(*tree(cpu=3), levels=LEVELS)
    wanted = slots("engine", 5, term(4, cpu=1), pack_slot=Pack("switch", True))
    (answer,) = Scheduler().decide(state, [ask("g1", wanted[:4])])
    assert isinstance(answer, Grant)
    for _, _, tasks in answer.slots:
        assert len({state.hosts[task.host].facts.path[1] for task in tasks}) == 1
    # 24 CPUs hold five engines of 4, but each switch only one.
    (refused,) = Scheduler().decide(state, [ask("g1", wanted)])
    assert isinstance(refused, Refusal)
    assert refused.reason.code is PendCode.WAITING_TOPOLOGY
    assert refused.reason.shortfall == (("cpu", 2_000),)
    unpacked = slots("engine", 5, term(4, cpu=1))
    assert isinstance(Scheduler().decide(state, [ask("g1", unpacked)])[0], Grant)


def test_a_host_is_a_level_of_every_cluster() -> None:
    state = cluster(host("a", cpu=3), host("b", cpu=5))
    (answer,) = Scheduler().decide(
        state, [ask("g1", slots("e", 1, term(2, cpu=1), term(2, cpu=1), pack_slot=Pack("host", True)))]
    )
    assert hosts_of(answer) == ["b"] * 4


def test_an_unknown_level_is_misconfigured() -> None:
    state = cluster(host("a"), levels=())
    (answer,) = Scheduler().decide(state, [ask("g1", slots("e", 1, term(cpu=1)), pack=Pack("rack", True))])
    assert isinstance(answer, Refusal)
    assert answer.reason.code is PendCode.MISCONFIGURED
    assert "rack" in answer.reason.text


def test_order_keys_choose_hosts_before_tightness() -> None:
    state = cluster(host("a", cpu=4, rank="2"), host("b", cpu=8, rank="1"), host("c", cpu=8, rank="3"))
    (most,) = Scheduler().decide(state, [ask("g1", slots("r", 1, term(cpu=1, order=("cpu", "-rank"))))])
    assert hosts_of(most) == ["b"]
    (least,) = Scheduler().decide(state, [ask("g1", slots("r", 1, term(cpu=1, order=("rank",))))])
    assert hosts_of(least) == ["c"]


def test_natural_order_of_names_decides_ties() -> None:
    state = cluster(*(host(f"h{i}", cpu=1) for i in (10, 9, 2)))
    (answer,) = Scheduler().decide(state, [ask("g1", slots("r", 2, term(cpu=1)))])
    assert hosts_of(answer) == ["h2", "h9"]


def test_a_large_flat_cluster_is_searched_in_chunks() -> None:
    state = cluster(*(host(f"h{i}", cpu=2) for i in range(300)))
    scheduler = Scheduler()
    (answer,) = scheduler.decide(state, [ask("g1", slots("j", 1, term(598, cpu=1)))])
    assert len({*hosts_of(answer)}) == 299
    (last,) = scheduler.decide(adopt(state, [answer]), [ask("g2", slots("r", 2, term(cpu=1)))])
    assert {*hosts_of(last)}.isdisjoint(hosts_of(answer))


def test_a_wider_preference_never_overrules_where_a_required_pack_already_stands() -> None:
    state = cluster(host("a", "b0", cpu=2), host("b", "b1", cpu=2), levels=("block",))
    wanted = slots("r", 2, term(2, cpu=1))
    packs = {"pack": Pack("block"), "pack_members": (("r", Pack("block", True)),)}
    granted, refused = Scheduler().decide(state, [ask("g1", wanted, AskKind.SURPLUS, **packs)])
    assert hosts_of(granted) == ["a", "a"]
    assert isinstance(refused, Refusal)
    assert (refused.reason.code, refused.reason.domain) == (PendCode.WAITING_TOPOLOGY, "b0")
