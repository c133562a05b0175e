"""Samples, who made them with which weights, and whether they may be trained on."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from gangflow.channel import WeightsId


@dataclass(frozen=True, slots=True, order=True)
class SampleId:
    """The identity of one sample, whichever rollout makes it at whichever attempt: commits are idempotent by this."""

    run: str
    prompt: str
    """`<step>/<number>`: the n-th prompt of a step."""
    index: int
    """Within the prompt's group of samples."""

    def __str__(self) -> str:
        return f"{self.run}/{self.prompt}/{self.index}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample as it is committed."""

    id: SampleId
    output: Any
    """What the engine answered for it: JSON, as the rollout's program made it."""
    weights: WeightsId | None
    """What it was made with; None when the group has no coordinator."""
    rollout: int
    incarnation: int
    attempt: int
    """1 when the first dispatch succeeded."""


@dataclass(frozen=True, slots=True)
class PromptSamples:
    """One prompt with its whole group of samples, or the reason why it was skipped (never a reward of 0)."""

    number: int
    """Its place in the `prompts` that were asked for."""
    prompt: Any
    samples: tuple[Sample, ...] = ()
    skipped: str = ""
    """Empty, or the failure for which this prompt was skipped; it then has no samples."""

    @property
    def outputs(self) -> list[Any]:
        return [sample.output for sample in self.samples]


@dataclass(slots=True)
class Counters:
    """What happened to samples since this process started. Every one that was asked for is committed, skipped or lost."""

    committed: int = 0
    redispatched: int = 0
    """Asked for again elsewhere: their rollout died, failed, or was too old."""
    lost: int = 0
    """Given up: asked for, and neither committed nor skipped."""
    duplicates: int = 0
    """Committed a second time. Anything but 0 is a fault; what would have become one is in `late`."""
    late: int = 0
    """Results of an older attempt, dropped."""
    stale: int = 0
    """Results that were too old to be trained on, dropped and asked for again."""
    skipped: int = 0
    _counting: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    """Steps that overlap are counted by several threads."""

    def add(self, name: str, count: int) -> None:
        """So many more of one kind, none of them missed."""
        with self._counting:
            setattr(self, name, getattr(self, name) + count)

    def document(self) -> dict[str, int]:
        """All of them, by name."""
        return {name: getattr(self, name) for name in self.__slots__ if not name.startswith("_")}


class Verdict:
    """What the staleness check says of one sample."""

    USABLE = "usable"
    STALE = "stale"
    """Too old, or of another life of the actor: dropped, and asked for again."""
    MISMATCH = "mismatch"
    """Not what was published under that version: POLICY."""


VERSIONS_KEPT = 64
"""As long as `max_staleness` is not known."""


@dataclass(slots=True)
class Published:
    """The weights ids that this incarnation of the actor published, and how old a sample may be."""

    incarnation: int
    max_staleness: int | None = None
    """None: not known yet; it comes with the first picture of the group."""
    versions: dict[int, str] = field(default_factory=dict)
    """Version → sha256. Bounded: what is much older than `max_staleness` can never be usable again."""
    current: int = -1
    """-1: nothing was published yet."""

    def add(self, weights: WeightsId) -> None:
        self.versions[weights.version] = weights.sha256
        self.current = weights.version
        kept = VERSIONS_KEPT if self.max_staleness is None else self.max_staleness
        for version in [old for old in self.versions if old < self.current - kept]:
            del self.versions[version]

    def age(self, oldest: WeightsId) -> int:
        """Trainer version − oldest version in the sample."""
        return self.current - oldest.version

    def judge(self, weights: WeightsId | None, oldest: int = 0) -> str:
        """Usable iff it belongs to this incarnation, its age is at most `max_staleness`, and it is not before `oldest`."""
        if self.current < 0 or weights is None:
            # Nothing was published: the engines serve what they started with, and there is no version to compare.
            return Verdict.USABLE if self.current < 0 else Verdict.MISMATCH
        if weights.actor_incarnation != self.incarnation or weights.version < oldest:
            return Verdict.STALE
        if self.age(weights) > (self.max_staleness or 0):
            return Verdict.STALE
        return Verdict.USABLE if self.versions.get(weights.version) == weights.sha256 else Verdict.MISMATCH
