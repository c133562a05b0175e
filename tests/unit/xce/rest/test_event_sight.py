"""The event stream of several owners: each gets what is about his own groups and members, and nothing of the others'."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangflow.xce.core import events as ev
from gangflow.xce.core.events import Event
from gangflow.xce.core.plan import Action, Cause, ClaimPlan
from gangflow.xce.core.state import (
    Blame,
    BudgetUse,
    Change,
    ChangeState,
    Claim,
    ClaimState,
    Group,
    GroupState,
    HostState,
    PendCode,
    Reason,
    SlotState,
    State,
    TaskKey,
    TaskPhase,
)
from gangflow.xce.rest.event_sight import Watching
from gangflow.xce.rest.messages import EventView
from gangflow.xce.rest.tokens import ADMIN, Principal, Role
from tests.unit.xce.rest.fake import ended, host, task
from tests.unit.xce.rest.owned import ACTOR, owned

STATE = owned()
ALICE, BOB, CAROL = (Principal(Role.OWNER, owner=name) for name in ("alice", "bob", "carol"))
TASK = Principal(Role.TASK, ACTOR)
ROLLOUT = TaskKey("g1", 1, "rollout", 0, 3, 0)
BEHIND = Reason(PendCode.WAITING_CAPACITY, "behind g1, on h0", (("cpu", 1),), "s0", "g1")


def seen(who: Principal, *events: Event, state: State = STATE, group: str = "") -> list[EventView]:
    watching = Watching(who, group, lambda: state)
    views = (watching.view(seq, 1, event) for seq, event in enumerate(events))
    return [view for view in views if view is not None]


def made(name: str, owner: str) -> Claim:
    return Claim(name, "", ClaimPlan(name), ClaimState.READY, owner=owner)


ABOUT_ROLLOUT: list[Event] = [
    ev.SlotPlaced("g1", "rollout", 0, 3, 1, (task("h1"),)),
    ev.SlotChanged("g1", "rollout", 0, 3, SlotState.RUNNING, SlotState.READY),
    ev.SlotExited("g1", "rollout", 0, 3, SlotState.READY, SlotState.EXIT, ended()),
    ev.SlotHeld("g1", "rollout", 1, (task("h1"),)),
    ev.SlotWarned("g1", "rollout", 0, 3),
    ev.TaskMoved(ROLLOUT, "h1", TaskPhase.READY),
    ev.TaskSuperseded("h1", ROLLOUT),
    ev.SupersededGone("h1", ROLLOUT),
    ev.FloorCrossed("g1", "rollout", 5),
    ev.MemberStopped("g1", "rollout"),
    ev.FailureJudged("g1", "rollout", 0, 3, Cause.HUNG, 0, Action.RESTART_MEMBER),
    ev.ReasonNoted("g1", BEHIND, "rollout", 1),
    ev.ClaimChanged(STATE.claims["g1/rollout[0]/cache"]),
]
ABOUT_ACTOR: list[Event] = [
    ev.SlotPlaced("g1", "actor", 0, 1, 1, (task("h0"),)),
    ev.TaskMoved(ACTOR, "h0", TaskPhase.READY),
    ev.TaskSuperseded("h0", ACTOR),
    ev.SupersededGone("h0", ACTOR),
    ev.FloorCrossed("g1", "actor", 5),
    ev.MemberStopped("g1", "actor"),
    ev.FailureJudged("g1", "actor", 0, 1, Cause.HUNG, 0, Action.RESTART_MEMBER),
    ev.ReasonNoted("g1", BEHIND, "actor", 0),
    ev.ClaimChanged(STATE.claims["g1/ckpt"]),
    ev.BudgetSpent("g1", BudgetUse(0, "actor", 0)),
    ev.HostExcluded("g1", "h1"),
    ev.HostReadmitted("g1", "h1"),
    ev.HostBlamed("g1", Blame("h1")),
    ev.CoordinatorStarted("g1", 2),
    ev.ValueWritten("g1", "weights/head", "1", 1),
]
CHANGE = Change("c2", ChangeState.ACCEPTED, (("actor", 1), ("rollout", 3)), (("actor", 1), ("rollout", 2)), (("actor", 7),))
ABOUT_ALL: list[Event] = [
    ev.GroupSubmitted("g1", STATE.groups["g1"].plan),
    ev.GroupPlaced("g1", 5),
    ev.BarrierReleased("g1", 1, 5),
    ev.TryVoided("g1", 1, "host_lost", "actor[0] on h0 was refused", 5),
    ev.GroupChanged("g1", GroupState.RUNNING, GroupState.STOPPING, "app_exit", "actor[0] said so"),
    ev.ReasonNoted("g1", BEHIND),
    ev.TargetsSet("g1", CHANGE.targets, (("actor", 7), ("rollout", 2))),
    ev.ChangeMoved("g1", CHANGE),
    ev.GroupForgotten("g1"),
]
CLUSTER: list[Event] = [
    ev.TermStarted("test", 2),
    ev.HostRegistered(host("h9").facts, "boot"),
    ev.HostChanged("h9", HostState.LOST),
    ev.HostOperated("h9", HostState.CLOSED, "broken"),
]


def test_a_groups_owner_sees_all_of_it() -> None:
    every = [*ABOUT_ROLLOUT, *ABOUT_ACTOR, *ABOUT_ALL]
    for who in (ALICE, TASK, ADMIN):
        assert len(seen(who, *every)) == len(every)


def test_a_members_owner_sees_his_member_and_what_becomes_of_the_group() -> None:
    assert len(seen(BOB, *ABOUT_ROLLOUT)) == len(ABOUT_ROLLOUT)
    assert seen(BOB, *ABOUT_ACTOR) == []
    views = seen(BOB, *ABOUT_ALL)
    assert len(views) == len(ABOUT_ALL)
    assert "actor" not in "".join(view.model_dump_json() for view in views)
    assert [view.data["targets"] for view in views if view.type == "TargetsSet"] == [[["rollout", 3]]]


def test_strangers_see_nothing() -> None:
    stranger = Principal(Role.TASK, replace(ACTOR, group="g2"))
    for who in (CAROL, stranger):
        assert seen(who, *ABOUT_ROLLOUT, *ABOUT_ACTOR, *ABOUT_ALL) == []


def test_the_cluster_is_every_owners_and_no_tasks() -> None:
    for who in (ALICE, BOB, CAROL):
        assert len(seen(who, *CLUSTER)) == len(CLUSTER)
        assert seen(who, ev.StraysSeen("h9", ("g1/1/actor/0/1/0",))) == []
    assert seen(TASK, *CLUSTER) == []
    assert seen(ALICE, *CLUSTER, group="g1") == []


def test_who_is_in_the_way_is_not_named() -> None:
    view = seen(CAROL, ev.ReasonNoted("g2", BEHIND))[0]
    assert (view.data["reason"]["blocker"], view.data["reason"]["text"]) == ("", "behind another group, on h0")
    assert seen(ADMIN, ev.ReasonNoted("g2", BEHIND))[0].data["reason"]["blocker"] == "g1"


def test_a_group_is_its_owners_to_the_last_record_and_beyond() -> None:
    """What was forgotten meanwhile is known by its own first record, or else to nobody but the admin and its tasks."""
    gone = replace(STATE, groups={})
    story = [ev.GroupSubmitted("g1", STATE.groups["g1"].plan), ev.GroupPlaced("g1", 5), ev.GroupForgotten("g1")]
    assert [view.type for view in seen(ALICE, *story, state=gone)] == ["GroupSubmitted", "GroupPlaced", "GroupForgotten"]
    assert seen(CAROL, *story, state=gone) == []
    assert seen(ALICE, *story[1:], state=gone) == []
    assert len(seen(TASK, *story[1:], state=gone)) == len(seen(ADMIN, *story[1:], state=gone)) == 2


def test_a_live_watcher_sees_how_his_group_is_forgotten() -> None:
    states = [STATE, replace(STATE, groups={})]
    watching = Watching(ALICE, "", lambda: states[0])
    assert watching.view(1, 1, ev.GroupPlaced("g1", 5)) is not None
    states.pop(0)
    assert watching.view(2, 1, ev.GroupForgotten("g1")) is not None


def test_standalone_claims_are_their_owners() -> None:
    story: list[Event] = [
        ev.ClaimChanged(made("data", "alice")), ev.ClaimForgotten("data"), ev.ClaimChanged(made("data", "carol")),
        ev.ClaimForgotten("data"),
    ]  # fmt: skip
    assert [view.seq for view in seen(ALICE, *story)] == [0, 1]
    assert [view.seq for view in seen(CAROL, *story)] == [2, 3]
    assert [view.seq for view in seen(ADMIN, *story)] == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", Event.__args__)
def test_every_kind_of_record_was_thought_of(kind: type) -> None:
    """One that is new is hidden from whom a group belongs to in part, until somebody says what he may see of it."""
    hidden = (ev.CommandAnswered, ev.AnswersForgotten, ev.StraysSeen, ev.ClaimForgotten, ev.OfferLeft)
    known = {type(event) for event in (*ABOUT_ROLLOUT, *ABOUT_ACTOR, *ABOUT_ALL, *CLUSTER)}
    assert kind in known or kind in hidden


def test_a_group_that_is_not_in_the_state_yet_is_known_by_its_first_record() -> None:
    """The state that is shown may be behind the record, or ahead of it."""
    fresh = Group("g9", STATE.groups["g2"].plan)
    assert len(seen(CAROL, ev.GroupSubmitted("g9", fresh.plan))) == 1
    assert seen(ALICE, ev.GroupSubmitted("g9", fresh.plan)) == []
