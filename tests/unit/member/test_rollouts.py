"""`context.rollouts` with threads, over an XCE in memory and a wire that a test answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from gangflow.channel import ELIGIBLE, Eligible, Serving, WeightsId
from gangflow.errors import NoQuorum
from gangflow.member import rollouts as module
from gangflow.member.dispatch import Answer
from gangflow.member.endpoints import Endpoint
from gangflow.member.failures import FailureClass, PolicyMismatch
from gangflow.member.follow import Follower
from gangflow.member.io import IoThread
from gangflow.member.ledger import Ledger
from gangflow.member.rollouts import Rollouts
from gangflow.member.samples import Published
from gangflow.member.wire import Asked, RequestFailed
from tests.unit.member.fake_xce import FakeXce

DEADLINE_S = 10.0


@dataclass
class Ask:
    """A request that waits for the test's answer."""

    target: Endpoint
    asked: Asked
    answer: Future[dict[int, Answer]] = field(default_factory=Future)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def succeed(self) -> None:
        made = {
            n: Answer(tuple(f"{self.asked.prompts[i]}→{s}" for s in ids), (self.target.weights,) * len(ids))
            for i, (n, ids) in enumerate(zip(self.asked.numbers, self.asked.sample_ids, strict=True))
        }
        self.answer.set_result(made)

    def fail(self, failure: FailureClass, message: str = "boom", *, refused: bool = False) -> None:
        self.answer.set_exception(RequestFailed(failure, message, refused=refused))


