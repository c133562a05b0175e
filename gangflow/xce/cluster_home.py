"""The files that a controller keeps in its cluster's home: who may talk to it, where it answers, what the cluster is."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from gangflow.errors import SetupError

PRIVATE = 0o700


@dataclass(frozen=True, slots=True)
class Card:
    """`controller.json`: where a controller answers."""

    url: str
    pid: int
    cluster_id: str
    started_ms: int


class ClusterHome:
    """The folder. Only its owner can look into it: it holds the admin token, and members' output."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
            self._close_to_others()
        except OSError as error:
            raise SetupError(f"the cluster's home {path} cannot be made: {error.strerror}") from error

    def _close_to_others(self) -> None:
        """Also a folder that somebody made with another mode, if it is a cluster's home, or empty: a shared folder, named by
        mistake, is left as it is."""
        status = self.path.stat()
        ours = status.st_uid == os.getuid() and (self.journal.exists() or not any(self.path.iterdir()))
        if ours and status.st_mode & 0o077:
            self.path.chmod(PRIVATE)

    @property
    def journal(self) -> Path:
        return self.path / "journal.db"

    @property
    def nodes(self) -> Path:
        """One folder for each node's agent."""
        return self.path / "nodes"

    @property
    def traces(self) -> Path:
        return self.path / "traces"

    @property
    def cluster_file(self) -> Path:
        return self.path / "cluster.yaml"

    def token(self) -> str:
        """The admin token; made at the first call and kept, since the tokens of running tasks derive from it."""
        file = self.path / "token"
        if file.exists():
            return file.read_text().strip()
        token = secrets.token_urlsafe(32)
        write_private(file, token + "\n")
        return token

    def card(self) -> Card | None:
        """Where the last controller answered; None if there was none."""
        try:
            return Card(**json.loads((self.path / "controller.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write_card(self, card: Card) -> None:
        write_private(self.path / "controller.json", json.dumps(asdict(card), indent=1) + "\n")


def write_private(file: Path, text: str) -> None:
    """Replace a file in one step, readable by its owner only."""
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    aside.replace(file)
