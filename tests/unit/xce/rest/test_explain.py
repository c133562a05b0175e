from __future__ import annotations

from dataclasses import replace

import pytest

from gangflow.xce.core.plan import TaskTerm, Use
from gangflow.xce.core.state import Group, HostState, Slot, State
from gangflow.xce.rest.explain import why_view
from tests.unit.xce.rest.fake import ACTOR, PLAN, ROLLOUT, host, pending, running, state_of


def waiting(*uses: Use) -> Group:
    plan = replace(PLAN, members=(replace(ACTOR, terms=(TaskTerm(uses=uses),)),))
    group = replace(pending("g2", "big"), plan=plan)
    return replace(group, slots={key: slot for key, slot in group.slots.items() if key[0] == "actor"})


def cluster(*groups: Group) -> State:
    state = state_of(running(), *groups)
    return replace(state, hosts={**state.hosts, "h2": host("h2", state=HostState.CLOSED), "h3": host("h3")})


def test_level_1_says_code_shortfall_and_blocker() -> None:
    """Scenario 9: what is missing is said, in all resources, and who is in the way."""
    group = waiting(Use("cpu", 4_000))
    view = why_view(cluster(group), group, 5, 1)
    assert view.position == 1
    assert view.hosts == ()
    assert view.lines == (
        " WAITING_CAPACITY: 8 CPU short;",
        "  missing in s0: cpu 8;",
        "  blocked by: g1;",
        "  ruled out, select: 1 host;",
        " Place in the queue: 1;",
    )


def test_level_0_counts_hosts() -> None:
    group = waiting(Use("cpu", 3_500))
    lines = why_view(cluster(group), group, 5, 0).lines
    assert " Not enough cpu: a task needs 3.5, 3 free: 2 hosts;" in lines
    assert " Closed by administrator: 1 host;" in lines


def test_level_2_names_candidate_hosts_and_3_all() -> None:
    group = replace(waiting(Use("cpu", 3_500)), excluded=("h3",))
    two = why_view(cluster(group), group, 5, 2)
    assert {(reason.host, reason.candidate) for reason in two.hosts} == {("h0", True), ("h1", True)}
    assert " Candidate host pending reasons (2 of 4 hosts):" in two.lines
    three = why_view(cluster(group), group, 5, 3)
    assert {reason.host for reason in three.hosts} == {"h0", "h1", "h2", "h3"}
    assert "  Excluded for this group after failures: h3;" in three.lines


def test_what_no_host_ever_has_makes_no_candidate() -> None:
    group = waiting(Use("gpus", 3_000), Use("licence", 1))
    view = why_view(cluster(group), group, 5, 3)
    assert not any(reason.candidate for reason in view.hosts)
    assert "Never enough gpus: a task needs 3 of 2" in {reason.text for reason in view.hosts}


def test_shares_of_devices_do_not_add_up() -> None:
    """One GPU is half used and the other whole: a task that needs one more than is whole has no place, though the sum fits."""
    group = waiting(Use("gpus", 1_000))
    texts = {reason.host: reason.text for reason in why_view(state_of(running(), group), group, 5, 3).hosts}
    assert texts["h0"] == "Room for the task of actor; not for all that must start together"
    full = running()
    task = replace(full.slots["actor", 0].tasks[0], gpus=((0, 500), (1, 400)))
    full = replace(full, slots={**full.slots, ("actor", 0): replace(full.slots["actor", 0], tasks=(task,))})
    texts = {reason.host: reason.text for reason in why_view(state_of(full, group), group, 5, 3).hosts}
    assert texts["h0"] == "Not enough gpus: no device has a large enough share free"


def test_a_slot_of_a_running_group_waits_for_its_own_reason() -> None:
    group = running()
    view = why_view(state_of(group), group, 5, 1)
    assert [slot.index for slot in view.slots] == [1]
    assert view.lines[0] == " rollout[1]: WAITING_CAPACITY: 1 GPU short;"


def test_a_group_that_does_not_wait_says_so() -> None:
    group = running()
    slots = {key: slot for key, slot in group.slots.items() if slot.tasks}
    view = why_view(state_of(), replace(group, slots=slots), 5, 3)
    assert view.lines == (" Group g1 does not wait; it is RUNNING;",)


