"""What an operator does to a host: close it, drain it, open it. It is a fact of its own, which survives loss and return."""

from __future__ import annotations

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.counts import ACTIVE, BEFORE_START, RUNS
from gangflow.xce.core.events import HostOperated
from gangflow.xce.core.inputs import Reply
from gangflow.xce.core.plan import Cause
from gangflow.xce.core.policy import HOST_CLOSED
from gangflow.xce.core.state import Exit, GroupState, Host, HostState
from gangflow.xce.core.teardown import move_away, now_slot
from gangflow.xce.core.turn import Turn

CLOSED_BY_USER = "closed by an operator"


def close(turn: Turn, command: inp.CloseHost) -> Reply:
    """No new work on the host; with `drain`, what runs there fails as `drained`, judged together."""
    host = turn.host(command.host)
    if host is None:
        return Reply(404, "not_found", f"no host {command.host!r}")
    why = command.message or host.closed or CLOSED_BY_USER
    state = HostState.CLOSED if host.state is HostState.UP else host.state
    draining = host.draining or command.drain
    if (state, why, draining) != (host.state, host.closed, host.draining):
        turn.emit(HostOperated(command.host, state, why, draining))
    _move_away(turn, command.host, why, drain=command.drain)
    return _answer(turn, command.host)


def _move_away(turn: Turn, name: str, why: str, *, drain: bool) -> None:
    """What has not started there starts elsewhere; what runs there runs on, unless it is drained."""
    message = f"{name} is {'drained' if drain else 'closed'}: {why}"
    for group_id, slot_key, _ in turn.tasks_on(name):
        group, slot = now_slot(turn, group_id, slot_key)
        turn.touch(group_id)
        if slot.state in BEFORE_START:
            if group.state is GroupState.PREPARING:
                turn.set_back(group, Cause.DRAINED if drain else HOST_CLOSED, message)
            elif group.state in ACTIVE:
                move_away(turn, group_id, slot_key)
        elif drain and slot.state in RUNS and group.state in ACTIVE:
            turn.fail(group, slot, Exit(Cause.DRAINED, slot.incarnation, turn.now_ms, message=message), name)


def open(turn: Turn, command: inp.OpenHost) -> Reply:
    """New work may go to the host again, as soon as it is up."""
    host = turn.host(command.host)
    if host is None:
        return Reply(404, "not_found", f"no host {command.host!r}")
    if host.closed:
        state = HostState.UP if host.state is HostState.CLOSED else host.state
        turn.emit(HostOperated(command.host, state))
        turn.freed = True
        for group_id in turn.groups_on(command.host):
            turn.touch(group_id)
    return _answer(turn, command.host)


def _answer(turn: Turn, name: str) -> Reply:
    host: Host = turn.draft.hosts[name]
    return Reply(fields=(("host", name), ("state", host.state.value)))
