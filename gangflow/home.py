"""Where a gangflow cluster lives on disk: one folder with its journal, token, address, logs and traces.

A cluster that is kept (`gangflow up`) has its home at `$GANGFLOW_HOME` or `~/.gangflow/default`; each run that starts a cluster
of its own gets a folder below `~/.gangflow/runs`; what `gangflow up --home` makes elsewhere is noted in `~/.gangflow/homes`.
That is how `status`, `attach` and `down --all` find what was left running.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from gangflow.errors import Unreachable

if TYPE_CHECKING:
    from gangflow.xce.rest.aclient import AsyncClient
    from gangflow.xce.rest.client import Client

ROOT_VARIABLE = "GANGFLOW_ROOT"
HOME_VARIABLE = "GANGFLOW_HOME"
TOKEN_VARIABLES = ("GANGFLOW_TOKEN", "XCE_TOKEN")
"""In this order; the second is what a member of a group finds in its environment."""


def given_token(environment: Mapping[str, str] | None = None) -> str:
    """The token that the environment gives: it wins over the one that a cluster's home keeps. Empty: it gives none."""
    given = os.environ if environment is None else environment
    return next((given[name] for name in TOKEN_VARIABLES if given.get(name)), "")


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one cluster."""

    path: Path

    @property
    def url(self) -> str:
        """Where its controller answers, or last did. Unreachable if none has ever started here."""
        try:
            return str(json.loads((self.path / "controller.json").read_text())["url"])
        except (OSError, ValueError, KeyError) as error:
            raise Unreachable(f"no controller has started in {self.path}") from error

    @property
    def token(self) -> str:
        """The cluster's admin token."""
        try:
            return (self.path / "token").read_text().strip()
        except OSError as error:
            raise Unreachable(f"no token in {self.path}") from error

    @property
    def alive(self) -> bool:
        """Whether its controller's process is there."""
        try:
            document = json.loads((self.path / "controller.json").read_text())
            process = psutil.Process(int(document["pid"]))
            # A number alone may mean another process by now: one that began after the controller had started.
            return process.status() != psutil.STATUS_ZOMBIE and process.create_time() * 1000 <= document["started_ms"] + 1000
        except (OSError, ValueError, KeyError, TypeError, psutil.Error):
            return False

    @property
    def used(self) -> bool:
        """Whether a cluster has ever started here, or has begun to."""
        return (self.path / "controller.json").exists() or self.uses_ray

    @property
    def left_behind(self) -> bool:
        """Whether an agent was never ended in order: it, and members, may run without a controller."""
        return any((self.path / "nodes").glob("*/agent.sock"))

    @property
    def uses_ray(self) -> bool:
        """Whether a Ray cluster was started for it, or joined."""
        return (self.path / "ray.json").exists()

    def client(self, patience: float = 15.0, token: str = "") -> Client:
        """A client of its controller. `token`: empty: the admin's, as whoever started the cluster is one."""
        from gangflow.xce.rest.client import Client

        return Client(self.url, token or self.token, patience=patience)

    def aclient(self, patience: float = 15.0, token: str = "") -> AsyncClient:
        """The same for an event loop."""
        from gangflow.xce.rest.aclient import AsyncClient

        return AsyncClient(self.url, token or self.token, patience=patience)


def root() -> Path:
    """The folder of all homes of this user: `$GANGFLOW_ROOT` or `~/.gangflow`."""
    return Path(os.environ.get(ROOT_VARIABLE) or Path.home() / ".gangflow")


def default_home() -> Home:
    """The home of the cluster that `gangflow up` keeps."""
    return Home(Path(os.environ.get(HOME_VARIABLE) or root() / "default"))


def new_home(name: str) -> Home:
    """A folder for a run's own cluster; its name starts with the time, so that they sort."""
    word = re.sub(r"[^a-z0-9-]", "-", name.lower())[:20]
    path = root() / "runs" / f"{time.strftime('%m%d-%H%M%S')}-{word}-{secrets.token_hex(2)}"
    path.mkdir(parents=True, mode=0o700)
    return Home(path)


def remember(home: Home) -> None:
    """Note a home that is elsewhere, so that `homes` finds it, whatever the environment says then."""
    path = home.path.expanduser().resolve()
    notes = root() / "homes"
    notes.mkdir(parents=True, exist_ok=True, mode=0o700)
    # One file each: two that start at the same time cannot lose each other's.
    (notes / hashlib.sha256(os.fsencode(path)).hexdigest()[:16]).write_text(f"{path}\n")


def _remembered() -> list[Path]:
    found = []
    for note in sorted((root() / "homes").glob("*")):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            found.append(Path(note.read_text().rstrip("\n")))
    return found


def homes() -> Iterator[Home]:
    """Every home of this user in which a cluster has started: the kept ones, then those in a Ray cluster that was joined, then
    the newest runs."""
    runs = sorted((root() / "runs").glob("*"), reverse=True)
    candidates = [default_home().path, root() / "default", *_remembered(), *sorted(root().glob("ray-*/")), *runs]
    seen: set[Path] = set()
    for path in candidates:
        place = path.expanduser().resolve()
        if place not in seen and Home(path).used:
            seen.add(place)
            yield Home(path)
