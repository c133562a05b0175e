"""What the shells are asked to do. Idempotent by `TaskKey` or (claim, attempt), and re-derivable: `effects_due(state)` yields
every effect that is still owed, so there is no separate queue of effects to lose.
"""

from __future__ import annotations

from dataclasses import dataclass

from gangflow.xce.core.plan import ProbePlan
from gangflow.xce.core.state import TaskKey


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that a host agent needs to prepare and run one task."""

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    """Design 3.10, but for `XCE_URL`, `XCE_TOKEN` and `TRACEPARENT`, which the controller's shell adds on delivery."""
    cwd: str = ""
    ports: tuple[tuple[str, int], ...] = ()
    ready: ProbePlan | None = None
    live: ProbePlan | None = None
    grace_ms: int = 10_000
    group_file: str = "{}"
    """The JSON behind `XCE_GROUP_FILE`."""
    folder_words: tuple[int, ...] = ()
    """Words of `argv` in which `{folder}` stands for the task's own folder, which only the agent knows."""
    cleanup: tuple[str, ...] = ()
    """Run when nothing of the task runs any more, before its exit is reported: removes what a container left."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Accept the task: executable found, folder and logs made, ports free. Answered by TaskPrepared or TaskRefused."""

    task: TaskKey
    host: str
    launch: Launch


@dataclass(frozen=True, slots=True)
class Unprepare:
    """Give up what was prepared. Answered by TaskUnprepared."""

    task: TaskKey
    host: str


@dataclass(frozen=True, slots=True)
class Start:
    """Start what was prepared. Answered by TaskStarted."""

    task: TaskKey
    host: str
    token: str
    """Of the preparation: an agent of another boot refuses."""


@dataclass(frozen=True, slots=True)
class Stop:
    """SIGTERM, grace, SIGKILL, verified; answered by `TaskExited`, also when the task is already gone or was never known."""

    task: TaskKey
    host: str
    grace_ms: int


@dataclass(frozen=True, slots=True)
class Warn:
    """The end of its runtime limit is near: send this signal to the task's main process, once. Answered by TaskWarned."""

    task: TaskKey
    host: str
    signal: int


@dataclass(frozen=True, slots=True)
class Provision:
    """Make a claim. Answered by ClaimReady or ClaimFailed."""

    claim: str
    attempt: int
    group: str
    name: str
    provider: str
    parameters: tuple[tuple[str, str], ...]
    slot: tuple[str, int] | None = None
    hosts: tuple[str, ...] = ()
    """Where the tasks that will use it were placed."""
    retain: bool = False
    after: tuple[tuple[str, str], ...] = ()
    """(name, path) of the claims that this one was made after."""
    made_as: str = ""
    """The id that its provider knows it by, where that is another; `group`, `name` and `slot` are those of that id."""


@dataclass(frozen=True, slots=True)
class Release:
    """Give a claim back. Answered by ClaimReleased, also when there is nothing of it."""

    claim: str
    group: str
    name: str
    provider: str
    path: str
    retain: bool
    """Let go of it, and leave what was made where it is."""
    parameters: tuple[tuple[str, str], ...] = ()
    slot: tuple[str, int] | None = None
    hosts: tuple[str, ...] = ()
    """That it is bound to."""
    made_as: str = ""
    """See `Provision.made_as`."""
    attempt: int = 0
    """The claim's last: the answer names it."""


TaskEffect = Prepare | Unprepare | Start | Stop | Warn
ClaimEffect = Provision | Release
Effect = TaskEffect | ClaimEffect
