"""From events to spans."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from gangflow.telemetry.spans import Span, SpanBook, fold, span_id, trace_id, traceparent
from gangflow.xce.core import events as ev
from gangflow.xce.core.plan import ClaimPlan
from gangflow.xce.core.state import Change, ChangeState, Claim, ClaimState, GroupState, TaskKey
from tests.unit.telemetry.history import HISTORY


def _by_name(spans: Iterable[Span]) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for span in spans:
        found.setdefault(span.name, []).append((span.start_ms, span.end_ms))
    return found


def _one(spans: Iterable[Span], name: str) -> Span:
    (found,) = [span for span in spans if span.name == name]
    return found


def test_a_life_in_spans() -> None:
    spans, book = fold(HISTORY)
    assert _by_name(spans) == {
        "group grpo": [(1_000, 9_600)],
        "queued": [(1_000, 2_000), (2_500, 3_000)],
        "barrier": [(2_000, 2_500), (3_000, 4_000)],
        "claim ckpt": [(2_000, 3_100)],
        "starting": [(4_000, 5_000)],
        "running": [(5_000, 6_000), (7_000, 9_000)],
        "degraded": [(6_000, 7_000)],
        "stopping": [(9_000, 9_600)],
        "actor[0] #1": [(4_000, 9_000)],
        "rollout[0] #1": [(4_000, 6_000)],
        "rollout[0] #2": [(6_200, 9_500)],
    }
    assert book.of("g1") == [], "nothing stays open"
    assert not book.open


def test_a_change_of_targets_and_a_suspension_are_spans() -> None:
    accepted = Change("c1", ChangeState.ACCEPTED, (("actor", 1), ("rollout", 2)))
    moved = [(ChangeState.ACCEPTED, 6_000), (ChangeState.PLACING, 6_000), (ChangeState.FAILED, 6_900)]
    standalone = Claim("data", "", ClaimPlan("data"), ClaimState.PROVISIONING, attempt=1)
    history: list[tuple[ev.Event, int]] = [
        *HISTORY[:14],
        *((ev.ChangeMoved("g1", replace(accepted, state=state, message="no room")), at) for state, at in moved),
        (ev.ClaimChanged(standalone), 6_950),
        (ev.GroupChanged("g1", GroupState.RUNNING, GroupState.SUSPENDING), 7_000),
        (ev.GroupChanged("g1", GroupState.SUSPENDING, GroupState.SUSPENDED), 7_500),
        (ev.GroupChanged("g1", GroupState.SUSPENDED, GroupState.PENDING), 9_000),
    ]
    spans, book = fold(history)
    named = _by_name(spans)
    assert named["change c1"] == [(6_000, 6_900)]
    assert named["running"] == [(5_000, 7_000)]
    assert named["suspending"] == [(7_000, 7_500)]
    assert named["suspended"] == [(7_500, 9_000)]
    change = _one(spans, "change c1")
    assert change.failed
    assert change.message == "no room"
    assert dict(change.attributes) == {"gangflow.targets": "actor=1, rollout=2"}
    assert all(group == "g1" for group, _ in book.open), "a standalone claim belongs to no trace"


def test_one_trace_below_one_root() -> None:
    spans, _ = fold(HISTORY)
    root = _one(spans, "group grpo")
    assert {span.trace_id for span in spans} == {trace_id("cluster", "g1")}
    assert {span.parent_id for span in spans if span is not root} == {root.span_id}
    assert (root.parent_id, dict(root.attributes)["gangflow.state"]) == ("", "SUCCEEDED")
    assert len({span.span_id for span in spans}) == len(spans)


def test_a_replacement_is_linked_to_what_it_replaces() -> None:
    spans, _ = fold(HISTORY)
    died, lives = _one(spans, "rollout[0] #1"), _one(spans, "rollout[0] #2")
    assert (died.failed, died.message, died.links) == (True, "signal killed by SIGKILL", ())
    assert (lives.failed, lives.links) == (False, (died.span_id,))
    assert dict(lives.attributes) == {
        "gangflow.member": "rollout",
        "gangflow.slot": 0,
        "gangflow.incarnation": 2,
        "gangflow.hosts": "h2",
    }
    assert dict(_one(spans, "actor[0] #1").attributes)["gangflow.hosts"] == "h0,h1", "each host once, in task order"


def test_the_reason_stands_on_the_wait_and_the_fault_on_the_try() -> None:
    spans, _ = fold(HISTORY)
    waited = min((span for span in spans if span.name == "queued"), key=lambda span: span.start_ms)
    voided = min((span for span in spans if span.name == "barrier"), key=lambda span: span.start_ms)
    assert dict(waited.attributes) == {"gangflow.reason": "WAITING_CAPACITY: 1 GPU short"}
    assert (voided.failed, voided.message) == (True, "a port is taken")


def test_folded_again_it_is_the_same_to_the_byte() -> None:
    """Property 53."""
    assert fold(HISTORY)[0] == fold(HISTORY)[0]


@pytest.mark.parametrize("cut", range(len(HISTORY)))
def test_a_controller_that_restarts_anywhere_repeats_the_same_ids(cut: int) -> None:
    """Its successor folds the journal again from the beginning: what was handed out before comes with the same identity."""
    before, _ = fold(HISTORY[:cut])
    # The successor's own term is in the journal as well.
    again, _ = fold([*HISTORY[:cut], (ev.TermStarted("cluster", 2), 0), *HISTORY[cut:]])
    assert again[: len(before)] == before
    assert again == fold(HISTORY)[0]


def test_other_groups_and_clusters_have_other_traces() -> None:
    assert len({trace_id("a", "g1"), trace_id("a", "g2"), trace_id("b", "g1")}) == 3
    assert span_id("a", "g1", "x") != span_id("a", "g2", "x")


def test_a_tasks_parent_is_its_incarnations_span() -> None:
    spans, _ = fold(HISTORY)
    lives = _one(spans, "rollout[0] #2")
    parent = traceparent("cluster", TaskKey("g1", 1, "rollout", 0, 2, 0))
    assert parent == f"00-{lives.trace_id}-{lives.span_id}-01"


def test_an_end_by_failure_marks_the_root_and_closes_what_is_open() -> None:
    failed = ev.GroupChanged("g1", GroupState.STOPPING, GroupState.FAILED, "app_exit", "actor[0]: code 1")
    spans, book = fold([*HISTORY[:16], (failed, 6_500)])
    root = _one(spans, "group grpo")
    assert (root.failed, root.message, root.end_ms) == (True, "actor[0]: code 1", 6_500)
    assert _one(spans, "actor[0] #1").end_ms == 6_500
    assert not book.open


def test_two_groups_side_by_side_do_not_mix() -> None:
    book = SpanBook()
    for event, at in HISTORY[:11]:
        book.feed(event, at)
    book.feed(ev.GroupSubmitted("g2", HISTORY[1][0].plan), 4_500)  # type: ignore[union-attr]
    assert [span.name for span in book.of("g2")] == ["group grpo", "queued"]
    assert [span.name for span in book.of("g1")] == ["group grpo", "starting"]


def test_a_history_whose_beginning_is_gone_still_has_what_is_left() -> None:
    spans, book = fold(HISTORY[15:])
    assert _by_name(spans)["rollout[0] #2"] == [(6_200, 9_500)]
    assert not book.open
