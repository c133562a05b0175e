"""From durable records to lines and facts."""

from __future__ import annotations

from typing import Any

import pytest

from gangflow.channel import ELIGIBLE
from gangflow.cli.story import MAX_LINES, Story, rule_name
from gangflow.xce.core import events as ev
from gangflow.xce.core.plan import Cause
from tests.unit.cli.events import PLAN, changed, claim, eligible, exited, moved, placed, views, waits


def told(*events: ev.Event, story: Story | None = None) -> list[str]:
    """The lines of a history."""
    story = story or Story("g1")
    return [line for record in views(events) for line in story.feed(record)]


def test_a_start_is_told_in_its_phases() -> None:
    story = Story("g1")
    lines = told(
        ev.GroupSubmitted("g1", PLAN),
        waits("gpus: 1 missing on node h0", blocker="g7"),
        ev.ReasonNoted("g1", None),
        ev.GroupPlaced("g1", 99_000),
        ev.TryVoided("g1", 1, "refused", "rollout[0]: port 'http' is taken", 5_000),
        ev.GroupPlaced("g1", 99_000),
        ev.BarrierReleased("g1", 1, 99_000),
        placed("rollout", 0, 1, "h0"),
        moved("rollout", 0, 1, "READY"),
        changed("STARTING", "RUNNING"),
        changed("RUNNING", "STOPPING"),
        exited("actor", 0, 1, state="DONE", code=0),
        exited("rollout", 0, 1, signal=15),
        changed("STOPPING", "SUCCEEDED"),
        story=story,
    )
    assert lines == [
        "submitted as g1",
        "waits, WAITING_CAPACITY: gpus: 1 missing on node h0; blocked by g7",
        "placed: every required slot has its hosts; the barrier is closed",
        "start voided (refused): rollout[0]: port 'http' is taken; nothing was started",
        "placed: every required slot has its hosts; the barrier is closed",
        "barrier released: every slot prepared, every claim ready (epoch 1)",
        "STARTING → RUNNING",
        "RUNNING → STOPPING",
        "actor[0] #1 ended (done)",
        "rollout[0] #1 ended (stopped)",
        "STOPPING → SUCCEEDED",
    ]
    moments = (story.begin_ms, story.placed_ms, story.released_ms, story.running_ms, story.stopping_ms, story.ended_ms)
    assert moments == (1_000, 6_000, 7_000, 10_000, 11_000, 14_000)
    assert [text for _, text in story.lines] == lines
    assert story.readmissions == [], "what is stopped on purpose is no death"


def test_a_death_is_told_with_its_last_lines() -> None:
    story = Story("g1")
    lines = told(
        exited("actor", 0, 1, "app_exit", code=3, message="exited with code 3", stderr_tail="Traceback\nKeyError: 'x'\n"),
        exited("rollout", 1, 2, "signal", signal=9, message="killed by SIGKILL"),
        story=story,
    )
    assert lines == [
        "actor[0] #1 died: app_exit, code 3 exited with code 3\nTraceback\nKeyError: 'x'",
        "rollout[1] #2 died: signal, signal 9 killed by SIGKILL",
    ]
    assert [(each.slot, each.incarnation, each.served_ms) for each in story.readmissions] == [
        ("actor[0]", 1, 0),
        ("rollout[1]", 2, 0),
    ]


def test_a_rollout_is_readmitted_when_its_next_incarnation_is_eligible() -> None:
    story = Story("g1")
    lines = told(
        eligible(1, {(0, 1): 4, (1, 1): 4}, [(0, 1), (1, 1)]),
        exited("rollout", 0, 1, "signal", signal=9),
        eligible(2, {(1, 1): 4}, [(1, 1)]),
        placed("rollout", 0, 2, "h3"),
        moved("rollout", 0, 2, "READY"),
        eligible(3, {(1, 1): 5}, [(0, 2), (1, 1)]),
        eligible(3, {(0, 2): 5, (1, 1): 5}, [(0, 2), (1, 1)]),
        story=story,
    )
    assert lines[0] == "membership 1 of the rollouts: [0]#1, [1]#1"
    assert lines[2:] == [
        "membership 2 of the rollouts: [1]#1",
        "rollout[0] #2 placed on h3",
        "rollout[0] #2 is ready",
        "membership 3 of the rollouts: [0]#2, [1]#1",
        "rollout[0] #2 re-admitted after 5.0 s, weights 1/5/abcdef01",
    ]
    (back,) = story.readmissions
    assert (back.replacement, back.took_s, back.weights) == (2, 5.0, "1/5/abcdef01")
    assert story.weights == {(0, 2): "1/5/abcdef01", (1, 1): "1/5/abcdef01"}


