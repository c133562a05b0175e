"""Deadlines and verdicts of the RL coordinator: hung, unhealthy, stale, no quorum, no progress."""

from __future__ import annotations

import pytest

from gangflow.coordinators.rl_judge import next_deadline
from gangflow.coordinators.rl_messages import (
    BeatMissing,
    BeatSeen,
    BeatsUnknown,
    EngineCall,
    FailGroup,
    GroupSeen,
    HealthSeen,
    PublishEligible,
    ReportCause,
    Stop,
    TrainerFailed,
)
from gangflow.coordinators.rl_state import Cause, Limits, Verb
from tests.unit.coordinators.rl_world import EngineTruth, World, running


def test_deregistration_precedes_the_report() -> None:
    world = running(unhealthy_ms=1_000)
    del world.log[:]
    for _ in range(3):
        world.tell_all(HealthSeen(0, 1, ok=False))
    assert world.serving() == [1]
    world.wait(1_000)
    kinds = [type(action) for action in world.log if not isinstance(action, EngineCall)]
    assert kinds[0] is PublishEligible
    assert kinds[-1] is ReportCause
    assert [(r.index, r.incarnation, r.cause) for r in world.reports()] == [(0, 1, Cause.UNHEALTHY)]


@pytest.mark.parametrize("own_checks", [0, 1, 3])
def test_an_engine_that_stops_answering_is_reported_also_when_xce_sees_it_first(own_checks: int) -> None:
    """Scenario 48: XCE's own probe takes a hung engine to RUNNING; it must not be forgotten there, serving nothing for ever."""
    world = running(unhealthy_ms=10_000)
    for _ in range(own_checks):
        world.tell_all(HealthSeen(0, 1, ok=False))
    world.move(0, "RUNNING")
    assert world.serving() == [1]
    world.wait(9_999)
    assert not world.reports()
    world.wait(1)
    assert [(r.index, r.incarnation, r.cause) for r in world.reports()] == [(0, 1, Cause.UNHEALTHY)]
    world.wait(60_000)
    assert len(world.reports()) == 1


def test_an_engine_that_answers_again_in_time_is_synced_and_not_reported() -> None:
    world = running(unhealthy_ms=10_000)
    world.move(0, "RUNNING")
    world.wait(5_000)
    world.move(0, "READY")
    world.finish_calls()
    world.wait(60_000)
    assert not world.reports()
    assert world.serving() == [0, 1]


@pytest.mark.parametrize("there_when_it_broke", [True, False])
def test_a_coordinator_that_takes_over_keeps_the_clock_of_an_engine_that_broke(there_when_it_broke: bool) -> None:
    """Scenarios 48 and 84: whoever starts anew, however often, sees "was ready and broke", not "comes up"."""
    world = running(unhealthy_ms=10_000)
    if not there_when_it_broke:
        world.coordinators.clear()
    world.move(0, "RUNNING")
    for _ in range(3):
        world.now += 3_000
        world.coordinators.clear()
        world.start()
    assert not world.reports()
    world.wait(999)
    assert not world.reports()
    world.wait(1)
    assert [(r.index, r.incarnation, r.cause) for r in world.reports()] == [(0, 1, Cause.UNHEALTHY)]


def test_an_engine_that_was_never_ready_is_bounded_by_xce_alone() -> None:
    world = running(unhealthy_ms=1_000)
    world.kill(0)
    for phase in ("PLACED", "STARTING", "RUNNING"):
        world.move(0, phase, 2)
    world.start()
    world.wait(60_000)
    assert not world.reports()


def test_a_verdict_is_reported_once_and_the_engine_left_alone() -> None:
    world = running(unhealthy_ms=1_000)
    for _ in range(3):
        world.tell_all(HealthSeen(0, 1, ok=False))
    world.wait(1_000)
    del world.calls[:]
    for _ in range(3):
        world.tell_all(HealthSeen(0, 1, ok=True))
    world.publish(1)
    world.wait(60_000)
    assert len([r for r in world.reports() if r.index == 0]) == 1
    assert [call.index for _, call in world.calls if call.index == 0] == []


