"""Standalone claims are taken with the places, in one decision: shared ones by many, an exclusive one by the first in order."""

from __future__ import annotations

import dataclasses

from gangflow.xce.core.asks import Ask, Grant
from gangflow.xce.core.plan import Access, ClaimPlan, GroupPlan
from gangflow.xce.core.state import Claim, ClaimState, Group, GroupState, PendCode, Reason, Slot, SlotState, State
from gangflow.xce.placement import Scheduler
from tests.unit.xce.placement.worlds import ask, cluster, host, slots, term

ALONE, SHARED = Access.EXCLUSIVE, Access.SHARED


def having(cluster: State, /, *names: str, **fields: object) -> State:
    """The state with these standalone claims, READY unless a field says something else."""
    made = {name: Claim(name, "", ClaimPlan(name), ClaimState.READY) for name in names}
    claims = {name: dataclasses.replace(claim, **fields) for name, claim in made.items()}  # type: ignore[arg-type]
    return dataclasses.replace(cluster, claims={**cluster.claims, **claims})


def wants(group: str, *claims: tuple[str, Access], cpu: int = 1, **fields: object) -> Ask:
    return ask(group, slots("m", 1, term(cpu=cpu)), claims=claims, **fields)


def running(
    state: State, grant: Grant | Reason, *claims: tuple[str, Access], place: GroupState = GroupState.PREPARING
) -> State:
    """The state with a granted group in it, which uses these claims."""
    assert isinstance(grant, Grant), grant
    plan = GroupPlan(grant.group, (), claims=tuple(ClaimPlan(f"as-{n}", uses=n, access=how) for n, how in claims))
    placed = {(m, i): Slot(m, i, SlotState.PLACED, incarnation=1, tasks=tasks) for m, i, tasks in grant.slots}
    return dataclasses.replace(state, groups={**state.groups, grant.group: Group(grant.group, plan, place, slots=placed)})


def decide(state: State, *asks: Ask) -> dict[str, Grant | Reason]:
    """Group → its grant, or the reason why not."""
    answers = Scheduler().decide(state, asks)
    return {one.group: one if isinstance(one, Grant) else one.reason for one in answers}


def refused(answer: Grant | Reason) -> tuple[str, str, str]:
    assert isinstance(answer, Reason), answer
    return answer.code, answer.text, answer.blocker


ROOM = cluster(host("a"), host("b"))


def test_two_groups_and_one_exclusive_claim_in_one_session() -> None:
    """The first in order has it; the other holds nothing, and its reason names the claim and who holds it."""
    state = having(ROOM, "disk")
    answers = decide(state, wants("g2", ("disk", ALONE)), wants("g1", ("disk", ALONE)))
    assert isinstance(answers["g1"], Grant)
    code, text, blocker = refused(answers["g2"])
    assert (code, blocker) == (PendCode.WAITING_CLAIMS, "g1")
    assert text == "claim disk is held by g1 (exclusive); this group wants it exclusive"
    # The same in a later session, by the state; and when it is over, the other has it.
    later = running(state, answers["g1"], ("disk", ALONE))
    assert refused(decide(later, wants("g2", ("disk", ALONE)))["g2"])[1] == text
    assert isinstance(decide(state, wants("g2", ("disk", ALONE)))["g2"], Grant)


def test_priority_decides_who_is_first() -> None:
    answers = decide(having(ROOM, "disk"), wants("g1", ("disk", ALONE)), wants("g2", ("disk", ALONE), priority=80))
    assert isinstance(answers["g2"], Grant)
    assert refused(answers["g1"])[2] == "g2"


def test_any_number_share() -> None:
    answers = decide(having(ROOM, "data"), *(wants(f"g{n}", ("data", SHARED)) for n in range(1, 7)))
    assert all(isinstance(answer, Grant) for answer in answers.values())


def test_an_exclusive_one_waits_for_those_who_share_and_they_for_it() -> None:
    state = having(ROOM, "data")
    for n in range(1, 7):
        state = running(state, decide(state, wants(f"g{n}", ("data", SHARED)))[f"g{n}"], ("data", SHARED))
    _, text, blocker = refused(decide(state, wants("g7", ("data", ALONE)))["g7"])
    assert blocker == "g1"
    assert "held by g1 (shared), g2 (shared), g3 (shared), g4 (shared) and 2 more" in text
    alone = running(having(ROOM, "data"), decide(having(ROOM, "data"), wants("g1", ("data", ALONE)))["g1"], ("data", ALONE))
    assert refused(decide(alone, wants("g2", ("data", SHARED)))["g2"])[2] == "g1"


def test_who_is_refused_for_want_of_hosts_holds_no_claim() -> None:
    """The first in order does not fit: the second has the claim."""
    answers = decide(having(ROOM, "disk"), wants("g1", ("disk", ALONE), cpu=9), wants("g2", ("disk", ALONE)))
    assert refused(answers["g1"])[0] == PendCode.NEVER_FITS
    assert isinstance(answers["g2"], Grant)


def test_who_is_refused_for_want_of_a_claim_holds_no_hosts() -> None:
    """Two groups never wait for each other's claims: whoever waits for one holds nothing, neither a host nor another claim."""
    state = having(cluster(host("a", cpu=2)), "one", "two")
    state = running(state, decide(state, wants("g1", ("one", ALONE)))["g1"], ("one", ALONE))
    answers = decide(state, wants("g2", ("two", ALONE), ("one", ALONE)), wants("g3", ("two", ALONE)))
    assert refused(answers["g2"])[2] == "g1"
    assert isinstance(answers["g3"], Grant), "g2 holds the host, or the claim `two`"


def test_a_claim_that_is_not_ready_is_waited_for_by_name() -> None:
    """Scenario 76: one bad volume blocks nobody else."""
    state = having(having(ROOM, "good"), "bad", state=ClaimState.FAILED, message="disk full")
    answers = decide(state, wants("g1", ("bad", SHARED)), wants("g2", ("good", SHARED)), wants("g3", ("gone", SHARED)))
    assert refused(answers["g1"])[:2] == (PendCode.WAITING_CLAIMS, "claim bad is FAILED (disk full)")
    assert isinstance(answers["g2"], Grant)
    assert refused(answers["g3"])[1] == "claim gone does not exist"


def test_who_holds_is_derived_from_the_state() -> None:
    """From its placement until nothing of it is placed or live any more, whatever its own state is called."""
    state = having(ROOM, "disk")
    grant = decide(state, wants("g1", ("disk", ALONE)))["g1"]
    for place in (GroupState.SUSPENDING, GroupState.STOPPING, GroupState.PENDING, GroupState.DEGRADED):
        held = running(state, grant, ("disk", ALONE), place=place)
        assert refused(decide(held, wants("g2", ("disk", ALONE)))["g2"])[2] == "g1", place
    group = held.groups["g1"]
    empty = {key: dataclasses.replace(slot, state=SlotState.PENDING, tasks=()) for key, slot in group.slots.items()}
    for place, free in ((GroupState.PENDING, True), (GroupState.SUSPENDED, True), (GroupState.DEGRADED, False)):
        now = dataclasses.replace(held, groups={"g1": dataclasses.replace(group, state=place, slots=empty)})
        assert isinstance(decide(now, wants("g2", ("disk", ALONE)))["g2"], Grant) is free, place