class Held:
    """A wire on which every request waits."""

    def __init__(self) -> None:
        self.asks: list[Ask] = []
        self._came = threading.Condition()
        self.automatic = False

    async def generate(self, target: Endpoint, asked: Asked, timeout_s: float) -> dict[int, Answer]:
        ask = Ask(target, asked)
        if self.automatic:
            ask.succeed()
        with self._came:
            self.asks.append(ask)
            self._came.notify_all()
        try:
            return await asyncio.wrap_future(ask.answer)
        except asyncio.CancelledError:
            ask.cancelled.set()
            raise

    async def close(self) -> None:
        pass

    def take(self, count: int) -> list[Ask]:
        """The next `count` requests, once they have come."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.asks) >= count, DEADLINE_S), f"{len(self.asks)} of {count} came"
            taken, self.asks = self.asks[:count], self.asks[count:]
            return taken


class Room:
    """An actor with two rollouts; `admit` is the coordinator."""

    def __init__(self, **coordinator: Any) -> None:
        self.xce = FakeXce({"actor": 1, "rollout": 2}, coordinator={"quorum_timeout": "10s", **coordinator})
        self.xce.ready("rollout", 0, "10.0.0.0:1")
        self.xce.ready("rollout", 1, "10.0.0.1:1")
        self.published = Published(1, coordinator.get("max_staleness", 0))
        self.follower = Follower(self.xce, "g1")
        self.wire = Held()
        self.io = IoThread()
        self.beats = 0
        self.told: list[PolicyMismatch] = []
        self.rollouts = Rollouts(
            self.follower, self.published, Ledger("g1"), self.io, beat=self._beat, on_policy=self.told.append, wire=self.wire
        )
        self.pool = ThreadPoolExecutor(4)

    def _beat(self) -> None:
        self.beats += 1

    def publish(self, version: int) -> WeightsId:
        weights = WeightsId(1, version, str(version).rjust(64, "0"))
        self.published.add(weights)
        return weights

    def admit(
        self,
        weights: WeightsId,
        *indices: int,
        holding: tuple[int, ...] | None = None,
        members: tuple[int, ...] | None = None,
    ) -> None:
        holding = members if holding is None else holding
        keys = {index: (index, self.xce.slots["rollout", index].incarnation) for index in (0, 1)}
        value = Eligible(
            1, 1, weights,
            tuple(Serving(*keys[index], f"http://10.0.0.{index}:1", weights) for index in indices),
            tuple(keys[index] for index in (indices if members is None else members)),
            tuple(keys[index] for index in (indices if holding is None else holding)),
        )  # fmt: skip
        self.xce.write(ELIGIBLE, value.render())

    def call(self, *args: Any, **kwargs: Any) -> Future[Any]:
        return self.pool.submit(self.rollouts.generate, *args, **kwargs)

    def close(self) -> None:
        self.follower.close()
        for ask in self.wire.asks:
            ask.answer.cancel()
        self.rollouts.close()
        self.pool.shutdown(wait=False)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Room]]:
    monkeypatch.setattr(module, "QUORUM_GRACE_S", 0.0)
    rooms: list[Room] = []

    def make(**coordinator: Any) -> Room:
        rooms.append(Room(**coordinator))
        return rooms[-1]

    yield make
    for made in rooms:
        made.close()


def test_samples_come_in_the_order_of_the_prompts_from_all_eligible(room: Callable[..., Room]) -> None:
    here = room()
    here.wire.automatic = True
    here.admit(here.publish(0), 0, 1)
    groups = here.rollouts.generate(["a", "b", "c", "d"], 2, {"temperature": 1}, step=0)
    assert [group.outputs for group in groups] == [[f"{p}→g1/0/{n}/{i}" for i in (0, 1)] for n, p in enumerate("abcd")]
    assert {sample.rollout for group in groups for sample in group.samples} == {0, 1}
    assert here.rollouts.counters.committed == 8


def test_a_rollout_that_dies_mid_generation_costs_nothing(room: Callable[..., Room]) -> None:
    """Scenario 53: its work is asked for elsewhere at once: nothing lost, nothing twice, its late result dropped."""
    here = room()
    here.admit(here.publish(0), 0, 1)
    call = here.call(["a", "b"], 2, step=0, chunk=1)
    asks = {ask.target.index: ask for ask in here.wire.take(2)}
    here.xce.slot("rollout", 0, "EXIT")
    (again,) = here.wire.take(1)
    assert again.target.index == 1
    assert again.asked.prompts == asks[0].asked.prompts
    assert asks[0].cancelled.wait(DEADLINE_S), "nobody waits for the dead one"
    again.succeed()
    asks[1].succeed()
    groups = call.result(DEADLINE_S)
    assert [len(group.samples) for group in groups] == [2, 2]
    counters = here.rollouts.counters
    assert (counters.committed, counters.redispatched, counters.lost, counters.duplicates) == (4, 2, 0, 0)


def test_a_syncing_rollout_may_finish_what_it_began(room: Callable[..., Room]) -> None:
    """Scenario 46: deregistered is not dead: in-flight work of a rollout that holds it is not asked for again."""
    here = room(max_staleness=1)
    head = here.publish(0)
    here.admit(head, 0)
    call = here.call(["a"], 1, step=0)
    (ask,) = here.wire.take(1)
    here.admit(head, holding=(0,))
    assert here.follower.wait(lambda picture: not picture.endpoints("rollout"), DEADLINE_S)
    ask.succeed()
    assert call.result(DEADLINE_S)[0].outputs == ["a→g1/0/0/0"]
    assert here.rollouts.counters.redispatched == 0


def test_a_rollout_judged_hung_is_not_waited_for(room: Callable[..., Room]) -> None:
    """The coordinator's verdict counts although XCE still sees the process alive."""
    here = room()
    head = here.publish(0)
    here.admit(head, 0)
    call = here.call(["a"], 1, step=0)
    here.wire.take(1)
    here.admit(head, 1)
    (again,) = here.wire.take(1)
    assert again.target.index == 1
    again.succeed()
    assert call.result(DEADLINE_S)[0].samples[0].attempt == 2


def test_after_a_publish_the_old_eligible_set_is_not_used(room: Callable[..., Room]) -> None:
    """I13: the coordinator may be slower than the actor; nothing is sent to weights that are too old."""
    here = room()
    here.admit(here.publish(0), 0, 1)
    assert here.follower.wait(lambda picture: len(picture.endpoints("rollout")) == 2, DEADLINE_S)
    head = here.publish(1)
    assert here.rollouts.eligible() == ()
    call = here.call(["a"], 1, step=1)
    here.admit(head, 1)
    (ask,) = here.wire.take(1)
    assert ask.target.weights == head
    ask.succeed()
    call.result(DEADLINE_S)