@pytest.mark.parametrize("probes", [False, True])
def test_health_that_comes_back_is_asked_what_it_has_before_it_serves(probes: bool) -> None:
    """An answer that came late is no reason to load a hundred gigabytes again, which are there."""
    world = running(probes=probes)
    for _ in range(3):
        world.tell_all(HealthSeen(0, 1, ok=False))
    assert world.serving() == [1]
    begun = len(world.log)
    world.tell_all(HealthSeen(0, 1, ok=True))
    assert [(call.verb, call.index) for _, call in world.calls] == [(Verb.VERSION, 0)]
    world.finish_calls()
    assert world.serving() == [0, 1]
    asked = [action.verb for action in world.log[begun:] if isinstance(action, EngineCall)]
    assert asked == [Verb.VERSION, Verb.RESUME, *([Verb.GENERATE] if probes else [])]
    assert not world.reports()


def test_one_that_has_forgotten_its_weights_meanwhile_loads_them() -> None:
    world = running()
    for _ in range(3):
        world.tell_all(HealthSeen(0, 1, ok=False))
    world.engines[0, 1] = EngineTruth(term=world.term)
    begun = len(world.log)
    world.tell_all(HealthSeen(0, 1, ok=True))
    world.finish_calls()
    assert world.serving() == [0, 1]
    asked = [action.verb for action in world.log[begun:] if isinstance(action, EngineCall)]
    assert asked == [Verb.VERSION, Verb.PAUSE, Verb.LOAD, Verb.RESUME]


def test_newer_weights_that_come_while_it_is_asked_are_loaded_after_a_pause() -> None:
    world = running()
    for _ in range(3):
        world.tell_all(HealthSeen(0, 1, ok=False))
    world.tell_all(HealthSeen(0, 1, ok=True))
    begun = len(world.log)
    world.publish(1)
    world.finish_calls()
    asked = [action.verb for action in world.log[begun:] if isinstance(action, EngineCall) and action.index == 0]
    assert asked == [Verb.PAUSE, Verb.LOAD, Verb.RESUME]
    assert world.serving() == [0, 1]


def test_answers_health_but_not_requests() -> None:
    """Two separate streaks: /health succeeds, requests fail in a row, so the rollout is hung."""
    world = running()
    world.tell_all(BeatSeen(1, "1", failing=((0, 1, 2),)))
    assert not world.reports()
    world.tell_all(BeatSeen(1, "1", failing=((0, 1, 3),)))
    assert [(r.index, r.cause) for r in world.reports()] == [(0, Cause.HUNG)]
    assert world.serving() == [1]
    assert world.eligible is not None
    assert (0, 1) not in world.eligible.holding  # What it was sent is dispatched again at once.


def test_a_streak_of_an_older_incarnation_means_nothing() -> None:
    world = running()
    world.kill(0)
    world.revive(0)
    world.finish_calls()
    world.tell_all(BeatSeen(1, "1", failing=((0, 1, 9),)))
    assert not world.reports()
    assert world.serving() == [0, 1]


def test_a_refused_load_is_tried_again_then_reported_stale() -> None:
    world = running(sync_ms=2_000)
    world.publish(1)
    for _ in range(40):
        while world.calls:
            _, call = world.calls[0]
            world.perform(0, "refused" if call.verb is Verb.LOAD and call.index == 0 else "ok")
        if world.reports():
            break
        world.wait(500)
    assert [(r.index, r.cause) for r in world.reports()] == [(0, Cause.STALE)]
    assert world.serving() == [1]


def test_silence_during_a_sync_is_reported_hung() -> None:
    world = running(sync_ms=2_000)
    world.publish(1)
    while any(call.index == 1 for _, call in world.calls):
        world.perform(next(place for place, (_, call) in enumerate(world.calls) if call.index == 1))
    world.wait(2_000)
    assert [(r.index, r.cause) for r in world.reports()] == [(0, Cause.HUNG)]


