"""Events of slots, their tasks and claims."""

from __future__ import annotations

from dataclasses import dataclass

from gangflow.events.base import Event, SlotEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlaced(SlotEvent):
    """A new incarnation has its place."""

    hosts: tuple[str, ...] = ()
    """In task order, without repeats."""
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHeld(SlotEvent):
    """It waits for a change of targets, which holds these places for it."""

    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChanged(SlotEvent):
    """An edge of the slot's life cycle; those that matter most have a class of their own."""

    before: str
    state: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRunning(SlotChanged):
    """Its processes run; or its probe fails again, when `before` is READY."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReady(SlotChanged):
    """Every task's probe succeeded, or there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotDraining(SlotChanged):
    """It finishes what it has, and is given nothing new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStopping(SlotChanged):
    """It is being stopped; `cause` is empty when nothing of it failed."""

    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLost(SlotChanged):
    """Its host does not answer: it may still run, so its place is not free yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWarned(SlotEvent):
    """It was told that its runtime limit is near, all of its tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotEnded(SlotEvent):
    """The incarnation is over, and every process of it is gone: one of the three below."""

    state: str
    code: int | None = None
    """Of the exit; None when a signal ended it, or nobody saw it."""
    signal: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotDone(SlotEnded):
    """A job's: every task ended with code 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStopped(SlotEnded):
    """We or a user stopped it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFailed(SlotEnded):
    """It failed; a `FailureJudged` says what followed from that."""

    cause: str
    """`app_exit`, `oom`, `host_lost`, … (design of failure rules)."""
    stderr_tail: str = ""
    """The last 20 lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMoved(SlotEvent):
    """One task of a slot moved: prepared, running, ready, gone."""

    task: int
    host: str
    phase: str
    pid: int = 0
    message: str = ""
    """The last error of its ready probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimChanged(Event):
    """A claim of a group, of a slot, or (with no group) a standalone one; those that matter have a class of their own."""

    claim: str
    """Its id."""
    name: str
    state: str
    member: str = ""
    """Of a slot's claim."""
    slot: int = -1
    host: str = ""
    """Where it is bound; empty when it is not."""
    path: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimReady(ClaimChanged):
    """It is there, at `path`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFailed(ClaimChanged):
    """It could not be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLost(ClaimChanged):
    """It was there, and is not (or not whole) any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimReleased(ClaimChanged):
    """It was given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimForgotten(Event):
    """A standalone claim is gone: its name is free."""

    claim: str
