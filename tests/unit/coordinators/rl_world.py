"""XCE, engines and an actor as plain data around the pure reaction: what really is, beside what a coordinator knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gangflow.channel import Eligible, Head, Probe, WeightsId
from gangflow.coordinators.rl_judge import next_deadline
from gangflow.coordinators.rl_messages import (
    Action,
    EngineAnswered,
    EngineCall,
    FailGroup,
    HeadSeen,
    Listed,
    Observation,
    PublishEligible,
    ReportCause,
    SlotSeen,
    Tick,
    VersionSeen,
)
from gangflow.coordinators.rl_reaction import begin, react
from gangflow.coordinators.rl_state import Limits, RLState, RolloutState, Verb

LIVE = {"STARTING", "RUNNING", "READY", "DRAINING", "STOPPING"}
UP = {"RUNNING", "READY", "DRAINING", "STOPPING"}


def sha(actor: int, version: int) -> str:
    return f"{actor:04d}{version:04d}".ljust(64, "0")


@dataclass
class EngineTruth:
    """What one incarnation's process really has."""

    weights: WeightsId | None = None
    """What it says that it has."""
    content: WeightsId | None = None
    """What it really computes with; None: nothing, or a mixture of two."""
    admitting: bool = False
    term: int = 0
    modes: list[str] = field(default_factory=list)
    """Of its pauses."""