def test_a_select_expression_rules_hosts_out() -> None:
    group = waiting(Use("cpu", 1_000))
    member = replace(ACTOR, terms=(TaskTerm(uses=(Use("cpu", 1_000),), select="gpu_model==h100"),))
    group = replace(group, plan=replace(group.plan, members=(member,)))
    state = state_of(running(), group)
    facts = replace(state.hosts["h1"].facts, attributes=(("gpu_model", "h100"),))
    state = replace(state, hosts={**state.hosts, "h1": replace(state.hosts["h1"], facts=facts)})
    candidates = {reason.host: reason.candidate for reason in why_view(state, group, 5, 3).hosts}
    assert candidates == {"h0": False, "h1": True}


def several(count: int, *uses: Use, tasks: int = 1) -> Group:
    """A group that waits with so many replicas of one shape, all of them required."""
    term = TaskTerm(count=tasks, uses=uses)
    member = replace(ROLLOUT, terms=(term,), replicas=count, min_replicas=count, max_replicas=count)
    group = pending("g2", "big")
    return replace(
        group,
        plan=replace(group.plan, members=(member,)),
        slots={("rollout", index): Slot("rollout", index) for index in range(count)},
        targets=(("rollout", count),),
        extents=(("rollout", count),),
    )


@pytest.mark.parametrize("level", range(4))
def test_who_is_larger_than_the_cluster_waits_for_nobody(level: int) -> None:
    """Five slots of one and a half CPU: two hosts of four hold four of them, whatever runs or does not. No sum shows that."""
    group = several(5, Use("cpu", 1_500))
    view = why_view(state_of(running(), group), group, 5, level)
    assert view.too_large == "hosts: 1 missing in the cluster; no host that this cluster knows could change that"
    assert view.reason is not None
    assert view.reason.blocker == ""
    assert f"  larger than the cluster is now, with nothing else running: {view.too_large};" in view.lines
    assert not [line for line in view.lines if "blocked by" in line]


def test_hosts_that_are_away_are_what_it_waits_for() -> None:
    group = several(5, Use("cpu", 1_500))
    assert why_view(cluster(group), group, 5, 1).too_large == ""
    state = cluster(group)
    state = replace(state, hosts={**state.hosts, "h3": host("h3", state=HostState.LOST)})
    assert why_view(state, group, 5, 1).too_large.endswith("it would fit if every host were up, open and not excluded")
    banned = replace(group, excluded=("h3",))
    assert "not excluded" in why_view(cluster(banned), banned, 5, 1).too_large


def test_who_would_fit_alone_waits_for_whoever_is_there() -> None:
    group = several(4, Use("cpu", 2_000))
    view = why_view(state_of(running(), group), group, 5, 1)
    assert (view.too_large, view.reason.blocker if view.reason else "") == ("", "g1")


def test_hosts_count_the_tasks_that_they_have_room_for() -> None:
    """Of all that must start together, not of one: h0 and h1 have 3 of their 4 CPU free."""
    group = several(3, Use("cpu", 1_000), tasks=2)
    texts = {reason.host: reason.text for reason in why_view(state_of(running(), group), group, 5, 2).hosts}
    assert texts == dict.fromkeys(("h0", "h1"), "Room for 3 of the 6 tasks of rollout that must start together")
    half = several(5, Use("gpus", 500))
    texts = {reason.host: reason.text for reason in why_view(state_of(running(), half), half, 5, 2).hosts}
    assert texts["h0"] == "Room for 3 of the 5 tasks of rollout that must start together"
    two = several(1, Use("gpus", 2_000))
    empty = why_view(state_of(two), two, 5, 2)
    assert {reason.text for reason in empty.hosts} == {"Room for the task of rollout; not for all that must start together"}


def test_a_slot_of_a_running_group_is_judged_by_itself() -> None:
    group = running()
    texts = {reason.text for reason in why_view(state_of(group), group, 5, 2).hosts}
    assert texts == {"Room for rollout[1]; its turn has not come, or a packing keeps it off"}