def test_no_quorum_fails_the_group_with_that_reason() -> None:
    """Scenario 50: all rollouts dead while the trainer waits: bounded, and said as it is."""
    world = running(quorum_ms=60_000)
    world.kill(0)
    world.kill(1)
    world.wait(59_999)
    assert not world.failures()
    world.wait(1)
    assert [failure.cause for failure in world.failures()] == ["no_quorum"]
    assert "rollout[0] DEAD in incarnation 1" in world.failures()[0].message


def test_a_rollout_that_comes_back_in_time_keeps_the_group() -> None:
    """Scenario 53: one failure, even of all rollouts at once, does not end the run when they return in time."""
    world = running(quorum_ms=60_000)
    world.kill(0)
    world.kill(1)
    world.wait(59_000)
    world.revive(1)
    world.finish_calls()
    world.wait(120_000)
    assert not world.failures()
    assert world.serving() == [1]


def test_quorum_is_not_missed_before_the_first_weights_nor_while_the_actor_is_away() -> None:
    world = World(Limits(quorum_ms=1_000))
    world.start()
    world.wait(10_000)
    world.publish(0)
    world.finish_calls()
    world.move_actor("PLACED", 2)
    world.wait(10_000)
    assert not world.failures()


def test_an_engine_that_dies_every_time_ends_in_no_quorum_not_in_an_endless_restart() -> None:
    """Scenario 49: however often it is restarted, quorum is what counts; the clock is reset only by a rollout that serves."""
    world = running(quorum_ms=30_000)
    world.kill(0)
    for _ in range(10):
        world.kill(1)
        world.wait(5_000)
        if world.failures():
            break
        world.revive(1)
    assert [failure.cause for failure in world.failures()] == ["no_quorum"]


def test_no_progress_on_the_edge_ends_the_group() -> None:
    """Scenario 50: the actor beats and never gets on; the watchdog does not wait for the wall time."""
    world = running(no_progress_ms=30_000, hang_ms=20_000)
    for _ in range(7):
        world.tell_all(BeatSeen(1, "step 7"))
        world.wait(5_000)
    assert [failure.cause for failure in world.failures()] == ["no_progress"]


def test_an_actor_that_hangs_before_its_first_heartbeat_ends_the_group() -> None:
    """Scenario 50: nothing was ever published and nothing was ever said: the watchdog runs from the group's start."""
    world = World(Limits(no_progress_ms=30_000))
    world.start()
    world.wait(29_999)
    assert not world.failures()
    world.wait(1)
    assert [failure.cause for failure in world.failures()] == ["no_progress"]
    assert "never sent a heartbeat" in world.failures()[0].message


def test_an_actor_that_never_beats_gets_on_by_what_it_publishes() -> None:
    world = running(no_progress_ms=30_000)
    for version in range(1, 8):
        world.wait(20_000)
        world.publish(version)
        world.finish_calls()
    assert not world.failures()
    for _ in range(20):  # While XCE is away nobody could have told what was published.
        world.tell_all(BeatsUnknown())
        world.wait(5_000)
    assert not world.failures()


def test_progress_of_samples_or_weights_resets_the_watchdog() -> None:
    world = running(no_progress_ms=30_000, hang_ms=60_000)
    for beat in range(20):
        world.tell_all(BeatSeen(1, f"step 7, {beat} samples"))
        world.wait(5_000)
    assert not world.failures()


def test_an_actor_without_heartbeats_is_hung() -> None:
    world = running(hang_ms=10_000)
    world.tell_all(BeatSeen(1, "1"))
    world.wait(10_000)
    assert [(r.member, r.incarnation, r.cause) for r in world.reports()] == [("actor", 1, Cause.HUNG)]
    world.wait(60_000)
    assert len(world.reports()) == 1


def test_an_actor_that_never_beats_is_not_judged_by_its_silence() -> None:
    world = running(hang_ms=1_000)
    world.tell_all(BeatMissing(3_600_000))
    world.wait(60_000)
    assert not world.reports()


