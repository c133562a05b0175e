"""Slots whose runtime limit is near, or over: a warning in time, then the failure `run_limit`, which the rules judge."""

from __future__ import annotations

from gangflow.durations import lasting
from gangflow.xce.core import inputs as inp
from gangflow.xce.core.events import SlotWarned
from gangflow.xce.core.plan import Cause
from gangflow.xce.core.runtime_limit import limit_of, warn_at
from gangflow.xce.core.state import Exit, Group, Slot, TaskPhase
from gangflow.xce.core.tasks import find
from gangflow.xce.core.turn import Turn


def warn(turn: Turn, group: Group, slot: Slot) -> None:
    """The warning of a slot that runs becomes due: each of its tasks is owed it from now on."""
    at = warn_at(group.plan.member(slot.member), slot)
    if at and at <= turn.now_ms:
        left = tuple(task.index for task in slot.tasks if task.phase is not TaskPhase.GONE)
        turn.emit(SlotWarned(group.id, slot.member, slot.index, slot.incarnation, left))


def warned(turn: Turn, report: inp.TaskWarned) -> None:
    """An agent delivered the warning to one task, or the task had ended."""
    found = find(turn, report.task, report.host)
    if found is None or report.task.task not in found[1].to_warn:
        return
    group, slot, _ = found
    left = tuple(index for index in slot.to_warn if index != report.task.task)
    turn.emit(SlotWarned(group.id, slot.member, slot.index, slot.incarnation, left))


def ran_out(turn: Turn, group: Group, slot: Slot) -> bool:
    """Whether the slot ran for as long as it may: then that is a failure, judged with the others of this batch."""
    if not turn.passed(limit_of(slot)):
        return False
    text = f"it ran for its runtime limit of {lasting(group.plan.member(slot.member).runtime_limit_ms)}"
    turn.fail(group, slot, Exit(Cause.RUN_LIMIT, slot.incarnation, turn.now_ms, message=text))
    return True
