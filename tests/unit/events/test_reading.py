"""Typed events: every record of the core has one (or is left out on purpose), and nothing that a server says is an error."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangflow import events
from gangflow.events.base import Event
from gangflow.events.reading import LEFT_OUT, READERS, read
from gangflow.xce.codec import EVENTS
from gangflow.xce.core import events as ev
from gangflow.xce.core.plan import Cause, ClaimPlan
from gangflow.xce.core.state import Change, ChangeState, Claim, ClaimState, Exit, GroupState, PendCode, Reason, SlotState, Task
from gangflow.xce.rest.event_views import event_view, group_of
from gangflow.xce.rest.messages import EventView

CLASSES = [kind for _, kind in inspect.getmembers(events, inspect.isclass) if issubclass(kind, Event)]


def typed(event: ev.Event, seq: int = 7) -> Event | None:
    """As a reader of the stream gets it: over JSON."""
    view = event_view(seq, 1_000, event)
    assert view is not None
    return read(EventView.model_validate_json(view.model_dump_json()))


def test_every_record_has_an_event_or_is_left_out_on_purpose() -> None:
    assert set(READERS) | set(LEFT_OUT) == set(EVENTS)
    assert not set(READERS) & set(LEFT_OUT)
    assert all(len(why) > 20 for why in LEFT_OUT.values())


@pytest.mark.parametrize("name", sorted(READERS))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_the_core_says_is_read(name: str, data: st.DataObject) -> None:
    """Any value of the core's own type: a field that is renamed there, or a new shape, is seen here."""
    event = data.draw(st.from_type(EVENTS[name]))
    made = typed(event)
    if isinstance(event, ev.SlotWarned) and event.left:
        assert made is None, "it is only owed so far"
        return
    assert made is not None
    assert not isinstance(made, events.Unknown), made
    assert (made.seq, made.at_ms, made.group) == (7, 1_000, group_of(event))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_events_are_frozen_documented_and_public(kind: type[Event]) -> None:
    assert kind.__name__ in events.__all__
    assert kind.__doc__
    assert not kind.__doc__.startswith(f"{kind.__name__}("), "the generated one says nothing"
    assert dataclasses.fields(kind)
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


G, S = GroupState, SlotState
EXIT = Exit(Cause.OOM, 3, 900, signal=9, message="killed", stderr_tail="Killed")
READINGS: list[tuple[ev.Event, type[Event], dict[str, Any]]] = [
    (ev.GroupChanged("g1", G.STARTING, G.RUNNING), events.GroupRunning, {"before": "STARTING"}),
    (ev.GroupChanged("g1", G.RUNNING, G.STOPPING, "user", goal=G.CANCELLED), events.GroupStopping, {"goal": "CANCELLED"}),
    (ev.GroupChanged("g1", G.STOPPING, G.FAILED, "app_exit", "code 1"), events.GroupEnded, {"state": "FAILED"}),
    (ev.GroupChanged("g1", G.SUSPENDING, G.SUSPENDED), events.GroupSuspended, {}),
    (ev.BarrierReleased("g1", 2, 0), events.GroupStarted, {"epoch": 2}),
    (ev.SlotPlaced("g1", "r", 1, 3, 1, (Task(0, "h0"), Task(1, "h0"))), events.SlotPlaced, {"hosts": ("h0",), "slot": 1}),
    (ev.SlotChanged("g1", "r", 1, 3, S.RUNNING, S.READY), events.SlotReady, {"name": "r[1]", "incarnation": 3}),
    (ev.SlotChanged("g1", "r", 1, 3, S.READY, S.STOPPING, exit=EXIT), events.SlotStopping, {"cause": "oom"}),
    (ev.SlotExited("g1", "r", 1, 3, S.READY, S.EXIT, EXIT), events.SlotFailed, {"cause": "oom", "stderr_tail": "Killed"}),
    (ev.SlotExited("g1", "a", 0, 1, S.READY, S.DONE, Exit(None, 1, 9, 0)), events.SlotDone, {"code": 0}),
    (ev.SlotExited("g1", "a", 0, 1, S.STOPPING, S.EXIT, Exit(None, 1, 9)), events.SlotStopped, {}),
    (ev.ReasonNoted("g1", Reason(PendCode.WAITING_CAPACITY, "1 GPU", blocker="g2")), events.Waiting, {"blocker": "g2"}),
    (ev.ReasonNoted("g1", None, "r", 1), events.Waiting, {"code": "", "member": "r", "slot": 1}),
    (ev.FloorCrossed("g1", "r", 0), events.FloorCrossed, {"below": False}),
    (ev.MemberStopped("g1", "r", stopped=False), events.MemberReturned, {"member": "r"}),
    (
        ev.ChangeMoved("g1", Change("c1", ChangeState.FAILED, (("r", 4),), message="superseded by c2")),
        events.ChangeFailed,
        {"change": "c1", "targets": {"r": 4}, "message": "superseded by c2"},
    ),
    (
        ev.ClaimChanged(Claim("data", "", ClaimPlan("data"), ClaimState.LOST, message="empty")),
        events.ClaimLost,
        {"claim": "data", "name": "data", "group": "", "message": "empty"},
    ),
]


@pytest.mark.parametrize(("event", "kind", "fields"), READINGS, ids=lambda value: getattr(value, "__name__", ""))
def test_what_an_event_says(event: ev.Event, kind: type[Event], fields: dict[str, Any]) -> None:
    made = typed(event)
    assert type(made) is kind
    assert {name: getattr(made, name) for name in fields} == fields


def test_the_time_is_a_time() -> None:
    made = typed(ev.GroupForgotten("g1"))
    assert made is not None
    assert made.at.isoformat() == "1970-01-01T00:00:01+00:00"


@pytest.mark.parametrize(
    "view",
    [
        EventView(seq=3, at_ms=1, type="GroupTeleported", group="g1", data={"where": "moon"}),
        EventView(seq=3, at_ms=1, type="SlotChanged", group="g1", data={"slot": "a[0]"}),
        EventView(seq=3, at_ms=1, type="SlotPlaced", group="g1", data={"member": "a", "index": 0, "tasks": 7, "epoch": 1}),
        EventView(seq=3, at_ms=1, type="ClaimChanged", group="g1", data={"claim": None}),
    ],
)
def test_what_a_newer_server_says_is_unknown_and_no_error(view: EventView) -> None:
    made = read(view)
    assert isinstance(made, events.Unknown)
    assert (made.seq, made.type, made.data, made.group) == (3, view.type, view.data, "g1")
    assert hash(made)


def test_what_is_left_out_is_skipped() -> None:
    assert read(EventView(seq=3, at_ms=1, type="TaskSuperseded", group="g1", data={})) is None