def test_what_would_be_too_old_when_it_is_trained_on_is_neither_asked_for_nor_committed(room: Callable[..., Room]) -> None:
    """I13, of a step that is sampled ahead: at step 2 version 0 is two versions old, though it may serve beside version 1."""
    here = room(max_staleness=1)
    old, head = here.publish(0), here.publish(1)
    here.admit(old, 0)
    assert [endpoint.weights for endpoint in here.rollouts.eligible()] == [old]
    ahead = here.call(["a"], 1, step=2, oldest=1)
    now = here.call(["b"], 1, step=1)
    (ask,) = here.wire.take(1)
    assert ask.asked.prompts == ["b"]
    ask.succeed()
    assert now.result(DEADLINE_S)[0].samples[0].weights == old
    here.admit(head, 1)
    (ask,) = here.wire.take(1)
    # One that began before it was brought the newest says so itself.
    ask.answer.set_result({0: Answer(("a",), (old,))})
    (again,) = here.wire.take(1)
    again.succeed()
    assert ahead.result(DEADLINE_S)[0].samples[0].weights == head
    assert here.rollouts.counters.stale == 1


def test_it_waits_for_the_quorum_and_beats_meanwhile(room: Callable[..., Room]) -> None:
    here = room(min_rollouts=2)
    head = here.publish(0)
    here.admit(head, 0)
    here.wire.automatic = True
    call = here.call(["a"], 1, step=0)
    assert here.follower.wait(lambda picture: len(picture.endpoints("rollout")) == 1, DEADLINE_S)
    assert not call.done()
    here.admit(head, 0, 1)
    call.result(DEADLINE_S)
    assert here.beats > 0


def test_without_a_quorum_it_ends_with_that_reason(room: Callable[..., Room]) -> None:
    """Scenario 50: bounded by quorum_timeout, never a poll of an empty buffer until the wall time."""
    here = room(quorum_timeout="0s")
    here.publish(0)
    with pytest.raises(NoQuorum, match="0 rollouts are eligible, 1 are needed"):
        here.rollouts.generate(["a"], 1, step=0)


def test_losing_every_rollout_in_the_middle_counts_what_is_lost(room: Callable[..., Room]) -> None:
    here = room(quorum_timeout="0s")
    here.admit(here.publish(0), 0)
    call = here.call(["a", "b"], 2, step=0, chunk=2)
    here.wire.take(1)
    here.xce.slot("rollout", 0, "EXIT")
    with pytest.raises(NoQuorum):
        call.result(DEADLINE_S)
    assert here.rollouts.counters.lost == 4
    assert here.rollouts.counters.committed == 0


def test_a_failed_prompt_is_skipped_and_has_no_samples(room: Callable[..., Room]) -> None:
    """Scenario 51: a failure is told as one: no output, no reward of 0."""
    here = room()
    here.admit(here.publish(0), 0)
    call = here.call(["a"], 1, step=0)
    here.wire.take(1)[0].fail(FailureClass.DATA, "too long")
    (group,) = call.result(DEADLINE_S)
    assert (group.skipped, group.samples, group.outputs) == ("too long", (), [])
    assert here.rollouts.counters.skipped == 1


def test_whatever_is_not_classed_is_data(room: Callable[..., Room]) -> None:
    here = room()
    here.admit(here.publish(0), 0)
    call = here.call(["a"], 1, step=0)
    here.wire.take(1)[0].answer.set_exception(ZeroDivisionError("surprise"))
    assert call.result(DEADLINE_S)[0].skipped == "ZeroDivisionError: surprise"


def test_policy_is_told_and_raised(room: Callable[..., Room]) -> None:
    here = room()
    here.admit(here.publish(0), 0)
    call = here.call(["a"], 1, step=0)
    here.wire.take(1)[0].fail(FailureClass.POLICY, "reference differs")
    with pytest.raises(PolicyMismatch, match="reference differs"):
        call.result(DEADLINE_S)
    assert [error.message for error in here.told] == ["rollout[0]: reference differs"]


