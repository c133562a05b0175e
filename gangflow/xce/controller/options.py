"""The controller's limits and what its host gives it, in one place, each with its reason."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gangflow.xce.core.state import TaskKey

RESEND_S = (1.0, 2.0, 4.0, 8.0, 10.0)
"""Pauses before an effect that nobody confirmed is sent again; the last one repeats for as long as it is due."""
DELIVERY_S = 10.0
"""One delivery to an agent takes at most this long; what it may have lost is sent again."""
RELEASE_S = 60.0
"""One try to release a claim takes at most this long: a call that never returns must not end an obligation in silence."""
CANCEL_S = 5.0
"""A provider that was cancelled may take this long to put things in order; after that nobody waits for it."""
CHECK_S = 30.0
"""Between two rounds of looks at claims that are READY."""
CHECK_LIMIT_S = 30.0
"""One look takes at most this long; then nothing is known of that claim."""
CHECKS_AT_ONCE = 4
"""Looks at a time: a thousand claims must not be a thousand scripts at once."""
FULL_RETRY_S = 1.0
"""While the disk is full, waiting reports are tried again this often."""
TICK_RETRY_S = 1.0
"""A deadline that cannot be acted on is tried again after this long, instead of at once and for ever."""
TURN_LIMIT = 512
"""Inputs taken into one batch: bounds what a command waits for behind others, and the size of a record."""
QUEUE_LIMIT = 8_192
"""Inputs waiting: commands beyond it are refused (503, `busy`), reports wait at their agent."""
RING = 4_096
"""Newest events kept in memory for watchers; older ones are read from the journal."""
PAGE = 512
"""Events read from the journal at once for a watcher that is behind."""


@dataclass(frozen=True, slots=True)
class Options:
    """What whoever runs a controller chooses."""

    url: str = ""
    """Where its REST service listens: tasks see it as XCE_URL."""
    token: str = ""
    """The admin token of its REST service."""
    home: Path | None = None
    levels: tuple[str, ...] = ()
    """Topology levels of the cluster, outermost first."""
    task_token: Callable[[TaskKey], str] | None = None
    """Makes the token that an incarnation of a task sees as XCE_TOKEN."""
    traceparent: Callable[[str, TaskKey], str] | None = None
    """From the cluster's id and a task: its TRACEPARENT."""
    lease_ms: int = 0
    """A node that was silent for this long is dead. 0: silence means nothing (a node that cannot be parted from the controller,
    and whose agent's end is seen by other means)."""
    fence_ms: int = 10_000
    """How long an agent that lost its lease may take to notice."""
    kill_grace_ms: int = 10_000
    """How long it may then take until its tasks are gone."""
    grace_ms: int = 15_000
    """After the controller's own start nobody's silence counts for this long: they may not have found it yet."""
    image_every: int = 1_000
    """Batches between two state images (or 50 times as many events, if that comes first: they are what recovery reads)."""
    images: int = 2
    """Images kept: the older ones are there for the day when the newest is damaged."""
    retention_ms: int = 7 * 86_400_000
    """Records are kept this long, and longer while no image covers them."""
    retention_bytes: int = 0
    """And at most so many bytes of them, the newest; 0: no limit. Those that no image covers stay all the same."""


class SystemClock:
    """Wall time that never runs backwards within one process: read once, then counted on."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._latest = 0

    def now_ms(self) -> int:
        # Follows the wall clock forwards (after a suspend, or a correction), and stands still rather than going back.
        self._latest = max(self._latest, time.time_ns() // 1_000_000, (time.monotonic_ns() + self._offset_ns) // 1_000_000)
        return self._latest
