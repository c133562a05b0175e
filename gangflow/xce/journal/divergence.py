"""Where a replay left its journal, explained: which batch, from which inputs, which event, which of its fields. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from gangflow.xce.core.events import ClaimChanged, ClaimForgotten, CommandAnswered, Event
from gangflow.xce.core.inputs import Input
from gangflow.xce.core.state import State, TaskKey
from gangflow.xce.journal.record import Batch

ABSENT = "(nothing)"
"""What stands where only one side has a field, or an event."""


class Kind(StrEnum):
    """In what a replay differs from its journal."""

    EVENTS = "events"
    """Other decisions."""
    BATCH = "batch"
    """The same decisions, at another time or in another term."""
    FAULT = "fault"
    """The machine could not take the inputs at all."""
    IMAGE = "image"
    """The decisions agree, and a state image that was taken there says something else."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One field: where, what the journal has, what the replay decided."""

    path: str
    """As in the record: `tasks[0].host`; empty for the event as a whole."""
    recorded: Any
    replayed: Any


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first batch whose replay is not what the journal has."""

    kind: Kind
    first_seq: int
    last_seq: int
    at_ms: int
    term: int
    code: str
    """The version of gangflow that decided."""
    inputs: tuple[Input, ...]
    recorded: tuple[Event, ...]
    replayed: tuple[Event, ...]
    position: int = 0
    """Of the first event that differs, in the batch; its seq is `first_seq + position`."""
    differences: tuple[Difference, ...] = ()
    """Of that event, or of the image."""
    about: str = ""
    """The entity that the event is about: `slot g1.rollout[2]`, `host h3`, …"""
    fault: str = ""
    """What the machine said, when it could not take the inputs."""

    @property
    def seq(self) -> int:
        """Of the first event that differs."""
        return self.first_seq + self.position

    @classmethod
    def of(cls, kind: Kind, batch: Batch, replayed: Sequence[Event] = (), position: int = 0, *, fault: str = "") -> Divergence:
        """A batch that differs; with `Kind.EVENTS`, from the event at `position` on."""
        found: tuple[Difference, ...] = ()
        subject = None
        if kind is Kind.EVENTS:
            old, new = (each[position] if position < len(each) else None for each in (batch.events, replayed))
            found, subject = compare(old, new), old if old is not None else new
        return cls(
            kind,
            batch.first_seq,
            batch.last_seq,
            batch.now_ms,
            batch.term,
            batch.code,
            batch.inputs,
            batch.events,
            tuple(replayed),
            position,
            found,
            about(subject) if subject is not None else "",
            fault,
        )


def about(event: Event) -> str:
    """The entity that an event is about, as people name it."""
    if isinstance(event, ClaimChanged | ClaimForgotten):
        return f"claim {event.claim if isinstance(event, ClaimForgotten) else event.claim.id}"
    if isinstance(event, CommandAnswered):
        return f"the answer to the command {event.key}"
    task: TaskKey | None = getattr(event, "task", None)
    if task is not None:
        return f"slot {task.group}.{task.member}[{task.index}]"
    group, member = getattr(event, "group", ""), getattr(event, "member", "")
    if group and member:
        index = getattr(event, "index", -1)
        return f"slot {group}.{member}[{index}]" if index >= 0 else f"member {group}.{member}"
    if group:
        return f"group {group}"
    facts = getattr(event, "facts", None)
    host = facts.name if facts is not None else getattr(event, "host", "")
    return f"host {host}" if host else "the cluster"


def compare(recorded: Event | None, replayed: Event | None) -> tuple[Difference, ...]:
    """The fields in which two events differ; one difference of the whole when they are of two kinds, or one is missing."""
    if recorded is None or replayed is None or type(recorded) is not type(replayed):
        names = [ABSENT if each is None else type(each).__name__ for each in (recorded, replayed)]
        return (Difference("", names[0], names[1]),)
    return tuple(differences(msgspec.to_builtins(recorded), msgspec.to_builtins(replayed)))


def compare_states(recorded: State, replayed: State) -> Iterator[Difference]:
    """The fields in which two states differ, the order of their mappings included."""
    return differences(*(msgspec.to_builtins(state, enc_hook=dict) for state in (recorded, replayed)))


def differences(recorded: Any, replayed: Any, path: str = "") -> Iterator[Difference]:
    """Where two plain values differ, as deep as it can be told."""
    if isinstance(recorded, dict) and isinstance(replayed, dict):
        for key in [*recorded, *(key for key in replayed if key not in recorded)]:
            where = f"{path}.{_word(key)}" if path else _word(key)
            yield from differences(recorded.get(key, ABSENT), replayed.get(key, ABSENT), where)
        if list(recorded) != list(replayed) and recorded == replayed:
            yield Difference(f"{path} (its order)", [*map(_word, recorded)], [*map(_word, replayed)])
    elif isinstance(recorded, list | tuple) and isinstance(replayed, list | tuple):
        for index in range(max(len(recorded), len(replayed))):
            yield from differences(_at(recorded, index), _at(replayed, index), f"{path}[{index}]")
    elif recorded != replayed or type(recorded) is not type(replayed):
        yield Difference(path, recorded, replayed)


def _at(values: Sequence[Any], index: int) -> Any:
    return values[index] if index < len(values) else ABSENT


def _word(key: Any) -> str:
    """A key of a mapping: `rollout[2]` for a slot's."""
    return f"{key[0]}[{key[1]}]" if isinstance(key, list | tuple) else str(key)
