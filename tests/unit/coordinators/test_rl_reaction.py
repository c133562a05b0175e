"""Decisions of the RL coordinator, one at a time."""

from __future__ import annotations

import pytest

from gangflow.coordinators.rl_judge import next_deadline
from gangflow.coordinators.rl_messages import (
    BeatMissing,
    BeatSeen,
    BeatsUnknown,
    EngineAnswered,
    EngineCall,
    FailGroup,
    GroupSeen,
    HealthSeen,
    PublishEligible,
    ReportCause,
    Stop,
    TrainerFailed,
)
from gangflow.coordinators.rl_state import TRANSITIONS, Cause, InvalidTransition, Limits, Rollout, RolloutState, Verb
from tests.unit.coordinators.rl_world import World, running


def test_no_edge_leads_from_an_end_to_serving() -> None:
    """From DEAD, GONE and RETIRED only STARTING leads on; SERVING is reached from SYNCING alone."""
    for end in (RolloutState.DEAD, RolloutState.GONE, RolloutState.RETIRED):
        assert TRANSITIONS[end] <= {RolloutState.STARTING, RolloutState.RETIRED}
    assert [state for state, to in TRANSITIONS.items() if RolloutState.SERVING in to] == [RolloutState.SYNCING]
    with pytest.raises(InvalidTransition, match="DEAD → SERVING"):
        Rollout(0, 1, RolloutState.DEAD).move(RolloutState.SERVING)


def test_every_state_is_in_the_table() -> None:
    assert set(TRANSITIONS) == set(RolloutState)


def test_nobody_is_eligible_before_the_first_weights() -> None:
    world = World()
    world.start()
    assert world.eligible is not None
    assert world.eligible.rollouts == ()
    assert world.eligible.members == ((0, 1), (1, 1))
    assert not world.calls


def test_weights_are_loaded_before_a_rollout_is_admitted() -> None:
    """Scenario 45: a restarted engine gets no request before it has the current weights."""
    world = running()
    assert world.serving() == [0, 1]
    world.publish(1)
    assert world.serving() == []
    world.kill(1)
    world.revive(1)
    assert world.serving() == []
    world.finish_calls()
    assert world.serving() == [0, 1]
    assert world.engines[1, 2].weights == world.head.weights  # type: ignore[union-attr]


def test_ready_by_its_probe_is_not_ready_for_requests() -> None:
    """Scenario 46: an engine that joins READY without weights is not admitted, and a verb is on its way to it."""
    world = running()
    world.kill(0)
    world.revive(0)
    assert world.serving() == [1]
    assert [call.verb for _, call in world.calls] == [Verb.PAUSE]


def test_a_syncing_rollout_admits_nothing_and_still_holds_what_runs() -> None:
    """Scenario 46: syncing is no reason to drop in-flight requests: admitting and holding are two facts."""
    world = running()
    world.publish(1)
    rollout = world.state.rollout(0)
    assert rollout is not None
    assert rollout.state is RolloutState.SYNCING
    assert not rollout.admits
    assert rollout.holds
    assert world.eligible is not None
    assert world.eligible.rollouts == ()
    assert world.eligible.holding == ((0, 1), (1, 1))


def test_a_death_deregisters_first_and_grows_the_membership_version() -> None:
    """Scenario 48: membership is what it really is before anything else happens; a sync promotes."""
    world = running()
    before = world.eligible
    assert before is not None
    del world.log[:]
    world.kill(0)
    first = world.log[0]
    assert isinstance(first, PublishEligible)
    assert first.value.membership_version == before.membership_version + 1
    assert first.value.members == ((1, 1),)
    assert first.value.holding == ((1, 1),)
    world.revive(0)
    world.finish_calls()
    assert world.serving() == [0, 1]
    assert world.eligible is not None
    assert world.eligible.membership_version == before.membership_version + 2


def test_new_weights_are_no_change_of_membership() -> None:
    world = running()
    before = world.eligible
    world.publish(1)
    world.finish_calls()
    assert before is not None
    assert world.eligible is not None
    assert world.eligible.membership_version == before.membership_version


def test_the_next_sync_goes_on_with_whoever_lives() -> None:
    """Scenario 48: an engine that dies during a sync holds nobody up."""
    world = running()
    world.publish(1)
    world.kill(0)
    world.finish_calls()
    assert world.serving() == [1]


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


