"""Which hosts can be told something, and which can be started on."""

from __future__ import annotations

from gangflow.xce.core.state import Group, HostState, Slot
from gangflow.xce.core.turn import Turn


def reachable(turn: Turn, name: str) -> bool:
    """Whether the host's agent can be told anything at present."""
    host = turn.host(name)
    return host is not None and host.state is not HostState.LOST and host.state is not HostState.FENCED


def usable(turn: Turn, group: Group, name: str) -> bool:
    """Whether a slot of the group may start on the host: it is UP, and not excluded for the group."""
    host = turn.host(name)
    return host is not None and host.state is HostState.UP and name not in group.excluded


def on_usable_hosts(turn: Turn, group: Group, slot: Slot) -> bool:
    """Whether every host of the slot is usable."""
    return all(usable(turn, group, task.host) for task in slot.tasks)