def test_requests_that_fail_in_a_row_are_a_streak_and_refusals_are_not(room: Callable[..., Room]) -> None:
    here = room()
    here.admit(here.publish(0), 0, 1)
    call = here.call(["a"], 1, step=0)
    here.wire.take(1)[0].fail(FailureClass.INFRA, "timed out")
    second = here.wire.take(1)[0]
    assert here.rollouts.streaks() == {"0": [1, 1]}
    second.fail(FailureClass.INFRA, "paused", refused=True)
    third = here.wire.take(1)[0]
    assert here.rollouts.streaks() == {"0": [1, 1]}
    third.succeed()
    call.result(DEADLINE_S)
    assert here.rollouts.streaks() == ({} if third.target.index == 0 else {"0": [1, 1]})


def test_a_step_in_the_checkpoint_is_not_generated_again(room: Callable[..., Room]) -> None:
    here = room()
    here.wire.automatic = True
    here.admit(here.publish(0), 0)
    here.rollouts.generate(["a"], 1, step=4)
    here.rollouts.reset(Ledger.parse(here.rollouts.ledger.through(4).render()))
    with pytest.raises(ValueError, match="step 4 is in the checkpoint"):
        here.rollouts.generate(["a"], 1, step=4)
    assert here.rollouts.generate(["a"], 1, step=5)[0].outputs == ["a→g1/5/0/0"]


def test_two_calls_of_one_step_have_different_samples(room: Callable[..., Room]) -> None:
    here = room()
    here.wire.automatic = True
    here.admit(here.publish(0), 0)
    ids = [here.rollouts.generate(["a"], 1, step=0)[0].samples[0].id for _ in range(2)]
    assert [str(sample) for sample in ids] == ["g1/0/0/0", "g1/0/1/0"]
    assert here.rollouts.counters.duplicates == 0


def test_one_that_still_gets_its_weights_is_left_its_share(room: Callable[..., Room]) -> None:
    """After a push the first one that is back must not be given everything."""
    here = room()
    head = here.publish(0)
    here.admit(head, 0, members=(0, 1))
    call = here.call(list("abcdefgh"), 1, step=0)
    first = here.wire.take(2)
    assert [ask.asked.prompts for ask in first] == [["a", "b"], ["c", "d"]]
    here.admit(head, 0, 1)
    second = here.wire.take(2)
    assert {ask.target.index for ask in first} == {0}
    assert {ask.target.index for ask in second} == {1}
    for ask in (*first, *second):
        ask.succeed()
    assert [group.number for group in call.result(DEADLINE_S)] == list(range(8))


def test_looking_is_not_committed(room: Callable[..., Room]) -> None:
    here = room()
    here.wire.automatic = True
    here.admit(here.publish(0), 0)
    assert here.rollouts.generate(["a"], 1)[0].outputs == ["a→g1/look/0/0"]
    assert here.rollouts.counters.committed == 0


def test_more_steps_than_staleness_allows_are_not_made_at_once(room: Callable[..., Room]) -> None:
    """The admission bound: what would be too old when it is trained on is not produced."""
    here = room(max_staleness=0)
    here.admit(here.publish(0), 0, 1)
    first = here.call(["a"], 1, step=0)
    (ask,) = here.wire.take(1)
    second = here.call(["b"], 1, step=1)
    here.admit(WeightsId(1, 0, "0".rjust(64, "0")), 0, 1)
    ask.succeed()
    first.result(DEADLINE_S)
    (next_ask,) = here.wire.take(1)
    assert next_ask.asked.prompts == ["b"]
    next_ask.succeed()
    second.result(DEADLINE_S)


@pytest.mark.parametrize(("kwargs", "said"), [({"samples_per_prompt": 0}, "at least 1"), ({"step": -1}, "from 0")])
def test_wrong_arguments(room: Callable[..., Room], kwargs: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        room().rollouts.generate(["a"], **kwargs)


def test_nothing_asked_nothing_sent(room: Callable[..., Room]) -> None:
    assert room().rollouts.generate([], step=0) == []
