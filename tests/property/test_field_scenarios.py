"""Failures from the field, played against the whole machine with the real placement: several groups, one cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.invariants import check, check_step
from gangflow.xce.core.plan import Action, BackoffPlan, Cause, ClaimPlan, GroupPlan, Pack, RulePlan
from gangflow.xce.core.state import GroupState, HostFacts, PendCode, SlotState
from gangflow.xce.machine import Decision, handle
from gangflow.xce.placement import Scheduler
from tests.unit.xce.core.plans import hosts, job, plan, replicas
from tests.unit.xce.core.stage import Stage

G, S = GroupState, SlotState
HOST = 4_000
"""Milli-CPU of a host."""
MINUTE_MS = 60_000
AT_ONCE = BackoffPlan(0, 1_000, 0)


class Cluster(Stage):
    """A stage with XCE's own placement, and switches of two hosts each."""

    def __init__(self, facts: Iterable[HostFacts]) -> None:
        super().__init__(replace(each, path=(f"s{n // 2}",)) for n, each in enumerate(facts))
        self.feed(inp.StartTerm("test", ("switch",)))

    def feed(self, *inputs: inp.Input) -> Decision:
        before = self.state
        decision = handle(before, inputs, self.now_ms, Scheduler())
        self.state = decision.state
        self.events.extend(decision.events)
        assert not check_step(before, decision.events, self.state)
        assert not check(self.state)
        return decision

    def host_of(self, member: str, index: int = 0, group: str = "g1") -> str:
        return self.slot(member, index, group).tasks[0].host

    def held_by(self, group: str) -> int:
        """Milli-CPU that a group holds."""
        tasks = [task for slot in self.group(group).slots.values() for task in slot.tasks]
        return sum(dict(task.counters).get("cpu", 0) for task in tasks)

    def cancel(self, group: str) -> None:
        self.feed(inp.EndGroup(group, G.CANCELLED))
        self.gone()

    def reason(self, group: str) -> PendCode:
        found = self.group(group).reason
        assert found is not None
        return found.code


def gang(name: str, count: int = 2, action: Action = Action.RESTART_MEMBER, **more: Any) -> GroupPlan:
    """All of `count` replicas are required, and each fills a host; whatever fails is restarted at once."""
    rules = (RulePlan(action, backoff=AT_ONCE),)
    fields: dict[str, Any] = {"rules": rules, "recovery_timeout_ms": MINUTE_MS, **more}
    return plan(replicas("part", count, cpu=HOST), name=name, **fields)


def lose_for_good(cluster: Cluster, *names: str) -> None:
    """These hosts are dead, and fenced."""
    for name in names:
        cluster.lose(name, 5_000)
    cluster.wait(5_000)


def test_a_broken_gang_has_first_claim_on_what_it_lost() -> None:
    """Scenario 2: its host is gone and returns; a job that comes before it in order waits for any host, and does not get it."""
    cluster = Cluster(hosts(2))
    broken = cluster.run(gang("gang"))
    urgent = cluster.submit(plan(job("single", cpu=HOST), name="single", priority=90))
    lost = cluster.host_of("part", 1)
    lose_for_good(cluster, lost)
    assert cluster.group(broken).state is G.DEGRADED
    cluster.wait(30_000)
    cluster.up_host(lost, "b2")
    assert cluster.slot("part", 1).state is S.PLACED
    assert cluster.host_of("part", 1) == lost
    assert cluster.group(urgent).state is G.PENDING
    assert cluster.held_by(urgent) == 0


def test_the_first_claim_ends() -> None:
    """Scenario 2: for a bounded time. When it is over, what comes back is given in order, and that job is first."""
    cluster = Cluster(hosts(2))
    cluster.run(gang("gang"))
    urgent = cluster.submit(plan(job("single", cpu=HOST), name="single", priority=90))
    lost = cluster.host_of("part", 1)
    lose_for_good(cluster, lost)
    cluster.wait(MINUTE_MS)
    cluster.up_host(lost, "b2")
    assert cluster.group(urgent).state is G.PREPARING
    assert cluster.host_of("single", 0, urgent) == lost
    assert cluster.slot("part", 1).state is S.PENDING


def test_a_drained_host_that_is_opened_again_goes_back_to_whom_it_was_taken_from() -> None:
    """Scenario 2, as it was reported: drained, and back. The gang's place is not given away meanwhile."""
    cluster = Cluster(hosts(2))
    cluster.run(gang("gang"))
    single = cluster.submit(plan(job("single", cpu=HOST), name="single"))
    drained = cluster.host_of("part", 1)
    cluster.feed(inp.CloseHost(drained, drain=True))
    cluster.gone()
    cluster.wait(1)
    assert cluster.slot("part", 1).state is S.PENDING
    cluster.wait(30_000)
    cluster.feed(inp.OpenHost(drained))
    assert cluster.slot("part", 1).state is S.PLACED
    assert cluster.group(single).state is G.PENDING