@dataclass
class World:
    limits: Limits = field(default_factory=Limits)
    rollouts: int = 2
    probes: bool = False
    """The actor publishes a probe with each version."""
    fencing: bool = True
    """Engines refuse the verbs of an older coordinator; False: they know no terms."""
    overrun: set[tuple[int, int]] = field(default_factory=set)
    """Engines to which an older coordinator did something after a newer one."""
    now: int = 1_000
    seq: int = 10
    term: int = 0
    group_state: str = "RUNNING"
    actor: int = 1
    actor_phase: str = "READY"
    head: Head | None = None
    slots: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Index → (incarnation, phase)."""
    engines: dict[tuple[int, int], EngineTruth] = field(default_factory=dict)
    eligible: Eligible | None = None
    """What the key-value says."""
    calls: list[tuple[int, EngineCall]] = field(default_factory=list)
    """(term, call) on their way."""
    log: list[Action] = field(default_factory=list)
    answers: list[tuple[int, EngineAnswered]] = field(default_factory=list)
    """Every answer that was ever given, with the term of who asked."""
    fenced: set[int] = field(default_factory=set)
    coordinators: dict[int, RLState] = field(default_factory=dict)
    """By term; a fenced one is stopped."""
    broke: dict[tuple[int, int], int] = field(default_factory=dict)
    """(index, incarnation) that was READY and is RUNNING: since when."""
    story: list[tuple[int, int, RolloutState]] = field(default_factory=list)
    """(index, incarnation, state) as the newest coordinator saw them, in order."""

    def __post_init__(self) -> None:
        for index in range(self.rollouts):
            self.slots[index] = (1, "READY")
            self.engines[index, 1] = EngineTruth()

    # --- coordinators

    def start(self) -> int:
        """A coordinator takes its term and lists."""
        self.term += 1
        self.coordinators[self.term] = begin(self.limits, self.term)
        self.tell(self.term, self.listed())
        return self.term

    def listed(self) -> Listed:
        slots = tuple(self.slot_seen(index) for index in sorted(self.slots))
        actor = SlotSeen(self.limits.actor, 0, self.actor, self.actor_phase, self.seq)
        return Listed(self.seq, self.group_state, (actor, *slots), self.head, self.eligible)

    def slot_seen(self, index: int) -> SlotSeen:
        incarnation, phase = self.slots[index]
        since = self.broke.get((index, incarnation)) if phase == "RUNNING" else None
        unready_ms = self.now - since if since is not None else None
        return SlotSeen(self.limits.rollout, index, incarnation, phase, self.seq, url(index), unready_ms)

    def tell(self, term: int, observation: Observation) -> list[Action]:
        """One coordinator observes and acts; a fenced one has stopped."""
        if term in self.fenced or term not in self.coordinators:
            return []
        before = self.coordinators[term]
        state, actions = react(before, observation, self.now)
        self.coordinators[term] = state
        if term == self.term:
            for rollout in state.rollouts:
                entry = (rollout.index, rollout.incarnation, rollout.state)
                old = before.rollout(rollout.index)
                if old is None or (old.incarnation, old.state) != entry[1:]:
                    self.story.append(entry)
        for action in actions:
            if term in self.fenced:
                break  # Its write was refused: the rest is not done.
            self._act(term, action)
        return list(actions)

    def tell_all(self, observation: Observation) -> None:
        for term in sorted(self.coordinators):
            self.tell(term, observation)

    @property
    def state(self) -> RLState:
        return self.coordinators[self.term]

    def _act(self, term: int, action: Action) -> None:
        if term < self.term and not isinstance(action, EngineCall):
            self.fenced.add(term)  # XCE refuses it, and it stops itself.
            return
        self.log.append(action)
        if isinstance(action, PublishEligible):
            self.check_admission(action.value)
            self.eligible = action.value
        elif isinstance(action, EngineCall):
            self.calls.append((term, action))
        elif isinstance(action, FailGroup):
            self.group_state = "STOPPING"

    def check_admission(self, value: Eligible) -> None:
        """I13: whoever is added really has those weights, of the present actor, young enough, loaded by that incarnation."""
        for serving in value.rollouts:
            incarnation, phase = self.slots[serving.index]
            engine = self.engines.get(serving.key)
            known_before = self.eligible is not None and serving in self.eligible.rollouts
            seen = serving.incarnation == incarnation and phase in UP and engine is not None
            if not known_before and seen and serving.key not in self.overrun:
                assert engine is not None
                assert engine.weights == serving.weights, (serving, engine)
                assert engine.admitting, serving
                assert engine.content == serving.weights or not self.probes, (serving, engine)
            assert serving.weights.actor_incarnation == self.state.actor.incarnation
            head = self.state.head
            assert head is not None
            assert head.weights.actor_incarnation == self.state.actor.incarnation
            assert 0 <= head.weights.version - serving.weights.version <= self.limits.max_staleness
            known = self.state.rollout(serving.index)
            assert known is not None
            assert known.incarnation == serving.incarnation
            assert known.state is RolloutState.SERVING

    # --- what happens

    def move(self, index: int, phase: str, incarnation: int | None = None) -> None:
        """XCE moves a slot, and says so to every coordinator."""
        self.seq += 1
        old, last = self.slots[index]
        if (last, phase) == ("READY", "RUNNING"):
            self.broke[index, old] = self.now
        number = old if incarnation is None else incarnation
        self.slots[index] = (number, phase)
        if phase in UP and (index, number) not in self.engines:
            self.engines[index, number] = EngineTruth()
        if phase not in LIVE:
            self.engines.pop((index, number), None)
        self.tell_all(self.slot_seen(index))

    def kill(self, index: int) -> None:
        self.move(index, "EXIT")

    def revive(self, index: int) -> None:
        """The next incarnation, up to READY."""
        incarnation, _ = self.slots[index]
        for phase in ("PLACED", "STARTING", "RUNNING", "READY"):
            self.move(index, phase, incarnation + 1)

    def move_actor(self, phase: str, incarnation: int | None = None) -> None:
        self.seq += 1
        self.actor, self.actor_phase = incarnation or self.actor, phase
        self.tell_all(SlotSeen(self.limits.actor, 0, self.actor, phase, self.seq))

    def publish(self, version: int) -> None:
        weights = WeightsId(self.actor, version, sha(self.actor, version))
        probe = Probe((1, 2), scores(weights)) if self.probes else None
        self.head = Head(weights, f"/w/{self.actor}/{version}", probe)
        self.tell_all(HeadSeen(self.head))

    def perform(self, place: int = 0, outcome: str = "ok") -> None:
        """Carry one verb out and bring its answer.

        `ok`, `refused`, `lost` (done, and the answer never comes), `silent`; of a load also `half` (begun, and failed: nobody
        knows what the engine has) and `lies` (the engine says that it was loaded, and it was not).
        """
        term, call = self.calls.pop(place)
        engine = self.engines.get((call.index, call.incarnation))
        if engine is None or outcome == "silent":
            self._answer(term, call, False, None, "no answer", answered=False)
            return
        if call.verb is not Verb.VERSION:
            if term < engine.term:
                if self.fencing:
                    self.fenced.add(term)
                    return
                self.overrun.add((call.index, call.incarnation))
            engine.term = max(engine.term, term)
        if outcome == "refused":
            self._answer(term, call, False, engine.weights, "refused")
            return
        if call.verb is Verb.LOAD and outcome == "half":
            engine.weights = engine.content = None
            self._answer(term, call, False, None, "the load failed half-way")
            return
        self._carry_out(engine, call)
        if call.verb is Verb.LOAD and outcome == "lies":
            engine.content = None
        if outcome == "lost":
            self._answer(term, call, False, None, "the answer was lost", answered=False)
        else:
            self._answer(term, call, True, engine.weights, logprobs=scores(engine.content))

    def _carry_out(self, engine: EngineTruth, call: EngineCall) -> None:
        if call.verb is Verb.PAUSE:
            engine.admitting = False
            engine.modes.append(call.mode)
        elif call.verb is Verb.LOAD:
            assert call.head is not None
            engine.weights = engine.content = call.head.weights
        elif call.verb is Verb.RESUME:
            engine.admitting = engine.weights is not None
        elif call.verb is Verb.RELEASE:
            engine.admitting, engine.weights, engine.content = False, None, None

    def audit(self, index: int) -> None:
        """The shell asks what an engine has, when none of its own verbs is on its way there."""
        incarnation, _ = self.slots[index]
        engine = self.engines.get((index, incarnation))
        if engine is not None and not any(term == self.term and call.index == index for term, call in self.calls):
            self.tell(self.term, VersionSeen(index, incarnation, engine.weights))

    def _answer(
        self,
        term: int,
        call: EngineCall,
        ok: bool,
        weights: WeightsId | None,
        message: str = "",
        *,
        answered: bool = True,
        logprobs: tuple[float, ...] = (),
    ) -> None:
        answer = EngineAnswered(call.index, call.incarnation, call.call, ok, weights, message, answered, logprobs)
        self.answers.append((term, answer))
        self.tell(term, answer)

    def finish_calls(self) -> None:
        while self.calls:
            self.perform()

    def wait(self, ms: int) -> None:
        """Time passes; ticks come when they are due, and each does what it was due for (or the shell would spin)."""
        end = self.now + ms
        while True:
            due = next_deadline(self.state)
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.tell_all(Tick())
            again = next_deadline(self.state)
            assert again is None or again > self.now, f"a deadline that never passes: {again} at {self.now}: {self.state}"
        self.now = end
        self.tell_all(Tick())

    # --- what a test asks

    def serving(self) -> list[int]:
        return [serving.index for serving in self.eligible.rollouts] if self.eligible else []

    def reports(self) -> list[ReportCause]:
        return [action for action in self.log if isinstance(action, ReportCause)]

    def failures(self) -> list[FailGroup]:
        return [action for action in self.log if isinstance(action, FailGroup)]


def scores(weights: WeightsId | None) -> tuple[float, ...]:
    """What a policy says of the probe: another one for each."""
    return (-1.0 - weights.actor_incarnation - weights.version / 1_000,) if weights else (-99.0,)


def url(index: int) -> str:
    """A slot that restarts in place answers at the same address."""
    return f"http://127.0.0.1:{7000 + index}"


def running(*, probes: bool = False, **limits: Any) -> World:
    """A world whose rollouts serve version 0."""
    world = World(Limits(**limits), probes=probes)
    world.start()
    world.publish(0)
    world.finish_calls()
    return world