def test_silence_of_xce_itself_means_nothing() -> None:
    """Scenario 80: UNKNOWN is not DEAD, and nothing acts on it; it counts anew from XCE's return."""
    world = running(hang_ms=10_000)
    world.tell_all(BeatSeen(1, "1"))
    world.wait(5_000)
    world.tell_all(BeatsUnknown())
    world.wait(60_000)
    assert not world.reports()
    world.tell_all(BeatMissing(0))  # It is back, and would have heard from now on.
    world.wait(9_999)
    assert not world.reports()
    world.wait(1)
    assert [r.cause for r in world.reports()] == [Cause.HUNG]


def test_a_policy_failure_of_the_actor_fails_the_group() -> None:
    """Scenario 51: the actor's own word for why it ends is the group's cause, not some end of stream."""
    world = running()
    world.tell_all(TrainerFailed(1, "logprobs differ by 0.3"))
    assert world.failures() == [FailGroup("policy_mismatch", "logprobs differ by 0.3")]


def test_an_older_incarnations_failure_does_not_end_its_successor() -> None:
    world = running()
    world.move_actor("PLACED", 2)
    world.tell_all(TrainerFailed(1, "long ago"))
    assert not world.failures()


def test_after_it_was_failed_the_group_is_only_watched_to_its_end() -> None:
    """Scenario 83: the coordinator of a group that ends, ends."""
    world = running()
    world.tell_all(TrainerFailed(1, "x"))
    del world.log[:]
    world.publish(1)
    world.kill(0)
    assert world.log == []
    world.seq += 1
    world.tell_all(GroupSeen("FAILED", world.seq))
    assert world.log == [Stop("FAILED")]


def test_the_deadline_is_exact() -> None:
    world = running(quorum_ms=60_000, no_progress_ms=600_000)
    assert next_deadline(world.state) == world.now + 600_000
    world.kill(0)
    world.kill(1)
    assert next_deadline(world.state) == world.now + 60_000


def test_no_quorum_names_each_rollout_its_address_and_its_last_error() -> None:
    """Scenario 54: whoever waits for a rollout that never serves is told which one, where it was asked, and what it said."""
    world = running(quorum_ms=5_000, sync_ms=60_000)
    world.kill(1)
    world.publish(1)
    for _ in range(20):
        while world.calls:
            _, call = world.calls[0]
            world.perform(0, "refused" if call.verb is Verb.LOAD else "ok")
        if world.failures():
            break
        world.wait(500)
    message = world.failures()[0].message
    assert "rollout[0]" in message
    assert "http://127.0.0.1:7000 (refused)" in message
    assert "rollout[1] DEAD" in message


def test_no_quorum_names_what_was_reported_of_incarnations_before() -> None:
    """Weights that no engine can load: each is given up and restarted, and the clock runs out while the next one comes up. The
    reason is what the group fails with, not only that somebody is starting."""
    world = running(quorum_ms=60_000, sync_ms=3_000)
    world.publish(1)
    while not world.reports():
        while world.calls:
            world.perform(0, "refused" if world.calls[0][1].verb is Verb.LOAD else "ok")
        world.wait(500)
    for index in (0, 1):
        world.kill(index)
        world.slots[index] = (2, "STARTING")
        world.tell(world.term, world.listed())
    world.wait(60_000)
    (failure,) = world.failures()
    assert failure.cause == "no_quorum"
    for index in (0, 1):
        assert f"rollout[{index}] STARTING in incarnation 2" in failure.message
    assert failure.message.count("before it was stale: no new weights within 3s: refused") == 2


def test_what_was_reported_is_forgotten_once_a_later_incarnation_serves() -> None:
    world = running(quorum_ms=60_000, sync_ms=3_000)
    world.publish(1)
    while not world.reports():
        while world.calls:
            world.perform(0, "refused" if world.calls[0][1].verb is Verb.LOAD else "ok")
        world.wait(500)
    for index in (0, 1):
        world.kill(index)
        world.revive(index)
    world.finish_calls()
    assert world.serving() == [0, 1]
    for index in (0, 1):
        world.kill(index)
    world.wait(60_000)
    assert "stale" not in world.failures()[0].message
