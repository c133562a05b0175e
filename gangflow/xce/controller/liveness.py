"""Leases of nodes: who was silent for too long. Reports edges only; what a death means is decided by the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gangflow.xce.core.inputs import HostGone
from gangflow.xce.core.state import Host, HostState

STANDING = frozenset({HostState.UP, HostState.CLOSED, HostState.UNKNOWN})
"""States of a host that has had no verdict; LOST and FENCED have had theirs."""


@dataclass(slots=True)
class _Renewal:
    boot: str
    at_ms: int


class Leases:
    """When each node's agent was last heard of."""

    def __init__(self, lease_ms: int, fenced_after_ms: int, grace_ms: int, start_ms: int) -> None:
        self._lease_ms = lease_ms
        self._fenced_after_ms = fenced_after_ms
        self._renewals: dict[str, _Renewal] = {}
        self._condemned: dict[str, str] = {}
        """Host → the boot that it was condemned with: the verdict is given once."""
        self.unknown_until_ms = start_ms + grace_ms
        """Before this nobody's silence means anything: the controller has just started."""

    def renew(self, node: str, boot: str, now_ms: int) -> None:
        self._renewals[node] = _Renewal(boot, now_ms)

    def heard_ms(self, node: str) -> int:
        """When the node was last heard of; 0: not since this controller started."""
        renewal = self._renewals.get(node)
        return renewal.at_ms if renewal else 0

    def verdicts(self, hosts: Mapping[str, Host], now_ms: int) -> list[HostGone]:
        """Hosts whose lease has just run out. Their tasks may live on until the agent notices and has killed them: that long
        after the verdict they are fenced."""
        if not self._lease_ms or now_ms < self.unknown_until_ms + self._lease_ms:
            return []
        silent: dict[str, bool] = {}
        found = []
        for name, host in hosts.items():
            node = host.facts.node
            if node not in silent:
                silent[node] = now_ms >= max(self.heard_ms(node), self.unknown_until_ms) + self._lease_ms
            if not silent[node]:
                self._condemned.pop(name, None)
            elif host.state in STANDING and self._condemned.get(name) != host.boot:
                self._condemned[name] = host.boot
                found.append(HostGone(name, self._fenced_after_ms))
        return found
