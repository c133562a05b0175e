"""How long silence is taken for life in a Ray cluster: the only place that says so."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from gangflow.errors import Problem, UsageError
from gangflow.xce.controller import Options
from gangflow.xce.hosts.settings import AgentOptions

PREFIX = "GANGFLOW_"
IDLE_LEASES = 4
"""An agent that has neither tasks nor an actor ends after so many leases."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Milliseconds. Each has a variable of its name (`GANGFLOW_LEASE_MS`, …), read where the controller's actor is started;
    from there they reach every node."""

    lease_ms: int = 15_000
    """A node that neither its Ray nor the controller confirmed for this long counts as cut off."""
    fence_ms: int = 10_000
    """How long the agent of such a node may take to notice."""
    kill_grace_ms: int = 10_000
    """How long it may then take until its tasks are gone."""
    grace_ms: int = 15_000
    """After the controller's own start nobody's silence counts for this long."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Lease:
        """Raises SpecError for what is no number of milliseconds."""
        found = {}
        for one in fields(cls):
            variable = PREFIX + one.name.upper()
            if text := environment.get(variable):
                if not (text.isascii() and text.isdigit() and int(text) >= 100):
                    raise UsageError([Problem(variable, repr(text), "milliseconds, at least 100")])
                found[one.name] = int(text)
        return cls(**found)

    @property
    def beat_s(self) -> float:
        """Between two confirmations of a node: often enough that a busy machine does not look like a dead one."""
        return min(3.0, self.lease_ms / 5_000)

    @property
    def for_controller(self) -> Options:
        """A controller's options with these limits."""
        return Options(lease_ms=self.lease_ms, fence_ms=self.fence_ms, kill_grace_ms=self.kill_grace_ms, grace_ms=self.grace_ms)

    @property
    def for_agent(self) -> AgentOptions:
        """An agent's options with these limits. One whose node left Ray has nobody to wait for."""
        return AgentOptions(self.lease_ms, self.fence_ms, idle_exit_ms=IDLE_LEASES * self.lease_ms)
