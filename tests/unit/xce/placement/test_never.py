"""What is refused at submission, and what merely waits."""

from __future__ import annotations

from gangflow.xce.core.plan import GroupPlan, MemberKind, MemberPlan, Pack, TaskTerm, Use
from gangflow.xce.core.state import HostState, PendCode, Reason, State
from gangflow.xce.placement import Scheduler, never_fits
from tests.unit.xce.placement.worlds import cluster, host, term


def plan(
    *terms: TaskTerm, replicas: int = 1, pack: Pack | None = None, pack_slot: Pack | None = None, **more: object
) -> GroupPlan:
    member = MemberPlan(
        "engine",
        MemberKind.REPLICA_SET,
        ("run",),
        terms=terms,
        min_replicas=replicas,
        pack_slot=pack_slot,
        **more,  # type: ignore[arg-type]
    )
    return GroupPlan("g", (member,), pack=pack)


def never(state: State, wanted: GroupPlan) -> Reason | None:
    reason = never_fits(state.hosts, state.levels, wanted)
    assert Scheduler().never_fits(state, wanted) == reason
    return reason


def test_a_task_larger_than_any_host_never_fits() -> None:
    reason = never(cluster(host("a", cpu=4), host("b", cpu=8)), plan(term(cpu=12)))
    assert reason is not None
    assert reason.code is PendCode.NEVER_FITS
    assert reason.shortfall == (("cpu", 4_000),)
    assert reason.text == "engine: no host can hold a task: cpu: 12 (the largest host has 8)"


def test_a_slot_of_a_member_that_is_not_required_is_judged_too() -> None:
    """With `min_replicas: 0` it would otherwise wait for ever, for a host that cannot exist."""
    state = cluster(host("a", cpu=4), host("b", cpu=8))
    reason = never(state, plan(term(cpu=12), replicas=0))
    assert reason is not None
    assert reason.code is PendCode.NEVER_FITS
    assert reason.text == "engine: no host can hold a task: cpu: 12 (the largest host has 8)"
    assert never(state, plan(term(cpu=8), replicas=0)) is None, "how many of them fit at once is no matter here"
    unknown = never(state, plan(term(cpu=1), replicas=0, pack_slot=Pack("rack", required=True)))
    assert unknown is not None
    assert unknown.code is PendCode.MISCONFIGURED


def test_what_no_single_host_has_together_never_fits() -> None:
    reason = never(cluster(host("a", cpu=64), host("b", cpu=1, gpus=8)), plan(term(cpu=8, gpus=8_000)))
    assert reason is not None
    assert reason.code is PendCode.NEVER_FITS
    assert "cpu: 8, gpus: 8" in reason.text


def test_a_counter_that_no_host_has_never_fits() -> None:
    reason = never(cluster(host("a")), plan(TaskTerm(1, (Use("fpga", 2),))))
    assert reason is not None
    assert reason.shortfall == (("fpga", 2),)


def test_a_select_that_no_host_satisfies_never_fits() -> None:
    state = cluster(host("a", gpu_model="A100"))
    reason = never(state, plan(term(cpu=1, select="gpu_model==H100")))
    assert reason is not None
    assert reason.excluded == (("select[gpu_model==H100]", 1),)
    unknown = never(state, plan(term(cpu=1, select="colour==red")))
    assert unknown is not None
    assert "colour" in unknown.text


def test_an_order_that_no_host_can_be_measured_by_is_no_silent_wish() -> None:
    state = cluster(host("a", "s0", rank="1"), levels=("switch",))
    reason = never(state, plan(term(cpu=1, order=("-cpu", "r15s"))))
    assert reason is not None
    assert (reason.code, reason.text) == (PendCode.MISCONFIGURED, "engine: no host has r15s, which order[r15s] asks for")
    for known in ("cpu", "-mem", "gpus", "rank", "switch", "hname", "maxmem"):
        assert never(state, plan(term(cpu=1, order=(known,)))) is None


def test_a_group_that_one_required_domain_never_holds() -> None:
    state = cluster(*(host(f"h{i}", f"s{i // 2}", cpu=4) for i in range(4)), levels=("switch",))
    assert never(state, plan(term(cpu=4), replicas=2, pack=Pack("switch", True))) is None
    reason = never(state, plan(term(cpu=4), replicas=3, pack=Pack("switch", True)))
    assert reason is not None
    assert (reason.code, reason.domain, reason.shortfall) == (PendCode.NEVER_FITS, "s0", (("cpu", 4_000),))
    assert never(state, plan(term(cpu=4), replicas=3, pack=Pack("switch"))) is None
    assert never(state, plan(term(3, cpu=4), pack_slot=Pack("switch", True))) is not None


def test_a_group_larger_than_the_cluster_waits() -> None:
    assert never(cluster(host("a", cpu=4)), plan(term(cpu=4), replicas=2)) is None


def test_a_host_that_is_away_may_come_back() -> None:
    assert never(cluster(host("a", state=HostState.LOST)), plan(term(cpu=8))) is None


def test_an_unknown_level_is_misconfigured() -> None:
    reason = never(cluster(host("a"), levels=("rack",)), plan(term(cpu=1), pack=Pack("rak", True)))
    assert reason is not None
    assert reason.code is PendCode.MISCONFIGURED
    assert "rack" in reason.text


def test_without_hosts_nothing_is_certain() -> None:
    assert never(cluster(), plan(term(cpu=1))) is None
