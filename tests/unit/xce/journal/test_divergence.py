"""Where two things differ, field by field; and what an event is about, for every kind of event."""

from __future__ import annotations

import pytest

from gangflow.xce.codec import EVENTS
from gangflow.xce.core.state import GroupState, SlotState
from gangflow.xce.journal.divergence import ABSENT, Difference, about, compare, differences
from tests.unit.xce.journal.filled import filled

CLUSTERS = {"TermStarted", "AnswersForgotten", "OfferLeft"}


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_every_event_is_about_something(name: str) -> None:
    event = filled(EVENTS[name])
    subject = about(event)
    assert (subject == "the cluster") is (name in CLUSTERS)
    for field in ("group", "host"):
        if hasattr(event, field) and not hasattr(event, "task"):
            assert getattr(event, field) in subject
            break


def test_what_an_event_is_about_is_written_as_people_name_it() -> None:
    from gangflow.xce.core import events as ev
    from gangflow.xce.core.state import TaskKey, TaskPhase

    key = TaskKey("g1", 1, "rollout", 2, 3, 0)
    assert about(ev.TaskMoved(key, "h0", TaskPhase.READY)) == "slot g1.rollout[2]"
    assert about(ev.SlotChanged("g1", "actor", 0, 1, SlotState.RUNNING, SlotState.READY)) == "slot g1.actor[0]"
    assert about(ev.MemberStopped("g1", "ref")) == "member g1.ref"
    assert about(ev.GroupChanged("g2", GroupState.PENDING, GroupState.PREPARING)) == "group g2"
    assert about(ev.ClaimForgotten("data")) == "claim data"


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_equal_events_do_not_differ_and_each_field_can(name: str) -> None:
    import dataclasses

    one, two = filled(EVENTS[name]), filled(EVENTS[name])
    assert compare(one, one) == ()
    told = {each.path.split(".")[0].split("[")[0].split(" ")[0] for each in compare(one, two)}
    unequal = {field.name for field in dataclasses.fields(one) if getattr(one, field.name) != getattr(two, field.name)}
    assert told == unequal


@pytest.mark.parametrize(
    ("recorded", "replayed", "expected"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1, "b": {"c": [1, 2]}}, {"a": 1, "b": {"c": [1, 3]}}, [("b.c[1]", 2, 3)]),
        ({"a": 1}, {}, [("a", 1, ABSENT)]),
        ({}, {"a": None}, [("a", ABSENT, None)]),
        ([1], [1, 2], [("[1]", ABSENT, 2)]),
        ({"a": [1]}, {"a": {"x": 1}}, [("a", [1], {"x": 1})]),
        ({"a": 1}, {"a": True}, [("a", 1, True)]),
        ({("rollout", 2): {"state": "READY"}}, {("rollout", 2): {"state": "LOST"}}, [("rollout[2].state", "READY", "LOST")]),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}, [("a (its order)", ["x", "y"], ["y", "x"])]),
    ],
)
def test_differences_go_as_deep_as_they_can(recorded: object, replayed: object, expected: list[tuple[object, ...]]) -> None:
    assert list(differences(recorded, replayed)) == [Difference(*each) for each in expected]  # type: ignore[arg-type]