def test_between_two_steps_what_was_served_last_stays_but_not_of_the_dead() -> None:
    story = Story("g1")
    told(eligible(1, {(0, 1): 4, (1, 1): 4}, [(0, 1), (1, 1)]), eligible(2, {}, [(1, 1)]), story=story)
    assert story.weights == {(1, 1): "1/4/abcdef01"}


def test_only_the_member_that_serves_weights_is_readmitted() -> None:
    """Another replica set with a slot of the same index, and a name that begins alike, is not."""
    story = Story("g1", rollout="engine")
    told(
        exited("engine-router", 0, 1, "signal", signal=9),
        exited("rollout", 0, 1, "signal", signal=9),
        exited("engine", 0, 1, "signal", signal=9),
        eligible(2, {(0, 2): 5}, [(0, 2)]),
        story=story,
    )
    assert [(each.slot, each.replacement) for each in story.readmissions] == [
        ("engine-router[0]", 0),
        ("rollout[0]", 0),
        ("engine[0]", 2),
    ]


def test_claims_that_fail_say_why() -> None:
    assert told(
        claim("PROVISIONING", attempt=1),
        claim("FAILED", "directory: no space", until_ms=5_000, attempt=1),
        claim("FAILED", "directory: no space", attempt=1),
        claim("LOST", "h1 is lost", member="rollout", index=1),
        claim("READY"),
    ) == ["claim ckpt FAILED (try 1): directory: no space", "claim ckpt of rollout[1] LOST: h1 is lost"]


@pytest.mark.parametrize(
    "value", ["", "[]", "{}", '{"membership_version": "x"}', '{"membership_version": 1, "rollouts": [{}]}']
)
def test_a_value_that_no_coordinator_wrote_is_passed_over(value: str) -> None:
    assert told(ev.ValueWritten("g1", ELIGIBLE, value, 1), ev.ValueWritten("g1", "mine", value, 1)) == []


def test_only_the_newest_lines_are_kept() -> None:
    story = Story("g1")
    told(*(waits(f"reason {number}") for number in range(MAX_LINES + 5)), story=story)
    assert len(story.lines) == MAX_LINES
    assert story.lines[-1][1].endswith(f"reason {MAX_LINES + 4}")


def test_a_type_of_a_newer_xce_is_passed_over() -> None:
    (record,) = views([ev.CoordinatorStarted("g1", 1)])
    newer: Any = record.model_copy(update={"type": "GroupTeleported"})
    assert Story("g1").feed(newer) == []


@pytest.mark.parametrize(
    ("rule", "named"),
    [(-1, "no rule"), (0, "rule 1 of rollout"), (1, "rule 1"), (2, "the default rule of actor")],
)
def test_rules_are_named_as_their_user_counts_them(rule: int, named: str) -> None:
    document = {
        "members": {"actor": {"job": {"command": ["train"]}}, "rollout": {"replica_set": {"on_failure": [{}]}}},
        "failure": [{}],
    }
    assert rule_name(document, "actor", rule) == named
    assert rule_name({}, "actor", 2) == "the default rule of actor"


def test_a_warning_is_told_once_all_its_tasks_have_it() -> None:
    story = Story("g1")
    told = [line for record in views([ev.SlotWarned("g1", "actor", 0, 1, (1,)), ev.SlotWarned("g1", "actor", 0, 1)])
            for line in story.feed(record)]  # fmt: skip
    assert told == ["actor[0] #1 was warned: its runtime limit is near"]


def test_a_judged_failure_is_told_with_its_cause_and_what_follows_and_lasts() -> None:
    story = Story("g1", document={"members": {"rollout": {"replica_set": {"on_failure": [{}]}}}})
    lines = told(
        ev.FailureJudged("g1", "rollout", 1, 1, Cause.APP_EXIT, 0, "restart_member", "app_exit: exited with code 3"),
        exited("rollout", 1, 1, "app_exit", code=3),
        ev.FailureJudged("g1", "rollout", 0, 4, Cause.HOST_LOST, -1, ""),
        story=story,
    )
    assert lines[0] == "rollout[1] incarnation 1: app_exit → restart_member (rule 1 of rollout; exited with code 3)"
    assert lines[2] == "rollout[0] incarnation 4: host_lost → placed again (no rule)"
    assert [text for _, text in story.lasting] == [lines[0], lines[2]]
    assert [text for _, text in story.lines] == lines
