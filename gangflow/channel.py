"""The RL channel: what the actor, the coordinator and the rollouts tell each other through a group's durable key-values.

A member knows only XCE, so everything goes through it: the actor's SDK writes `weights/head` and `checkpoint/head`, the
coordinator watches, performs the engine verbs and writes `rollouts/eligible` under its term, and the SDK follows that by its
event stream. These are the values, as frozen words with their JSON; both ends and the engines' adapters share them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

HEAD = "weights/head"
ELIGIBLE = "rollouts/eligible"
CHECKPOINT = "checkpoint/head"
FAILURE = "trainer/failure"
"""Written by the actor's SDK when it must stop for a reason that no exit code can say (a POLICY failure)."""

TERM_HEADER = "XCE-Term"
INCARNATION_HEADER = "XCE-Incarnation"
"""With every verb that a coordinator sends to an engine: who commands, and which life of the engine is meant."""

ROLE_KEY = "gangflow"
"""The part of a heartbeat's body that the SDK fills itself; the rest is the program's own."""


@dataclass(frozen=True, slots=True)
class WeightsId:
    """What the policy is. After a rewind version 12 is another policy than the old version 12, and has another id."""

    actor_incarnation: int
    version: int
    sha256: str

    def document(self) -> dict[str, Any]:
        """As JSON: what goes over the wire and into the journal."""
        return {"actor_incarnation": self.actor_incarnation, "version": self.version, "sha256": self.sha256}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> WeightsId:
        """ValueError when a part is missing or not what it should be."""
        try:
            return cls(int(document["actor_incarnation"]), int(document["version"]), str(document["sha256"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a weights id: {document!r}") from error

    def label(self) -> str:
        """As an engine carries it that knows weights by a name: `1/80/<sha256>`."""
        return f"{self.actor_incarnation}/{self.version}/{self.sha256}"

    @classmethod
    def from_label(cls, text: str) -> WeightsId | None:
        """The id that a label says; None for every other name (`default`, one of somebody else's)."""
        match = _LABEL.fullmatch(text)
        return cls(int(match[1]), int(match[2]), match[3]) if match else None

    def __str__(self) -> str:
        return f"{self.actor_incarnation}/{self.version}/{self.sha256[:8]}"


_LABEL = re.compile(r"(\d+)/(\d+)/([0-9a-f]{64})", re.ASCII)


class Difference(NamedTuple):
    """Of log-probabilities of the same tokens, in nats."""

    largest: float
    mean: float


@dataclass(frozen=True, slots=True)
class Probe:
    """What the trainer's new policy says of a few tokens: an engine that says otherwise did not load that policy."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """`logprobs[i]` is the log-probability (natural, temperature 1) of `tokens[i + 1]` after `tokens[: i + 1]`."""

    def __post_init__(self) -> None:
        if len(self.tokens) < 2 or len(self.logprobs) != len(self.tokens) - 1:
            raise ValueError(f"a probe of {len(self.tokens)} tokens needs one log-probability less, not {len(self.logprobs)}")
        if not all(math.isfinite(logprob) for logprob in self.logprobs):
            raise ValueError("a probe's log-probabilities are finite: this policy is broken")

    def difference(self, found: Sequence[float]) -> Difference:
        """|trainer − engine|; infinite when the engine gave another number of them, or one that is not finite."""
        if len(found) != len(self.logprobs) or not all(math.isfinite(logprob) for logprob in found):
            return Difference(math.inf, math.inf)
        apart = [abs(mine - theirs) for mine, theirs in zip(self.logprobs, found, strict=True)]
        return Difference(max(apart), sum(apart) / len(apart))

    def document(self) -> dict[str, Any]:
        return {"tokens": list(self.tokens), "logprobs": list(self.logprobs)}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Probe:
        """ValueError when it is none."""
        try:
            tokens, logprobs = document["tokens"], document["logprobs"]
            return cls(tuple(int(token) for token in tokens), tuple(float(logprob) for logprob in logprobs))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a probe: {document!r}") from error


@dataclass(frozen=True, slots=True)
class Head:
    """The newest published weights and where they lie; every rollout can read the path."""

    weights: WeightsId
    path: str
    probe: Probe | None = None
    """How an engine is asked, before it serves them, whether it really has them."""
    seal: str = ""
    """By which whoever sees the path knows, without reading it, that it is what was hashed (`gangflow.member.digest.seal`)."""

    def render(self) -> str:
        probe = {"probe": self.probe.document()} if self.probe else {}
        seal = {"seal": self.seal} if self.seal else {}
        return json.dumps({**self.weights.document(), "path": self.path, **probe, **seal})

    @classmethod
    def parse(cls, text: str) -> Head:
        document = _object(text, HEAD)
        probe = Probe.parse(document["probe"]) if document.get("probe") else None
        return cls(WeightsId.parse(document), str(document.get("path", "")), probe, str(document.get("seal", "")))


@dataclass(frozen=True, slots=True)
class Serving:
    """A rollout that may be asked: this incarnation, at this address, with these weights."""

    index: int
    incarnation: int
    url: str
    weights: WeightsId

    @property
    def key(self) -> tuple[int, int]:
        return (self.index, self.incarnation)


@dataclass(frozen=True, slots=True)
class Eligible:
    """Who may be sent new work (`rollouts`), and who may still finish what it was sent (`holding`): two separate facts.

    A rollout that is not in `holding` is dead or judged so: what it was working on is dispatched again at once.
    """

    membership_version: int = 0
    """Grows whenever `members` changes; a collective is valid only for the version that it was built with."""
    term: int = 0
    """Of the coordinator that wrote it."""
    weights: WeightsId | None = None
    """The head that these were judged against."""
    rollouts: tuple[Serving, ...] = ()
    members: tuple[tuple[int, int], ...] = ()
    """(index, incarnation) of the engines that answer, with whatever weights."""
    holding: tuple[tuple[int, int], ...] = ()
    """(index, incarnation) of every engine that may finish running work: the members, and those that drain."""

    def render(self) -> str:
        return json.dumps(
            {
                "membership_version": self.membership_version,
                "term": self.term,
                "weights": self.weights.document() if self.weights else None,
                "rollouts": [
                    {"index": r.index, "incarnation": r.incarnation, "url": r.url, "weights": r.weights.document()}
                    for r in self.rollouts
                ],
                "members": [list(key) for key in self.members],
                "holding": [list(key) for key in self.holding],
            }
        )

    @classmethod
    def parse(cls, text: str) -> Eligible:
        document = _object(text, ELIGIBLE)
        try:
            weights = document.get("weights")
            return cls(
                membership_version=int(document["membership_version"]),
                term=int(document.get("term", 0)),
                weights=WeightsId.parse(weights) if weights else None,
                rollouts=tuple(
                    Serving(int(r["index"]), int(r["incarnation"]), str(r["url"]), WeightsId.parse(r["weights"]))
                    for r in document.get("rollouts", ())
                ),
                members=_keys(document, "members"),
                holding=_keys(document, "holding"),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{ELIGIBLE} is not what a coordinator writes: {text[:200]}") from error


def _keys(document: Mapping[str, Any], name: str) -> tuple[tuple[int, int], ...]:
    return tuple((int(index), int(incarnation)) for index, incarnation in document.get(name, ()))


def _object(text: str, name: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{name} is not JSON: {text[:200]}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{name} is not a JSON object: {text[:200]}")
    return document
