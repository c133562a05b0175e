"""What a failure means for prompts in flight: re-dispatch, skip or stop; never a sample twice, never a silent loss."""

from __future__ import annotations

import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangflow.channel import WeightsId
from gangflow.member.dispatch import FLIGHTS_PER_ROLLOUT, MAX_ATTEMPTS, Answer, Dispatch, Flight
from gangflow.member.endpoints import Endpoint
from gangflow.member.failures import DataBudgetSpent, FailureClass, InfraExhausted, PolicyMismatch
from gangflow.member.samples import Counters, Published

HEAD = WeightsId(1, 5, "e" * 64)


def endpoint(index: int, incarnation: int = 1) -> Endpoint:
    return Endpoint("rollout", index, incarnation, {}, f"http://r{index}", HEAD)


A, B = endpoint(0), endpoint(1)


def made(prompts: int = 4, chunk: int = 2, skip_budget: int = 1, max_staleness: int = 0) -> Dispatch:
    published = Published(1, max_staleness)
    published.add(HEAD)
    dispatch = Dispatch(prompts, 2, published, Counters(), skip_budget)
    dispatch.split(chunk)
    return dispatch


def good(flight: Flight, weights: WeightsId | None = HEAD) -> dict[int, Answer]:
    return {prompt: Answer((f"{prompt}a", f"{prompt}b"), (weights, weights)) for prompt in flight.prompts}


def test_work_is_spread_over_the_least_busy() -> None:
    dispatch = made(prompts=8, chunk=1)
    flights = dispatch.launch(0, [A, B])
    assert [flight.target.index for flight in flights] == [0, 1, 0, 1]
    assert len(flights) == 2 * FLIGHTS_PER_ROLLOUT
    assert dispatch.launch(0, [A, B]) == []


def test_everything_answered_is_done() -> None:
    dispatch = made()
    for flight in dispatch.launch(0, [A, B]):
        dispatch.answered(flight.id, good(flight), 0)
    assert dispatch.done
    assert dispatch.results[3].outputs == ("3a", "3b")
    assert dispatch.counters == Counters()


def test_a_dead_rollouts_work_goes_elsewhere_at_once_and_its_late_result_is_dropped() -> None:
    dispatch = made()
    first, second = dispatch.launch(0, [A, B])
    assert dispatch.abandon_dead([B.key], 0) == [first]
    (again,) = dispatch.launch(0, [B])
    assert again.prompts == first.prompts
    assert again.attempt == 2
    dispatch.answered(first.id, good(first), 0)
    assert dispatch.counters.late == 4
    assert not dispatch.results
    dispatch.answered(again.id, good(again), 0)
    dispatch.answered(second.id, good(second), 0)
    assert dispatch.done
    assert (dispatch.counters.redispatched, dispatch.counters.lost, dispatch.counters.duplicates) == (4, 0, 0)
    assert dispatch.results[0].attempt == 2


def test_infra_waits_for_the_same_rollout_but_not_for_another() -> None:
    dispatch = made(prompts=1)
    (flight,) = dispatch.launch(0, [A])
    dispatch.failed(flight.id, FailureClass.INFRA, "connection reset", now=10)
    assert dispatch.launch(10.5, [A]) == []
    assert dispatch.wake_at(10.5) == 11
    assert [f.target for f in dispatch.launch(10.5, [A, B])] == [B]


def test_the_pause_grows_to_its_limit_and_attempts_end() -> None:
    """Scenario 49: a rollout that fails every time is not asked for ever."""
    dispatch = made(prompts=1)
    now, pauses = 0.0, []
    for _ in range(MAX_ATTEMPTS - 1):
        (flight,) = dispatch.launch(now, [A])
        dispatch.failed(flight.id, FailureClass.INFRA, "reset", now)
        wake = dispatch.wake_at(now)
        assert wake is not None
        pauses.append(wake - now)
        now = wake
    assert pauses == [1, 2, 4, 8]
    (flight,) = dispatch.launch(now, [A])
    with pytest.raises(InfraExhausted, match="5 times"):
        dispatch.failed(flight.id, FailureClass.INFRA, "reset", now)
    dispatch.give_up()
    assert dispatch.counters.lost == 2


def test_a_bad_prompt_is_found_and_only_it_is_skipped() -> None:
    dispatch = made(prompts=4, chunk=4)
    (flight,) = dispatch.launch(0, [A])
    dispatch.failed(flight.id, FailureClass.DATA, "prompt 2 is too long", 0)
    while not dispatch.done:
        for single in dispatch.launch(0, [A, B]):
            if single.prompts == (2,):
                dispatch.failed(single.id, FailureClass.DATA, "too long", 0)
            else:
                dispatch.answered(single.id, good(single), 0)
    assert sorted(dispatch.results) == [0, 1, 3]
    assert dispatch.skipped == {2: "too long"}
    assert dispatch.counters.skipped == 2


