from __future__ import annotations

from gangflow.xce.core.events import (
    ClaimChanged,
    CommandAnswered,
    GroupSubmitted,
    HostRegistered,
    SlotPlaced,
    TaskMoved,
    ValueWritten,
)
from gangflow.xce.core.state import Answer, TaskKey, TaskPhase
from gangflow.xce.rest.event_views import event_view, group_of
from tests.unit.xce.rest.fake import PLAN, host, state_of, task

KEY = TaskKey("g1", 1, "actor", 0, 1, 0)


def test_records_say_which_group_they_are_about() -> None:
    assert group_of(TaskMoved(KEY, "h0", TaskPhase.READY)) == "g1"
    assert group_of(ClaimChanged(state_of().claims["c1"])) == "g1"
    assert group_of(ValueWritten("g1", "a", "1", 1)) == "g1"
    assert group_of(HostRegistered(host("h0").facts, "boot")) == ""


def test_no_event_shows_a_secret() -> None:
    events = [
        GroupSubmitted("g1", PLAN),
        SlotPlaced("g1", "actor", 0, 1, 1, (task("h0"),)),
        TaskMoved(KEY, "h0", TaskPhase.PREPARED, token="secret-boot"),
        HostRegistered(host("h0").facts, "secret-boot"),
        ClaimChanged(state_of().claims["c1"]),
    ]
    for event in events:
        view = event_view(1, 2, event)
        assert view is not None
        assert "secret-boot" not in view.model_dump_json()
        assert "hunter2" not in view.model_dump_json()


def test_what_is_left_is_whole() -> None:
    view = event_view(7, 8, SlotPlaced("g1", "actor", 0, 1, 1, (task("h0"),)))
    assert view is not None
    assert (view.seq, view.at_ms, view.type, view.group) == (7, 8, "SlotPlaced", "g1")
    assert view.data["tasks"][0]["ports"] == [["http", 20_000]]
    assert view.data["incarnation"] == 1


def test_idempotency_keys_are_not_shown() -> None:
    assert event_view(1, 2, CommandAnswered("key", Answer("digest", 1, 200, "{}"))) is None
