"""Port numbers for a node's virtual hosts: outside the kernel's ephemeral range, and nobody else's on this machine.

A block of ports is locked by binding an abstract unix socket named after it. Such a name is seen by every process of the
network namespace, whatever its user, and vanishes with its holder: two clusters of two users on one machine never draw the
same port, and a crash leaves nothing behind.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gangflow.xce.core.state import HostFacts
from gangflow.xce.hosts.standing import write_atomically

BLOCK = 16
"""Ports that one lock covers; a host's pool is a run of whole blocks."""
RANGES = ((20_000, 32_768), (61_000, 65_536), (10_000, 20_000), (32_768, 61_000), (2_048, 10_000))
"""Where to look, in this order: first what few well-known services use."""


class NoPorts(OSError):
    """No run of free blocks is long enough."""


def ephemeral_range() -> tuple[int, int]:
    """First and last port that the kernel gives to whoever asks for none (and so may take under our feet)."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32_768, 60_999


def candidate_blocks(ephemeral: tuple[int, int]) -> Iterator[int]:
    """First ports of the blocks that lie wholly outside the ephemeral range."""
    low, high = ephemeral
    for first, end in RANGES:
        for block in range(-(-first // BLOCK) * BLOCK, end - BLOCK + 1, BLOCK):
            if block > high or block + BLOCK <= low:
                yield block


class PortPool:
    """The blocks that this process holds. They are free again when it ends."""

    def __init__(self) -> None:
        self._locks: dict[int, socket.socket] = {}

    def assign(self, hosts: Sequence[HostFacts], remembered: Path) -> tuple[HostFacts, ...]:
        """The hosts with `port_first` filled in; the same as last time (`remembered`) where nobody took them meanwhile."""
        former: dict[str, int] = {}
        try:
            former = {str(name): int(first) for name, first in json.loads(remembered.read_text()).items()}
        except (OSError, ValueError, AttributeError):
            pass
        done = tuple(replace(host, port_first=self._run(host.port_count, former.get(host.name, 0))) for host in hosts)
        write_atomically(remembered, json.dumps({host.name: host.port_first for host in done}))
        return done

    def release(self) -> None:
        for lock in self._locks.values():
            lock.close()
        self._locks.clear()

    def _run(self, count: int, wanted: int) -> int:
        """The first port of `count` locked ports in a row; 0 when none are wanted."""
        if count <= 0:
            return 0
        blocks = -(-count // BLOCK)
        usable = list(candidate_blocks(ephemeral_range()))
        allowed = set(usable)
        for first in ([wanted] if wanted in allowed else []) + usable:
            run = [first + BLOCK * step for step in range(blocks)]
            if all(block in allowed for block in run) and self._lock(run):
                return first
        raise NoPorts(f"no {count} ports in a row are free of other gangflow agents on this machine")

    def _lock(self, run: Sequence[int]) -> bool:
        taken: dict[int, socket.socket] = {}
        for block in run:
            lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                if block in self._locks:
                    raise OSError("ours already")
                lock.bind(f"\0gangflow/ports/{block}")
            except OSError:
                lock.close()
                for other in taken.values():
                    other.close()
                return False
            taken[block] = lock
        self._locks |= taken
        return True


def port_conflict(address: str, port: int) -> str:
    """Why a server could not listen on this port now; empty if it could. Former connections in TIME_WAIT do not count."""
    for where in (address, "0.0.0.0"):
        probe = socket.socket(socket.AF_INET6 if ":" in where else socket.AF_INET, socket.SOCK_STREAM)
        try:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((where, port))
            probe.listen(1)
        except OSError as error:
            return f"port {port} on {where}: {error.strerror or error}"
        finally:
            probe.close()
    return ""
