"""The machine: (state, inputs, now) → what happened, what is to be done, what is answered. Pure; the journal comes first.

machine = Machine(state)
decision = machine.handle(inputs, now_ms)      # changes nothing
journal.append(decision.now_ms, inputs, decision.events)
machine.adopt(decision)                        # from here on it is true
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gangflow.xce.core import (
    answers,
    claim_losses,
    claims,
    commands,
    hosts,
    operate,
    operate_hosts,
    overrun,
    retention,
    scale,
    standalone,
    suspend,
    tasks,
)
from gangflow.xce.core import inputs as inp
from gangflow.xce.core.asks import Ask, Grant, Refusal
from gangflow.xce.core.deadlines import next_deadline
from gangflow.xce.core.due import effects_due, effects_due_on, newly_due
from gangflow.xce.core.effects import Effect
from gangflow.xce.core.events import Event, TermStarted
from gangflow.xce.core.evolve import apply, apply_all
from gangflow.xce.core.index import Index
from gangflow.xce.core.inputs import Input, Reply
from gangflow.xce.core.lifecycle import InvalidTransition
from gangflow.xce.core.limits import STORY_MAX, TERM_GRACE_MS
from gangflow.xce.core.settle import settle
from gangflow.xce.core.state import State
from gangflow.xce.core.turn import Turn

__all__ = [
    "Decision",
    "InvalidTransition",
    "Machine",
    "Scheduler",
    "apply",
    "apply_all",
    "effects_due",
    "effects_due_on",
    "handle",
    "next_deadline",
]


class Scheduler(Protocol):
    """One session over an immutable state. It may keep a derived ledger; the answer depends on (state, asks) alone."""

    def decide(self, state: State, asks: Sequence[Ask], /) -> Sequence[Grant | Refusal]: ...


@dataclass(frozen=True, slots=True)
class Decision:
    """What one step decided. Nothing of it is true before it is journalled and adopted."""

    state: State
    """The same object as before when nothing happened."""
    events: tuple[Event, ...]
    effects: tuple[Effect, ...]
    """What became due; `effects_due(state)` has all that is."""
    replies: tuple[Reply | None, ...]
    """Parallel to the inputs; None for reports."""
    now_ms: int
    """The time of the batch: never earlier than that of the state before."""
    touched: tuple[str, ...] = ()
    """Groups that the step looked at."""
    touched_hosts: tuple[str, ...] = ()
    touched_claims: tuple[str, ...] = ()


def start_term(turn: Turn, report: inp.StartTerm) -> None:
    """A controller starts: the journal's first names the cluster."""
    cluster = turn.draft.cluster_id or report.cluster_id
    term = turn.draft.term + 1
    grace = turn.now_ms + TERM_GRACE_MS if term > 1 else 0
    turn.emit(TermStarted(cluster, term, report.levels, grace))


def tick(turn: Turn, report: inp.Tick) -> None:
    """Time passes in every batch; a Tick brings nothing else."""


COMMANDS: dict[type, Callable[[Turn, Any], Reply]] = {
    inp.SubmitGroup: commands.submit,
    inp.EndGroup: commands.end,
    inp.ReportSlot: commands.report,
    inp.RestartSlot: commands.restart,
    inp.TakeCoordination: commands.take_coordination,
    inp.PutValue: commands.put_value,
    inp.SuspendGroup: suspend.suspend,
    inp.ResumeGroup: suspend.resume,
    inp.RestartGroup: operate.restart_group,
    inp.StopMember: operate.stop_member,
    inp.ScaleGroup: scale.scale,
    inp.DrainSlot: operate.drain_slot,
    inp.LiftExclusion: operate.lift,
    inp.CloseHost: operate_hosts.close,
    inp.OpenHost: operate_hosts.open,
    inp.CreateClaim: standalone.create,
    inp.DeleteClaim: standalone.delete,
}
REPORTS: dict[type, Callable[[Turn, Any], None]] = {
    inp.StartTerm: start_term,
    inp.HostUp: hosts.up,
    inp.HostGone: hosts.gone,
    inp.TaskPrepared: tasks.prepared,
    inp.TaskRefused: tasks.refused,
    inp.TaskUnprepared: tasks.unprepared,
    inp.TaskStarted: tasks.started,
    inp.TaskReady: tasks.ready,
    inp.TaskUnready: tasks.unready,
    inp.TaskExited: tasks.exited,
    inp.ClaimReady: claims.ready,
    inp.ClaimFailed: claims.failed,
    inp.ClaimReleased: claims.released,
    inp.ClaimLost: claim_losses.lost,
    inp.TaskWarned: overrun.warned,
    inp.Tick: tick,
}