def test_two_broken_gangs_do_not_take_each_others_places() -> None:
    """Scenario 6: each lost one place of two; what comes back is its own's, whoever is first in order."""
    cluster = Cluster(hosts(4))
    first, second = cluster.run(gang("first")), cluster.run(gang("second"))
    lost = [cluster.host_of("part", 1, group) for group in (first, second)]
    lose_for_good(cluster, *lost)
    cluster.up_host(lost[1], "b2")
    assert cluster.host_of("part", 1, second) == lost[1]
    assert not cluster.slot("part", 1, first).live
    assert cluster.slot("part", 1, first).state is S.PENDING
    cluster.up_host(lost[0], "b2")
    assert cluster.host_of("part", 1, first) == lost[0]


def test_a_gang_that_cannot_be_whole_again_gives_back_what_it_kept() -> None:
    """Scenario 6: both start again as a whole, each with one of its two places. Neither ever gets the other's: in the end
    the first has both and the second holds nothing."""
    cluster = Cluster(hosts(4))
    action = Action.RESTART_GROUP
    first, second = cluster.run(gang("first", action=action)), cluster.run(gang("second", action=action))
    lose_for_good(cluster, *(cluster.host_of("part", 1, group) for group in (first, second)))
    cluster.gone()
    for group in (first, second):
        assert cluster.group(group).state is G.RESTARTING
        assert cluster.held_by(group) <= 2 * HOST
    submitted = cluster.group(second).submitted_ms
    cluster.wait(MINUTE_MS)
    assert cluster.group(first).state is G.PREPARING
    assert cluster.held_by(first) == 2 * HOST
    assert cluster.group(second).state is G.PENDING
    assert cluster.held_by(second) == 0
    assert cluster.group(second).submitted_ms == submitted
    cluster.bring_up()
    assert cluster.group(first).state is G.RUNNING


def test_usage_is_what_is_held_however_often_members_that_had_succeeded_ran_again() -> None:
    """Scenario 18: three epochs, in each of which one of two jobs finishes, and a controller that starts between them. What
    the others may have is each time what is left of what runs, neither less nor more."""
    cluster = Cluster(hosts(1))
    members = (job("one"), job("two"), replicas("service", 1))
    rules = (RulePlan(Action.RESTART_GROUP, "service", backoff=AT_ONCE),)
    work = cluster.run(plan(*members, name="work", rules=rules))
    for epoch in (1, 2, 3):
        assert cluster.group(work).epoch == epoch
        assert cluster.held_by(work) == 3_000
        large = cluster.submit(plan(job("large", cpu=1_500), name=f"large-{epoch}"))
        assert cluster.group(large).state is G.PENDING, "as much is not left"
        cluster.exit("one", code=0, group=work)
        assert cluster.slot("one", 0, work).state is S.DONE
        assert cluster.held_by(work) == 2_000
        assert cluster.group(large).state is G.PREPARING, "what finished is free"
        larger = cluster.submit(plan(job("larger", cpu=501), name=f"larger-{epoch}"))
        assert cluster.group(larger).state is G.PENDING, "3,500 of 4,000 are in use"
        for group in (large, larger):
            cluster.cancel(group)
        cluster.feed(inp.StartTerm("test", ("switch",)))
        cluster.exit("service", group=work)
        cluster.gone()
        cluster.bring_up()
        assert cluster.group(work).state is G.RUNNING
    cluster.cancel(work)
    assert cluster.submit(plan(job("all", cpu=HOST), name="all"))
    assert sum(cluster.held_by(group) for group in cluster.state.groups) == HOST


