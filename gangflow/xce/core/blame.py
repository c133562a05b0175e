"""Hosts on which one group fails again and again: it is kept away from them, within its guards (design 3.5). Opt-in."""

from __future__ import annotations

from collections.abc import Iterable

from gangflow.xce.core.claims import unready_claim
from gangflow.xce.core.counts import ACTIVE, BEFORE_START, STARTED
from gangflow.xce.core.events import HostBlamed, HostExcluded
from gangflow.xce.core.plan import REPORTABLE_CAUSES, Cause
from gangflow.xce.core.state import Blame, Group, Slot, SlotState, TaskPhase
from gangflow.xce.core.teardown import move_away
from gangflow.xce.core.turn import Failure, SlotId, Turn

NO_HOSTS_FAULT = REPORTABLE_CAUSES | {Cause.DRAINED, Cause.RUN_LIMIT}
"""A coordinator's verdict speaks of the application; and what we stopped did not fail."""


def blamed(turn: Turn, group: Group, slot: Slot, failure: Failure) -> tuple[str, ...]:
    """The hosts that a failure speaks against: the one that is known, else those whose task is not as far as it should be."""
    if failure.exit.cause in NO_HOSTS_FAULT:
        return ()
    if failure.host:
        return (failure.host,)
    if failure.exit.cause is Cause.CLAIM_LOST or (slot.state in BEFORE_START and unready_claim(turn, group, slot) is not None):
        # It is its provider's: of a claim that is bound to a host, that host is known.
        return ()
    far = (TaskPhase.PREPARED,) if slot.state in BEFORE_START else (TaskPhase.READY, TaskPhase.GONE)
    return tuple({task.host: None for task in slot.tasks if task.phase not in far})


def blame(turn: Turn, group_id: str, hosts: Iterable[str]) -> None:
    """Count one failure against each of these hosts, and exclude those that have too many, within the guards.

    Asked after the failures of a batch were acted on, so that what failed is not counted as up.
    """
    plan = turn.draft.groups[group_id].plan.exclusion
    for host in dict.fromkeys(hosts):
        group = turn.draft.groups[group_id]
        if host in group.excluded:
            continue
        known = next((one.at_ms for one in group.blames if one.host == host), ())
        counted = (*(at for at in known if at > turn.now_ms - plan.window_ms), turn.now_ms)
        turn.emit(HostBlamed(group_id, Blame(host, counted[-plan.after :])))
        if len(counted) >= plan.after and len(group.excluded) < plan.at_most and most_is_up_elsewhere(group, host):
            turn.emit(HostExcluded(group_id, host))
            _move_away(turn, group_id, host)


def most_is_up_elsewhere(group: Group, host: str) -> bool:
    """Whether more than half of the slots that the group wants are ready, or finished, without this host."""
    wanted = up = 0
    for slot in group.slots.values():
        if slot.state is SlotState.RETIRED or slot.out:
            continue
        wanted += 1
        up += slot.state in STARTED and all(task.host != host for task in slot.tasks)
    return 2 * up > wanted


def _move_away(turn: Turn, group_id: str, host: str) -> None:
    """What the group has there that did not start yet is placed anew; what runs there runs on."""
    group = turn.draft.groups[group_id]
    if group.state not in ACTIVE:
        return
    for key, slot in list(group.slots.items()):
        if slot.state in BEFORE_START and any(task.host == host for task in slot.tasks):
            move_away(turn, group_id, key)


def of_batch(turn: Turn, group: Group, failures: Iterable[tuple[SlotId, Failure]]) -> tuple[str, ...]:
    """The hosts that these failures speak against, each once: one host's failures in one batch count once."""
    if not group.plan.exclusion.after:
        return ()
    return tuple(dict.fromkeys(host for key, failure in failures for host in blamed(turn, group, group.slots[key], failure)))
