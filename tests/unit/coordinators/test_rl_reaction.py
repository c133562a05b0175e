"""Decisions of the RL coordinator, one at a time."""

from __future__ import annotations

import pytest

from gangflow.coordinators.rl_messages import (
    EngineAnswered,
    EngineCall,
    PublishEligible,
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


def test_work_that_does_not_end_is_aborted_for_the_new_weights() -> None:
    world = running()
    world.publish(1)
    world.perform(0, "silent")
    verbs = [call.verb for _, call in world.calls if call.index == 0]
    assert verbs == [Verb.ABORT]
    world.finish_calls()
    assert world.serving() == [0, 1]


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


def test_a_load_has_what_is_left_of_the_time_for_a_sync() -> None:
    """Large weights take nearly all of it: a third would never be enough for those that need a half."""
    world = running(sync_ms=60_000)
    world.publish(1)
    world.wait(10_000)
    assert {call.timeout_ms for _, call in world.calls} == {20_000}  # the pauses
    world.perform()
    world.perform()
    assert [(call.verb, call.timeout_ms) for _, call in world.calls] == [(Verb.LOAD, 50_000)] * 2


def test_the_mean_over_a_probe_is_judged_beside_its_largest_difference() -> None:
    """In bfloat16 a single token says little."""
    world = running(probes=True, probe_tolerance=500.0, probe_mean_tolerance=0.1)
    world.publish(1)
    for outcome in ("ok", "lies", "ok", "ok"):
        world.perform(next(place for place, (_, call) in enumerate(world.calls) if call.index == 0), outcome)
    rollout = world.state.rollout(0)
    assert rollout is not None
    assert (rollout.state, rollout.diverged) == (RolloutState.STALE, True)
    assert "in the mean from the trainer's, 0.1 is allowed" in rollout.failure
    world.finish_calls()
    assert world.serving() == [1]


def test_an_engine_serves_only_once_it_agrees_with_the_trainer() -> None:
    """After resume it is asked what it says of the probe; before that it gets no work."""
    world = running(probes=True)
    world.publish(1)
    for verb in (Verb.PAUSE, Verb.LOAD, Verb.RESUME):
        assert [call.verb for _, call in world.calls] == [verb, verb]
        world.perform()
        world.perform()
    assert world.serving() == []
    assert [call.verb for _, call in world.calls] == [Verb.GENERATE, Verb.GENERATE]
    assert world.calls[0][1].head == world.head
    world.finish_calls()
    assert world.serving() == [0, 1]


def test_an_engine_that_says_something_else_is_stale_at_once_and_loads_again() -> None:
    """Also what runs on it is worth nothing: it is paused by aborting. Who does not come round is reported diverged."""
    world = running(probes=True, sync_ms=6_000, pause="keep", max_staleness=1)
    world.publish(5)
    for outcome in ("ok", "lies", "ok", "ok"):  # pause, load, resume, the probe
        world.perform(next(place for place, (_, call) in enumerate(world.calls) if call.index == 0), outcome)
    rollout = world.state.rollout(0)
    assert rollout is not None
    assert (rollout.state, rollout.weights, rollout.diverged) == (RolloutState.STALE, None, True)
    assert "differ by" in rollout.failure
    world.wait(500)
    assert [(call.verb, call.mode) for _, call in world.calls if call.index == 0] == [(Verb.PAUSE, "abort")]
    for _ in range(40):
        for _ in range(len(world.calls)):
            world.perform(0, "lies" if world.calls[0][1].index == 0 else "ok")
        world.wait(200)
    assert [(report.index, report.cause) for report in world.reports()] == [(0, Cause.DIVERGED)]
    assert world.serving() == [1]


def test_a_load_that_failed_half_way_leaves_a_stale_engine() -> None:
    """Nobody knows what it has: not the old weights either, though they would still be young enough."""
    world = running(max_staleness=3)
    world.publish(1)
    (index,) = [call.index for _, call in world.calls]
    world.perform()
    world.perform(0, "half")
    rollout = world.state.rollout(index)
    assert rollout is not None
    assert (rollout.state, rollout.weights) == (RolloutState.STALE, None)
    assert index not in world.serving()


@pytest.mark.parametrize("pause", ["wait", "keep", "abort"])
def test_running_requests_are_paused_as_the_spec_says(pause: str) -> None:
    world = running(pause=pause, max_staleness=1)
    assert {mode for engine in world.engines.values() for mode in engine.modes} == {pause}


def test_an_engine_that_lost_its_weights_is_found_by_asking_it() -> None:
    world = running()
    world.engines[0, 1].weights = None
    world.audit(0)
    assert world.serving() == [1]
    world.finish_calls()
    assert world.serving() == [0, 1]
    assert world.engines[0, 1].weights == world.head.weights  # type: ignore[union-attr]


def test_a_load_says_to_which_set_of_engines_it_belongs() -> None:
    """Scenario 48: a collective that was built for other members is refused instead of blocking in it."""
    world = running()
    world.publish(1)
    world.perform()
    world.perform()
    before = world.eligible
    assert before is not None
    assert {call.membership_version for _, call in world.calls} == {before.membership_version}
    world.kill(0)
    world.revive(0)
    world.perform()
    fresh = [call for _, call in world.calls if call.verb is Verb.PAUSE]
    assert fresh[0].membership_version > before.membership_version
