"""Everything that can be checked and made before a task may start, so that its start is nothing but a spawn.

Runs in a thread of its own: a slow disk delays a preparation, never the loop that watches the members.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gangflow.xce.core.containers import FOLDER
from gangflow.xce.core.effects import Launch
from gangflow.xce.core.state import TaskKey
from gangflow.xce.hosts import marks
from gangflow.xce.hosts.portpool import port_conflict
from gangflow.xce.hosts.standing import write_atomically

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_PASSING = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
    errno.EINTR,
    errno.ESTALE,
}
"""Errors that another try may not meet."""


class Refusal(Exception):
    """The task cannot be prepared here; nothing of it is held."""

    def __init__(self, message: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.message = message
        self.permanent = permanent


@dataclass(slots=True)
class Prepared:
    """What a spawn needs. The log files are open already."""

    folder: Path
    argv: tuple[str, ...]
    environment: dict[str, str]
    cwd: str
    stdout: int
    stderr: int

    def close(self) -> None:
        """Close the log files; the task has its own descriptors."""
        for fd in (self.stdout, self.stderr):
            if fd >= 0:
                os.close(fd)
        self.stdout = self.stderr = -1


def folder_of(root: Path, task: TaskKey) -> Path:
    """`<root>/<group>/<member>-<index>/<incarnation>/<task>`. Refusal for names that are no plain file names."""
    for name in (task.group, task.member):
        if not _PLAIN.match(name):
            raise Refusal(f"{name!r} is no plain name", permanent=True)
    return root / task.group / f"{task.member}-{task.index}" / str(task.incarnation) / str(task.task)


def inherited_environment() -> dict[str, str]:
    """The agent's own environment without what belongs to us: tasks see PATH, HOME and the like as their user does."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("XCE_", "GANGFLOW_"))}


def prepare(folder: Path, launch: Launch, address: str, mark: str, inherited: Mapping[str, str]) -> Prepared:
    """Check executable, working directory and ports; make the folder, the log files and the group file. Raises Refusal."""
    environment = {"PYTHONUNBUFFERED": "1", **inherited, **dict(launch.environment)}
    environment[marks.VARIABLE] = mark
    environment["XCE_GROUP_FILE"] = str(folder / "group.json")
    argv = _with_folder(launch, folder)
    if not argv or not argv[0]:
        raise Refusal("the command is empty", permanent=True)
    if any("\0" in word for word in (*argv, *environment, *environment.values(), launch.cwd)):
        raise Refusal("the command, its environment or its working directory holds a NUL byte", permanent=True)
    cwd = os.path.abspath(launch.cwd) if launch.cwd else str(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(folder / "group.json", launch.group_file)
    except OSError as error:
        raise Refusal(f"the task's folder {folder}: {error.strerror}", permanent=False) from error
    try:
        os.makedirs(cwd, exist_ok=True)
    except OSError as error:
        raise Refusal(f"working directory {cwd}: {error.strerror}", permanent=error.errno not in _PASSING) from error
    _require_executable(argv[0], cwd, environment.get("PATH", os.defpath))
    for name, port in launch.ports:
        if conflict := port_conflict(address, port):
            raise Refusal(f"port {name!r}: {conflict}", permanent=False)
    opened: list[int] = []
    try:
        for stream in ("stdout", "stderr"):
            opened.append(os.open(folder / stream, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    except OSError as error:
        for fd in opened:
            os.close(fd)
        raise Refusal(f"log files in {folder}: {error.strerror}", permanent=False) from error
    return Prepared(folder, argv, environment, cwd, *opened)


def _with_folder(launch: Launch, folder: Path) -> tuple[str, ...]:
    """The command with the task's own folder where a container's command line needs it."""
    if not launch.folder_words:
        return launch.argv
    where = str(folder)
    if ":" in where or "," in where:  # runtimes take them for the end of a path
        raise Refusal(f"the task's folder {where} cannot be mounted: its path has a colon or a comma", permanent=True)
    words = set(launch.folder_words)
    return tuple(word.replace(FOLDER, where) if index in words else word for index, word in enumerate(launch.argv))


def _require_executable(name: str, cwd: str, path: str) -> None:
    if "/" in name:
        where = os.path.join(cwd, name)
        if not os.path.exists(where):
            raise Refusal(f"executable {name!r} does not exist (in {cwd})", permanent=True)
        if not os.path.isfile(where) or not os.access(where, os.X_OK):
            raise Refusal(f"{name!r} is not executable (in {cwd})", permanent=True)
    elif shutil.which(name, path=path) is None:
        raise Refusal(f"executable {name!r} is not on the task's PATH ({path})", permanent=True)