def test_skips_have_a_budget() -> None:
    """Scenario 51: failures never become a short but successful batch."""
    dispatch = made(prompts=4, chunk=1, skip_budget=1)
    first, second = dispatch.launch(0, [A])
    dispatch.failed(first.id, FailureClass.DATA, "x", 0)
    with pytest.raises(DataBudgetSpent, match="2 of 4"):
        dispatch.failed(second.id, FailureClass.DATA, "y", 0)
    dispatch.give_up()
    assert dispatch.counters.lost == 4


def test_a_missing_answer_and_a_short_group_are_data() -> None:
    dispatch = made(prompts=2, chunk=2, skip_budget=2)
    (flight,) = dispatch.launch(0, [A])
    dispatch.answered(flight.id, {0: Answer(("only one",), (HEAD,))}, 0)
    assert dispatch.skipped == {0: "1 samples instead of 2", 1: "the engine did not answer for it"}


def test_policy_stops() -> None:
    dispatch = made()
    (flight, _) = dispatch.launch(0, [A, B])
    with pytest.raises(PolicyMismatch):
        dispatch.failed(flight.id, FailureClass.POLICY, "reference differs", 0)


def test_samples_of_weights_that_were_never_published_stop() -> None:
    """A half-updated engine says the right version and has the wrong weights: its samples must not be trained on."""
    dispatch = made()
    (flight, _) = dispatch.launch(0, [A, B])
    with pytest.raises(PolicyMismatch, match="under version 5 this actor published eeeeeeee"):
        dispatch.answered(flight.id, good(flight, WeightsId(1, 5, "f" * 64)), 0)


def test_samples_without_weights_stop_once_there_are_versions() -> None:
    dispatch = made()
    (flight, _) = dispatch.launch(0, [A, B])
    with pytest.raises(PolicyMismatch):
        dispatch.answered(flight.id, good(flight, None), 0)


@pytest.mark.parametrize("weights", [WeightsId(1, 4, "d" * 64), WeightsId(9, 5, "e" * 64)])
def test_too_old_samples_are_asked_for_again(weights: WeightsId) -> None:
    """`age = trainer version − oldest version in the sample`: usable iff at most `max_staleness`, here 0."""
    dispatch = made(prompts=1)
    (flight,) = dispatch.launch(0, [A])
    dispatch.answered(flight.id, good(flight, weights), 0)
    assert not dispatch.results
    assert dispatch.counters.stale == 2
    (again,) = dispatch.launch(0, [A])
    dispatch.answered(again.id, good(again), 0)
    assert dispatch.done


def test_age_within_the_limit_is_usable() -> None:
    published = Published(1, max_staleness=1)
    for version in (3, 4, 5):
        published.add(WeightsId(1, version, str(version) * 64))
    assert [published.judge(WeightsId(1, v, str(v) * 64)) for v in (3, 4, 5)] == ["stale", "usable", "usable"]
    assert sorted(published.versions) == [4, 5], "older ones are forgotten"


@given(st.data())
def test_no_history_commits_twice_or_loses_silently(data: st.DataObject) -> None:
    """Property 27 (I13): each prompt is committed once or skipped with its reason; a failure is never an empty group."""
    dispatch = made(prompts=6, chunk=data.draw(st.integers(1, 6)), skip_budget=6)
    pending: list[Flight] = []
    past: list[Flight] = []
    incarnations = {0: 1, 1: 1}
    now, exhausted = 0.0, False
    for _ in range(200):
        if dispatch.done:
            break
        now += 40
        alive = [endpoint(index, incarnation) for index, incarnation in incarnations.items()]
        pending += dispatch.launch(now, alive)
        what = data.draw(st.sampled_from(["answer", "answer", "answer", "late", "die", "infra", "data"]))
        if what == "die":
            index = data.draw(st.integers(0, 1))
            incarnations[index] += 1
            try:
                dead = dispatch.abandon_dead([e.key for e in alive if e.index != index], now)
            except InfraExhausted:
                dispatch.give_up()
                exhausted = True
                break
            past += dead
            pending = [flight for flight in pending if flight not in dead]
        elif what == "late" and past:
            flight = data.draw(st.sampled_from(past))
            dispatch.answered(flight.id, good(flight), now)
        elif pending:
            flight = pending.pop(data.draw(st.integers(0, len(pending) - 1)))
            past.append(flight)
            before = dict(dispatch.results)
            try:
                if what in {"infra", "data"}:
                    dispatch.failed(flight.id, FailureClass(what), what, now)
                else:
                    dispatch.answered(flight.id, good(flight), now)
            except InfraExhausted:
                dispatch.give_up()
                exhausted = True
                break
            assert all(dispatch.results[prompt] is committed for prompt, committed in before.items()), "never replaced"
    accounted = set(dispatch.results) | set(dispatch.skipped)
    assert not set(dispatch.results) & set(dispatch.skipped)
    assert dispatch.counters.lost == ((6 - len(accounted)) * 2 if exhausted else 0)
    assert all(len(committed.outputs) == 2 for committed in dispatch.results.values())
    assert all(dispatch.skipped.values())


def test_counters_miss_nothing_that_several_threads_count() -> None:
    """Steps that overlap (samples made ahead) count at the same time."""
    counters = Counters()
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=lambda: [counters.add("late", 1) for _ in range(2_000)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    assert counters.document()["late"] == 8_000
