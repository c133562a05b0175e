"""The limits of a host agent, in one place, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

PROTOCOL = 2
"""Of the socket between agent and link; a hello of another one is refused. Raised with whatever an agent of before would not
understand, or would carry out without it. 1: no warnings, models, nor containers (a launch's `folder_words` and `cleanup`)."""
EXIT_BUSY = 3
"""An agent's exit code when another one serves its folder."""
BUSY = b"busy\n"
"""What it then tells whoever waits for it to be ready."""
LINE_LIMIT = 16 << 20
"""Bytes of one message: 64 preparations with a group file each are far below it."""
REPORT_BATCH = 256
"""Reports written before the agent waits for the peer to read them."""
TASK_LIMIT = 4096
"""Tasks that one agent holds; more are refused (not permanently)."""
TOMBSTONES = 4096
"""Ended tasks whose last report is remembered, to answer a repeated effect with."""
LOG_READ_LIMIT = 1 << 20
"""Bytes answered to one `read_log`."""
TAIL_LINES = 20
TAIL_BYTES = 16 << 10
"""Of stderr in an exit report."""
LEFTOVER_GRACE_S = 1.0
"""What is left of a tree whose main process ended gets SIGTERM and this long, then SIGKILL."""
VERIFY_PERIODS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Pauses between two looks at a tree that should be gone; the last one repeats for as long as it takes."""
RECORD_DELAY_S = 0.2
"""After its start, until a task is on record, and in its control group."""
JOIN_LOOKS = 4
"""Looks at a tree until all of it is in its control group; a tree that forks faster than that keeps a part outside."""
CLEANUP_LIMIT_S = 10.0
"""For each try to remove what a container left. Its exit is reported afterwards, removed or not."""
CLEANUP_TRIES = 2
"""Podman's first `rm --force` gives up where the container's monitor was killed: nobody wrote down the exit."""
DISK_WAIT_S = 2.0
"""A report waits this long for its record on disk, then goes out all the same: a slow disk stops no member."""
OOM_MEMORY = 10
"""Seconds back to which a new kill in the kernel's OOM counter is held to explain a SIGKILL, where its log is closed to us."""
FILES = 65_536
"""Open files wanted: a running task costs the agent one, a prepared one two."""
FAMILY_S = 5.0
"""Where there are no control groups, all trees are looked through this often, so that what later loses its parent, its mark
and its group is known to belong."""
BEAT_S = 1.0
"""Agent to watchdog, and link to agent, at most: a quarter of the fence if that is shorter."""
SWEEP_PERIOD_S = 30.0
KEEP_FOLDERS = 512
KEEP_BYTES = 2 << 30
"""Logs of ended tasks beyond these are removed, oldest first."""


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What whoever starts an agent may choose."""

    lease_ms: int = 0
    """The agent must be renewed this often; 0: no lease (a machine that cannot be parted from its controller)."""
    fence_ms: int = 10_000
    """After the lease, all tasks are killed this much later; also how long the watchdog lets the agent be silent."""
    log_bytes: int = 16 << 20
    """Of one stream of one incarnation; the older half lies in `<stream>.1`."""
    control_groups: bool = True
    """Use control groups where this user may make them."""
    idle_exit_ms: int = 600_000
    """Without tasks and controller for this long, the agent ends by itself; 0: never."""

    @property
    def beat_s(self) -> float:
        """How often the agent looks around: often enough that a busy machine does not look like a dead agent."""
        return min(BEAT_S, self.fence_ms / 4000)