def test_an_engine_that_was_never_ready_is_bounded_by_xce_alone() -> None:
    world = running(unhealthy_ms=1_000)
    world.kill(0)
    for phase in ("PLACED", "STARTING", "RUNNING"):
        world.move(0, phase, 2)
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


def test_health_that_comes_back_is_synced_again_before_it_serves() -> None:
    world = running()
    for _ in range(3):
        world.tell_all(HealthSeen(0, 1, ok=False))
    assert world.serving() == [1]
    world.tell_all(HealthSeen(0, 1, ok=True))
    assert [(call.verb, call.index) for _, call in world.calls] == [(Verb.PAUSE, 0)]
    world.finish_calls()
    assert world.serving() == [0, 1]
    assert not world.reports()


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


def test_the_actor_restarts_and_every_rollout_is_stale() -> None:
    """Scenario 83: after the trainer's restart nothing is generated before its own weights were pushed."""
    world = running()
    world.publish(1)
    world.finish_calls()
    world.move_actor("EXIT")
    world.move_actor("PLACED", 2)
    assert world.serving() == []
    assert not world.calls
    world.move_actor("RUNNING")
    world.publish(0)  # Rewound to its checkpoint: a smaller version than the old one, and another id.
    world.finish_calls()
    assert world.serving() == [0, 1]
    assert world.eligible is not None
    assert {serving.weights.actor_incarnation for serving in world.eligible.rollouts} == {2}


def test_an_old_head_never_comes_back() -> None:
    world = running()
    world.publish(1)
    newest = world.head
    world.publish(0)  # A re-read of an older write.
    assert world.state.head == newest


def test_a_dead_actors_weights_that_are_still_loading_are_not_admitted() -> None:
    world = running()
    world.publish(1)
    world.perform()  # pause of rollout 0 → load of version 1 is on its way
    world.move_actor("PLACED", 2)
    world.finish_calls()
    assert world.serving() == []


def test_a_dead_actors_version_is_not_young_however_near_its_number() -> None:
    world = running(max_staleness=2)
    world.publish(1)
    while not (world.calls and world.calls[0][1].verb is Verb.RESUME):
        world.perform()
    world.move_actor("PLACED", 2)
    world.move_actor("RUNNING")
    world.publish(2)
    world.perform()  # The old actor's version 1 is admitted by the engine itself, after the new one's version 2 appeared.
    assert world.serving() == []
    world.finish_calls()
    assert {serving.weights for serving in world.eligible.rollouts} == {world.head.weights}  # type: ignore[union-attr]


def test_newer_weights_during_a_load_are_loaded_before_it_serves() -> None:
    world = running()
    world.publish(1)
    world.perform()
    world.perform()
    world.publish(2)
    world.finish_calls()
    assert world.serving() == [0, 1]
    assert {serving.weights.version for serving in world.eligible.rollouts} == {2}  # type: ignore[union-attr]


def test_a_load_that_answers_with_other_weights_does_not_count() -> None:
    world = running()
    old = world.head
    world.publish(1)
    world.perform()
    world.perform()
    term, call = world.calls.pop(0)
    assert call.verb is Verb.LOAD
    assert old is not None
    world.tell(term, EngineAnswered(call.index, call.incarnation, call.call, True, old.weights))
    assert call.index not in world.serving()
    rollout = world.state.rollout(call.index)
    assert rollout is not None
    assert rollout.state is RolloutState.STALE
    assert "it loaded" in rollout.failure


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


def test_work_that_does_not_end_is_aborted_for_the_new_weights() -> None:
    world = running()
    world.publish(1)
    world.perform(0, "silent")
    verbs = [call.verb for _, call in world.calls if call.index == 0]
    assert verbs == [Verb.ABORT]
    world.finish_calls()
    assert world.serving() == [0, 1]


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


def test_losing_one_of_many_does_not_stop_the_others() -> None:
    """Scenario 53: within the floor nothing waits for the lost one."""
    world = World(Limits(min_rollouts=2), rollouts=4)
    world.start()
    world.publish(0)
    world.finish_calls()
    world.kill(2)
    assert world.serving() == [0, 1, 3]
    world.publish(1)
    world.finish_calls()
    assert world.serving() == [0, 1, 3]
    world.wait(500_000)
    assert not world.failures()


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


