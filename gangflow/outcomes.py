"""What whoever waited for a group, or for a change of its targets, is told. Shared by `Run` and `AsyncRun`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gangflow.errors import ChangeFailed, GroupEnded, Problem, UsageError

if TYPE_CHECKING:
    from gangflow.xce.rest.schema import ChangeView, GroupView

TERMINAL = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
"""States in which a group has ended."""


def judged(view: GroupView, name: str, *, check: bool) -> GroupView:
    """The view of a group that has ended. GroupEnded when it did not succeed (with `check`)."""
    if check and view.state != "SUCCEEDED":
        because = f"{view.cause}: {view.message}".strip(": ")
        message = f"group {name!r} ended {view.state} ({because})" + last_words(view)
        raise GroupEnded(message, group=view.id, state=view.state, cause=view.cause)
    return view


def last_words(view: GroupView) -> str:
    """The last lines of stderr of the last slot that failed; empty when none did, or it said nothing."""
    exits = [(slot.exit, slot) for member in view.members for slot in member.slots if slot.exit and slot.exit.cause]
    if not exits:
        return ""
    exit_, slot = max(exits, key=lambda pair: pair[0].at_ms)
    tail = exit_.stderr_tail.rstrip()
    return f"\nthe last lines of stderr of {slot.member}[{slot.index}]:\n{tail}" if tail else ""


def overdue(view: GroupView, name: str, timeout: float) -> TimeoutError:
    """A group that has not ended in time: it goes on."""
    because = f", {view.reason.code}: {view.reason.text}" if view.reason is not None else ""
    return TimeoutError(f"group {name!r} has not ended after {timeout:g} s: it is {view.state}{because}")


def settled(change: ChangeView) -> ChangeView:
    """A change that is over. ChangeFailed when it is not DONE."""
    if change.state != "DONE":
        raise ChangeFailed(f"change {change.id} of {change.group} failed: {change.message or 'no reason was given'}")
    return change


def wanted(targets: Mapping[str, int] | None, members: Mapping[str, int]) -> dict[str, int]:
    """Targets as they were given to `scale`, by position and by name. SpecError when nothing, or a member twice, is named."""
    both = [name for name in members if name in (targets or {})]
    if both:
        raise UsageError([Problem(f"targets.{both[0]}", str(members[both[0]]), "each member once: by position or by name")])
    asked = {**(targets or {}), **members}
    if not asked:
        raise UsageError([Problem("targets", "", "a number of replicas for at least one replica set: scale(rollout=4)")])
    return asked
