"""What XCE says → observations."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gangflow.coordinators import watch
from gangflow.coordinators.rl_messages import BeatMissing, BeatSeen, BeatsUnknown, GroupSeen, SlotSeen, TrainerFailed
from gangflow.specs.coordinator import RLCoordinator
from gangflow.xce.core.state import SlotState
from gangflow.xce.rest.messages import BeatList, BeatView, EventView
from gangflow.xce.rest.views import group_view
from tests.unit.xce.rest.fake import running, state_of


def event(kind: str, **data: Any) -> EventView:
    return EventView(seq=7, at_ms=0, type=kind, group="g1", data=data)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (event("SlotPlaced", member="rollout", index=1, incarnation=2), SlotSeen("rollout", 1, 2, "PLACED", 7)),
        (event("SlotExited", member="rollout", index=1, incarnation=2, state="EXIT"), SlotSeen("rollout", 1, 2, "EXIT", 7)),
        (
            event("SlotChanged", member="rollout", index=1, incarnation=2, before="STARTING", state="RUNNING"),
            SlotSeen("rollout", 1, 2, "RUNNING", 7),
        ),
        (
            event("SlotChanged", member="rollout", index=1, incarnation=2, before="READY", state="RUNNING"),
            SlotSeen("rollout", 1, 2, "RUNNING", 7, unready_ms=0),
        ),
        (event("GroupChanged", state="RUNNING"), GroupSeen("RUNNING", 7)),
        (event("TryVoided"), GroupSeen("PENDING", 7)),
        (
            event("ValueWritten", name="trainer/failure", value='{"incarnation": 3, "message": "m"}'),
            TrainerFailed(3, "m"),
        ),
    ],
)
def test_events(given: EventView, meant: object) -> None:
    assert list(watch.observations(given)) == [meant]


@pytest.mark.parametrize(
    "given",
    [
        event("TaskMoved", task={}),
        event("ValueWritten", name="other", value="1"),
        event("ValueWritten", name="weights/head", value="nonsense"),
        event("ValueWritten", name="trainer/failure", value="[]"),
    ],
)
def test_what_means_nothing(given: EventView) -> None:
    assert list(watch.observations(given)) == []


@pytest.mark.parametrize(
    ("state", "ready_ms", "unready_ms"), [("RUNNING", 0, None), ("RUNNING", 500, 4_000), ("READY", 500, None)]
)
def test_a_listed_slot_says_whether_it_comes_up_or_was_ready_and_broke(
    state: str, ready_ms: int, unready_ms: int | None
) -> None:
    group = running()
    slot = replace(group.slots["rollout", 0], state=SlotState(state), ready_ms=ready_ms, since_ms=6_000)
    group = replace(group, slots={**group.slots, slot.key: slot})
    seen = watch.listed(group_view(state_of(group), group, 7, now_ms=10_000), "http")
    assert [one.unready_ms for one in seen.slots] == [None, unready_ms, None]


def beats(*views: BeatView, now: int = 10_000, unknown: int = 0) -> BeatList:
    return BeatList(seq=1, now_ms=now, unknown_until_ms=unknown, heartbeats=views)


def view(member: str = "actor", incarnation: int = 1, at: int = 9_000, **body: Any) -> BeatView:
    return BeatView(member=member, index=0, incarnation=incarnation, at_ms=at, body=body)


def test_a_beat_has_its_age_by_xces_own_clock() -> None:
    seen = watch.beat(beats(view(step=3)), "actor")
    assert isinstance(seen, BeatSeen)
    assert seen.age_ms == 1_000


def test_a_controller_that_has_just_started_knows_nothing() -> None:
    assert watch.beat(beats(now=10_000, unknown=12_000), "actor") == BeatsUnknown()
    assert watch.beat(beats(now=15_000, unknown=12_000), "actor") == BeatMissing(3_000)


def test_progress_is_step_or_samples_and_not_every_beat() -> None:
    one, same, other = (
        watch.beat(beats(view(step=1, loss=loss, gangflow={"samples": {"committed": samples}})), "actor")
        for loss, samples in ((0.1, 4), (0.2, 4), (0.2, 8))
    )
    assert isinstance(one, BeatSeen)
    assert isinstance(same, BeatSeen)
    assert isinstance(other, BeatSeen)
    assert one.progress == same.progress != other.progress


def test_failing_streaks_are_read_and_nonsense_is_not() -> None:
    own = {"failing": {"0": [2, 5], "x": [1, 1], "1": "bad"}}
    seen = watch.beat(beats(view(gangflow=own)), "actor")
    assert isinstance(seen, BeatSeen)
    assert seen.failing == ((0, 2, 5),)


def test_limits_are_the_specs() -> None:
    spec = RLCoordinator.model_validate(json.loads('{"quorum_timeout": "5s", "min_rollouts": 2, "hang_timeout": "7s"}'))
    limits = watch.limits(spec)
    assert (limits.quorum_ms, limits.min_rollouts, limits.hang_ms) == (5_000, 2, 7_000)