def handle(state: State, inputs: Sequence[Input], now_ms: int, scheduler: Scheduler, index: Index | None = None) -> Decision:
    """One step. `index`, if given, must follow `state`. Raises InvalidTransition, which is a fault of this program."""
    index = index if index is not None else Index(state)
    turn = Turn(state, max(now_ms, state.now_ms), index, getattr(scheduler, "never_fits", None), scheduler.decide)
    try:
        replies = tuple(_take(turn, one) for one in inputs)
        _time(turn, index)
        settle(turn, index, scheduler.decide)
        if any(group.state.terminal for group in map(turn.group, turn.touched) if group is not None):
            retention.forget_surplus(turn)
    except InvalidTransition as fault:
        raise fault.told(_story(fault, turn, inputs)) from None
    after = turn.draft.freeze()
    effects = newly_due(state, after, turn.touched, turn.old_hosts, turn.old_claims)
    return Decision(
        after,
        tuple(turn.events),
        effects,
        replies,
        turn.now_ms,
        tuple(turn.touched),
        tuple(turn.old_hosts),
        tuple(turn.old_claims),
    )


def _take(turn: Turn, one: Input) -> Reply | None:
    command = COMMANDS.get(type(one))
    if command is None:
        REPORTS[type(one)](turn, one)
        return None
    reply = answers.remembered(turn, one.request)  # type: ignore[union-attr]
    if reply is None:
        reply = command(turn, one)
        answers.remember(turn, one.request, reply)  # type: ignore[union-attr]
    return reply


def _time(turn: Turn, index: Index) -> None:
    """What time alone brings: fences, deadlines of groups, things that were kept long enough."""
    hosts.fence(turn, index.lost)
    standalone.tend(turn, index.due_claims(turn.now_ms))
    due = index.due(turn.now_ms)
    for group_id in due:
        turn.touch(group_id)
    retention.forget_old(turn, [group_id for group_id in due if _ended(turn, group_id)])
    answers.forget(turn)


def _ended(turn: Turn, group_id: str) -> bool:
    group = turn.group(group_id)
    return group is not None and group.state.terminal


def _story(fault: InvalidTransition, turn: Turn, inputs: Sequence[Input]) -> tuple[str, ...]:
    """The inputs and events of this batch that speak of the entity."""
    return (*about(fault, inputs), *about(fault, turn.events))


def about(fault: InvalidTransition, things: Sequence[Input | Event]) -> tuple[str, ...]:
    """Those of the things that mention the entity's group or host, as text."""
    name = fault.name.split("/")[0]
    return tuple(text for text in map(repr, things) if f"'{name}'" in text)


class Machine:
    """A state that moves: keeps what would be slow to derive at each step, and nothing that could not be derived."""

    def __init__(self, state: State, scheduler: Scheduler | None = None) -> None:
        """`scheduler`: the placement session; the default is XCE's own."""
        self._state = state
        self._index = Index(state)
        self._scheduler = scheduler if scheduler is not None else default_scheduler()
        self._recent: deque[Input] = deque(maxlen=STORY_MAX)

    @property
    def state(self) -> State:
        return self._state

    def handle(self, inputs: Sequence[Input], now_ms: int) -> Decision:
        """Decide one batch and go on from there; a machine whose decision could not be journalled is made anew."""
        try:
            decision = handle(self._state, inputs, now_ms, self._scheduler, self._index)
        except InvalidTransition as fault:
            raise fault.told((*about(fault, list(self._recent)), *fault.story)) from None
        self._state = decision.state
        self._index.refresh(decision.state, decision.touched, decision.touched_hosts, decision.touched_claims)
        self._recent.extend(inputs)
        return decision

    def next_deadline(self) -> int | None:
        """When a Tick is next needed; equal to `deadlines.next_deadline(self.state)`, and faster."""
        return self._index.next_deadline(self._state)


def default_scheduler() -> Scheduler:
    """XCE's own placement."""
    from gangflow.xce.placement import Scheduler as Placement

    return Placement()
