"""The RL channel: what the actor, the coordinator and the rollouts tell each other through a group's durable key-values.

A member knows only XCE, so everything goes through it: the actor's SDK writes `weights/head` and `checkpoint/head`, the
coordinator watches, performs the engine verbs and writes `rollouts/eligible` under its term, and the SDK follows that by its
event stream. These are the values, as frozen words with their JSON; both ends and the engines' adapters share them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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

    def __str__(self) -> str:
        return f"{self.actor_incarnation}/{self.version}/{self.sha256[:8]}"


@dataclass(frozen=True, slots=True)
class Head:
    """The newest published weights and where they lie; every rollout can read the path."""

    weights: WeightsId
    path: str

    def render(self) -> str:
        return json.dumps({**self.weights.document(), "path": self.path})

    @classmethod
    def parse(cls, text: str) -> Head:
        document = _object(text, HEAD)
        return cls(WeightsId.parse(document), str(document.get("path", "")))


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
