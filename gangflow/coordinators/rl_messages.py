"""What an RL coordinator is told (observations) and what it asks for (actions). Pure words, no decisions."""

from __future__ import annotations

from dataclasses import dataclass

from gangflow.channel import Eligible, Head, WeightsId
from gangflow.coordinators.engine import PauseMode
from gangflow.coordinators.rl_state import Cause, Verb

# --- observations ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotSeen:
    """What XCE says of a slot: `phase` is its SlotState. `url` is known from a list only."""

    member: str
    index: int
    incarnation: int
    phase: str
    seq: int
    url: str = ""
    unready_ms: int | None = None
    """RUNNING, and this incarnation was READY before: for how long it has not been. None: not so, it comes up."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The group as a whole at position `seq`, and its key-values; at the start, and whenever it is listed again."""

    seq: int
    group_state: str
    slots: tuple[SlotSeen, ...]
    head: Head | None = None
    published: Eligible | None = None
    """What `rollouts/eligible` says; adopted by the first list only."""


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """The group's own state."""

    state: str
    seq: int


@dataclass(frozen=True, slots=True)
class HeadSeen:
    """The actor published."""

    head: Head


@dataclass(frozen=True, slots=True)
class TrainerFailed:
    """The actor's SDK says that it must stop (a POLICY failure)."""

    incarnation: int
    message: str


@dataclass(frozen=True, slots=True)
class EngineAnswered:
    """A verb's outcome. `answered` False: silence, or a broken connection."""

    index: int
    incarnation: int
    call: int
    ok: bool
    weights: WeightsId | None = None
    """Of load and version: what the engine has now."""
    message: str = ""
    answered: bool = True
    logprobs: tuple[float, ...] = ()
    """Of generate: what the engine says of the probe."""


@dataclass(frozen=True, slots=True)
class HealthSeen:
    """One health check."""

    index: int
    incarnation: int
    ok: bool


@dataclass(frozen=True, slots=True)
class VersionSeen:
    """What an engine says that it has, asked while nothing else was: one that lost its weights, or was given others."""

    index: int
    incarnation: int
    weights: WeightsId | None


@dataclass(frozen=True, slots=True)
class BeatSeen:
    """A heartbeat of the actor. `progress` changes when it got on."""

    incarnation: int
    progress: str
    failing: tuple[tuple[int, int, int], ...] = ()
    """(index, incarnation, requests in a row that failed) of rollouts."""
    age_ms: int = 0


@dataclass(frozen=True, slots=True)
class BeatMissing:
    """XCE knows no heartbeat of the actor, and would for `age_ms`: it keeps them in memory only."""

    age_ms: int


@dataclass(frozen=True, slots=True)
class BeatsUnknown:
    """XCE does not answer, or has just started: silence means nothing."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing but time."""


Observation = (
    SlotSeen
    | Listed
    | GroupSeen
    | HeadSeen
    | TrainerFailed
    | EngineAnswered
    | HealthSeen
    | VersionSeen
    | BeatSeen
    | BeatMissing
    | BeatsUnknown
    | Tick
)

# --- actions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PublishEligible:
    """Write `rollouts/eligible`; nothing that follows in the same list may happen before it is durable."""

    value: Eligible


@dataclass(frozen=True, slots=True)
class EngineCall:
    """Ask an engine for something; its outcome comes back as `EngineAnswered` with the same number."""

    verb: Verb
    index: int
    incarnation: int
    url: str
    call: int
    timeout_ms: int
    head: Head | None = None
    """Of load: what to load. Of generate: whose probe."""
    mode: PauseMode = "wait"
    """Of pause."""
    membership_version: int = 0
    """Of load: the set of engines that it belongs to."""


@dataclass(frozen=True, slots=True)
class ReportCause:
    """Tell XCE what it cannot see; its rules decide."""

    member: str
    index: int
    incarnation: int
    cause: Cause
    message: str


@dataclass(frozen=True, slots=True)
class FailGroup:
    """End the group as FAILED."""

    cause: str
    message: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The group has ended: so has this coordinator."""

    group_state: str


Action = PublishEligible | EngineCall | ReportCause | FailGroup | Stop