def test_a_successor_adopts_what_serves_without_a_pause() -> None:
    """Scenario 84: a coordinator's death changes nothing: its successor goes on from the durable facts."""
    world = running()
    before = world.eligible
    del world.log[:]
    world.start()
    assert before is not None
    assert world.eligible is not None
    assert world.eligible.rollouts == before.rollouts
    assert world.eligible.membership_version == before.membership_version
    assert [action.verb for action in world.log if isinstance(action, EngineCall)] == [Verb.VERSION, Verb.VERSION]
    world.finish_calls()
    assert world.serving() == [0, 1]
    assert not world.reports()


def test_a_successor_believes_the_engine_more_than_the_record() -> None:
    world = running()
    world.engines[0, 1].weights = None
    world.engines[0, 1].admitting = False
    world.start()
    while any(call.verb is Verb.VERSION for _, call in world.calls):
        world.perform()
    assert world.serving() == [1]
    world.finish_calls()
    assert world.serving() == [0, 1]


def test_a_successor_does_not_adopt_another_incarnation() -> None:
    """Scenario 84: an engine that died while no coordinator was there begins anew."""
    world = running()
    world.coordinators.clear()
    world.move(0, "EXIT")
    for phase in ("PLACED", "RUNNING", "READY"):
        world.move(0, phase, 2)
    world.start()
    assert world.serving() == [1]
    world.finish_calls()
    assert world.serving() == [0, 1]


def test_the_older_of_two_coordinators_drives_nothing() -> None:
    """Scenario 80: two coordinators at once; the older one's calls are refused everywhere, and it stops itself."""
    world = running()
    old = world.term
    new = world.start()
    world.finish_calls()
    world.publish(1)
    assert old in world.fenced
    world.finish_calls()
    assert world.serving() == [0, 1]
    assert world.eligible is not None
    assert world.eligible.term == new


def test_with_staleness_allowed_one_goes_on_serving_while_another_syncs() -> None:
    world = running(max_staleness=1, min_rollouts=1)
    world.publish(1)
    assert world.serving() == [1]
    while any(call.index == 0 for _, call in world.calls):
        world.perform()
    assert 0 in world.serving()
    world.finish_calls()
    assert {serving.weights.version for serving in world.eligible.rollouts} == {1}  # type: ignore[union-attr]


def test_too_old_is_out_at_once_even_with_staleness_allowed() -> None:
    world = running(max_staleness=1)
    world.publish(2)
    assert world.serving() == []


def test_a_stopping_rollout_drains_and_is_gone() -> None:
    world = running()
    world.move(0, "STOPPING")
    rollout = world.state.rollout(0)
    assert rollout is not None
    assert rollout.state is RolloutState.DRAINING
    assert world.serving() == [1]
    assert world.eligible is not None
    assert (0, 1) in world.eligible.holding
    assert (0, 1) not in world.eligible.members
    assert [call.verb for _, call in world.calls] == [Verb.RELEASE]
    world.kill(0)
    rollout = world.state.rollout(0)
    assert rollout is not None
    assert rollout.state is RolloutState.GONE


def test_news_that_is_older_than_what_is_known_is_no_news() -> None:
    world = running()
    late = world.slot_seen(0)
    world.seq += 5
    world.tell_all(world.slot_seen(0))
    world.tell_all(type(late)(late.member, 0, 1, "EXIT", late.seq))
    assert world.serving() == [0, 1]


def test_a_late_answer_of_an_earlier_verb_is_ignored() -> None:
    world = running()
    world.publish(1)
    term, pause = world.calls[0]
    world.move(0, "RUNNING")  # The probe fails: the sync is off.
    world.move(0, "READY")
    before = world.state
    world.tell(term, EngineAnswered(0, 1, pause.call, True))
    assert world.state == before


def test_the_deadline_is_exact() -> None:
    world = running(quorum_ms=60_000, no_progress_ms=600_000)
    assert next_deadline(world.state) == world.now + 600_000
    world.kill(0)
    world.kill(1)
    assert next_deadline(world.state) == world.now + 60_000