@pytest.mark.parametrize("priority", [50, 90])
def test_whoever_waits_holds_up_nobody_who_could_start(priority: int) -> None:
    """Scenario 29: many groups wait, for room, for a claim, or for the end of a backoff. One that fits starts in the batch of
    its submission, urgent or not, and everything of it in the next ones."""
    cluster = Cluster(hosts(2))
    cluster.run(plan(job("hold", cpu=HOST), name="hold"))
    cluster.feed(inp.CreateClaim(ClaimPlan("data")))
    large = [cluster.submit(gang(f"large-{n}")) for n in range(40)]
    claims = (ClaimPlan("data", uses="data"),)
    unclaimed = [cluster.submit(plan(job(), name=f"unclaimed-{n}", claims=claims)) for n in range(20)]
    refused = cluster.submit(plan(job("refused", cpu=HOST), name="refused"))
    task = cluster.key(cluster.slot("refused", 0, refused), 0, refused)
    cluster.feed(inp.TaskRefused(task, cluster.host_of("refused", 0, refused), "a port is taken"))
    assert {cluster.reason(group) for group in unclaimed} == {PendCode.WAITING_CLAIMS}
    assert cluster.reason(refused) is PendCode.BACKOFF
    waiting = [*large, *unclaimed, refused]
    assert {cluster.group(group).state for group in waiting} == {G.PENDING}

    fits = cluster.submit(plan(job("fits", tasks=4), name="fits", priority=priority))
    assert cluster.group(fits).state is G.PREPARING
    cluster.prepare("fits")
    assert cluster.group(fits).state is G.STARTING
    cluster.start("fits")
    assert cluster.group(fits).state is G.RUNNING
    assert [group for group in waiting if cluster.held_by(group)] == []


def test_no_place_in_the_domain_is_waited_for_with_the_budget_untouched() -> None:
    """Scenario 69: a replacement that may stand on the lost host's switch only is not put back where it was lost, and not
    tried again and again: it waits, for as long as it takes, and its one restart is still paid only once."""
    cluster = Cluster(hosts(4))
    rules = (
        RulePlan(Action.RESTART_MEMBER, max_restarts=1, window_ms=10 * MINUTE_MS, backoff=AT_ONCE, count_machine_losses=True),
    )
    packed = cluster.run(gang("packed", rules=rules, pack=Pack("switch", required=True)))
    lost = cluster.host_of("part", 1)
    lose_for_good(cluster, lost)
    spent = cluster.group(packed).budgets
    assert len(spent) == 1
    before = len(cluster.events)
    for _ in range(120):
        cluster.wait(MINUTE_MS)
        slot = cluster.slot("part", 1)
        assert (slot.state, slot.incarnation) == (S.PENDING, 1)
        assert slot.reason is not None
        assert slot.reason.code in (PendCode.WAITING_TOPOLOGY, PendCode.WAITING_CAPACITY)
    assert cluster.group(packed).state is G.DEGRADED
    assert cluster.group(packed).budgets == spent
    assert len(cluster.events) - before <= 4, "and nobody is told again and again, either"
    cluster.up_host(lost, "b2")
    slot = cluster.slot("part", 1)
    assert (slot.state, slot.incarnation, slot.tasks[0].host) == (S.PLACED, 2, lost)


def test_a_drained_host_does_not_get_back_what_was_drained_from_it() -> None:
    """Scenario 69: the replacement never stands on the host that it replaces, until an operator opens it."""
    cluster = Cluster(hosts(4))
    cluster.run(gang("packed", pack=Pack("switch", required=True)))
    drained = cluster.host_of("part", 1)
    cluster.feed(inp.CloseHost(drained, drain=True, message="a new board"))
    cluster.gone()
    for _ in range(10):
        cluster.wait(MINUTE_MS)
        assert (cluster.slot("part", 1).state, cluster.slot("part", 1).incarnation) == (S.PENDING, 1)
    cluster.feed(inp.OpenHost(drained))
    assert cluster.host_of("part", 1) == drained


def test_a_node_in_trouble_is_lost_though_its_processes_do_not_end() -> None:
    """Scenario 43: nothing exits; the verdict on the node is the failure. Elsewhere it starts after the fence, so often as its
    rule says, and what still runs on the node is stopped when it answers."""
    cluster = Cluster(hosts(3))
    rules = (
        RulePlan(Action.RESTART_MEMBER, causes=(Cause.HOST_LOST,), max_restarts=1, count_machine_losses=True, backoff=AT_ONCE),
    )
    group = cluster.run(plan(job("train", cpu=HOST, tasks=1), name="train", rules=rules))
    old = cluster.key(cluster.slot("train"))
    first = cluster.host_of("train")
    cluster.lose(first, 5_000)
    assert cluster.slot("train").state is S.LOST
    assert cluster.held_by(group) == HOST, "it may still run there"
    cluster.wait(5_000)
    assert (cluster.slot("train").state, cluster.slot("train").incarnation) == (S.PLACED, 2)
    assert cluster.host_of("train") != first
    cluster.up_host(first, "b1", [old])
    assert cluster.state.hosts[first].superseded == (old,)
    cluster.bring_up()
    cluster.lose(cluster.host_of("train"), 5_000)
    assert cluster.group(group).state is G.STOPPING
    cluster.wait(5_000)
    assert (cluster.group(group).state, cluster.group(group).cause) == (G.FAILED, "host_lost")
