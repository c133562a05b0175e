"""Properties 25 and 26 (I13) and the RL coordinator's other promises, over random histories of faults.

Whoever is added to the eligible set is alive, and really has weights of the actor's present incarnation that are young enough;
DEAD never leads to SERVING; of two coordinators the older one's writes never act; and once faults end, everybody serves.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gangflow.coordinators.rl_messages import BeatSeen, BeatsUnknown, HealthSeen
from gangflow.coordinators.rl_state import Limits, RolloutState, verdict
from tests.unit.coordinators.rl_world import LIVE, World

SLOTS = st.integers(0, 2)
NEXT = {
    "PLACED": ["STARTING", "PENDING"],
    "STARTING": ["RUNNING", "EXIT", "LOST"],
    "RUNNING": ["READY", "EXIT", "LOST", "STOPPING"],
    "READY": ["RUNNING", "EXIT", "LOST", "STOPPING"],
    "STOPPING": ["EXIT", "LOST"],
    "EXIT": ["BACKOFF", "RETIRED"],
    "LOST": ["BACKOFF", "RETIRED"],
    "BACKOFF": ["PLACED"],
    "PENDING": ["PLACED"],
    "RETIRED": ["PLACED"],
}


class Histories(RuleBasedStateMachine):
    """Three rollouts, an actor, coordinators that come and go."""

    @initialize(max_staleness=st.integers(0, 2), min_rollouts=st.integers(1, 2), probes=st.booleans(), fencing=st.booleans())
    def begin(self, max_staleness: int, min_rollouts: int, probes: bool, fencing: bool) -> None:
        # No verdicts that end the history: these have their own tests.
        self.limits = Limits(
            max_staleness=max_staleness, min_rollouts=min_rollouts, quorum_ms=10**9, no_progress_ms=10**9, sync_ms=60_000
        )
        self.world = World(self.limits, rollouts=3, probes=probes, fencing=fencing)
        self.world.start()
        self.version = 0
        self.late: list[tuple[int, int, str, int]] = []

    @rule(index=SLOTS, choice=st.integers(0, 3))
    def slot_moves(self, index: int, choice: int) -> None:
        incarnation, phase = self.world.slots[index]
        options = NEXT[phase]
        target = options[choice % len(options)]
        self.late.append((index, incarnation, phase, self.world.seq))
        self.world.move(index, target, incarnation + 1 if target == "PLACED" else None)

    @rule(index=SLOTS, steps=st.integers(1, 4))
    def slot_gets_on(self, index: int, steps: int) -> None:
        """A few steps along the usual way, back to READY."""
        for _ in range(steps):
            if self.world.slots[index][1] != "READY":
                self.slot_moves(index, 0)

    @rule(data=st.data())
    @precondition(lambda self: self.late)
    def old_news_comes_again(self, data: st.DataObject) -> None:
        index, incarnation, phase, seq = data.draw(st.sampled_from(self.late))
        seen = self.world.slot_seen(index)
        if seq < self.world.seq:
            self.world.tell_all(type(seen)(seen.member, index, incarnation, phase, seq))

    @rule()
    def listed_again(self) -> None:
        self.world.tell(self.world.term, self.world.listed())

    @rule(jump=st.integers(1, 3))
    @precondition(lambda self: self.world.actor_phase in LIVE)
    def actor_publishes(self, jump: int) -> None:
        self.version += jump
        self.world.publish(self.version)

    @rule(rewind=st.integers(0, 5))
    def actor_restarts(self, rewind: int) -> None:
        self.world.move_actor("EXIT")
        self.world.move_actor("PLACED", self.world.actor + 1)
        self.world.move_actor("RUNNING")
        self.version = max(0, self.version - rewind)

    @rule(ahead=st.integers(-2, 2))
    def actor_restarts_and_publishes(self, ahead: int) -> None:
        self.actor_restarts(0)
        self.version = max(0, self.version + ahead)
        self.world.publish(self.version)

    @rule(data=st.data(), outcome=st.sampled_from(["ok", "ok", "ok", "ok", "refused", "lost", "silent", "half", "lies"]))
    @precondition(lambda self: self.world.calls)
    def engine_answers(self, data: st.DataObject, outcome: str) -> None:
        if outcome == "lies" and not self.world.probes:
            outcome = "half"  # Without a probe nobody could know.
        self.world.perform(data.draw(st.integers(0, len(self.world.calls) - 1)), outcome)

    @rule(index=SLOTS)
    def engine_forgets(self, index: int) -> None:
        """It started again inside of its process: alive, and with none of the weights that it was given."""
        engine = self.world.engines.get((index, self.world.slots[index][0]))
        if engine is not None:
            engine.weights = engine.content = None
            self.world.overrun.add((index, self.world.slots[index][0]))

    @rule(index=SLOTS)
    def engine_is_audited(self, index: int) -> None:
        self.world.audit(index)

    @rule(times=st.integers(1, 6))
    @precondition(lambda self: self.world.calls)
    def engines_answer(self, times: int) -> None:
        for _ in range(min(times, len(self.world.calls))):
            self.world.perform()

    @rule(data=st.data())
    @precondition(lambda self: self.world.answers)
    def an_answer_comes_twice(self, data: st.DataObject) -> None:
        self.world.tell(*data.draw(st.sampled_from(self.world.answers[-8:])))

    @rule(index=SLOTS, ok=st.booleans())
    def health(self, index: int, ok: bool) -> None:
        self.world.tell_all(HealthSeen(index, self.world.slots[index][0], ok))

    @rule(step=st.integers(0, 3), failing=st.lists(st.tuples(SLOTS, st.integers(1, 3), st.integers(1, 4)), max_size=2))
    def beat(self, step: int, failing: list[tuple[int, int, int]]) -> None:
        self.world.tell_all(BeatSeen(self.world.actor, str(step), tuple(failing)))

    @rule()
    def xce_is_away(self) -> None:
        self.world.tell_all(BeatsUnknown())

    @rule(ms=st.sampled_from([1, 500, 5_000, 20_000]))
    def time_passes(self, ms: int) -> None:
        self.world.wait(ms)

    @rule()
    def coordinator_is_killed(self) -> None:
        """Its verbs that are on their way may still arrive; its successor lists."""
        self.world.coordinators.clear()
        self.world.start()

    @rule()
    def second_coordinator(self) -> None:
        """The first one goes on until somebody refuses it."""
        self.world.start()

    @invariant()
    def published_is_what_ought_to_be(self) -> None:
        if not hasattr(self, "world"):
            return
        assert self.world.eligible is not None
        assert self.world.eligible.term == self.world.term
        assert self.world.eligible == verdict(self.world.state)

    @invariant()
    def two_facts(self) -> None:
        """Who admits also holds; who is dead does neither."""
        for rollout in self.world.state.rollouts if hasattr(self, "world") else ():
            assert not rollout.admits or rollout.holds
            if rollout.state in {RolloutState.DEAD, RolloutState.GONE, RolloutState.RETIRED}:
                assert not rollout.admits
                assert not rollout.holds
                assert rollout.weights is None

    @invariant()
    def never_from_dead_to_serving(self) -> None:
        if not hasattr(self, "world"):
            return
        last: dict[int, tuple[int, RolloutState]] = {}
        for index, incarnation, state in self.world.story:
            if state is RolloutState.SERVING and index in last:
                before = last[index]
                assert before[1] is not RolloutState.DEAD
                assert before[0] == incarnation, "a new incarnation served before it was synced"
            last[index] = (incarnation, state)

    def teardown(self) -> None:
        """Faults end: whoever is wanted and was not judged serves the newest weights of the present actor."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.finish_calls()
        world.move_actor("RUNNING")
        for index in world.slots:
            # It may be judged by that: an engine that is well and answers no request hangs.
            world.tell_all(HealthSeen(index, world.slots[index][0], ok=True))
            _, phase = world.slots[index]
            rollout = world.state.rollout(index)
            if phase != "READY" or (rollout is not None and rollout.reported is not None):
                world.revive(index)
        world.publish(self.version + 1)
        for _ in range(8):
            world.finish_calls()
            for index in world.slots:
                world.audit(index)
            world.wait(1_000)
        assert world.serving() == [0, 1, 2]
        assert world.eligible is not None
        assert world.head is not None
        assert {serving.weights for serving in world.eligible.rollouts} == {world.head.weights}
        truth = {world.engines[serving.key].weights for serving in world.eligible.rollouts}
        assert truth == {world.head.weights}, "an engine lost its weights, was audited, and serves"


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=120,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
