"""A gangflow cluster in a Ray cluster: of our own, kept in a home, or somebody's that we join. Imports no Ray itself."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from gangflow.clusters import Say, silent
from gangflow.errors import (
    ClusterRefused,
    GangflowError,
    JournalCorrupt,
    JournalFull,
    JournalLocked,
    JournalRegressed,
    SetupError,
)
from gangflow.home import Home, given_token, root
from gangflow.ray.head import RayHead, head_alive, note_head, read_head, start_head, stop_head
from gangflow.specs.cluster import ClusterSpec
from gangflow.specs.document import dump
from gangflow.xce.rest.client import Client

if TYPE_CHECKING:
    from gangflow.xce.rest.aclient import AsyncClient

CLOSE_S = 10.0
ASK_S = 400.0
"""More than any request takes by its own limits (`gangflow.ray.control`): what is beyond it hangs."""
AGENT_S = 30.0
"""For an agent that is told to end: its members' grace, at most this long."""
_ERRORS: dict[str, type[GangflowError]] = {
    kind.code: kind for kind in (JournalFull, JournalLocked, JournalCorrupt, JournalRegressed, ClusterRefused)
}


class _Control:
    """A process that is connected to the Ray cluster and does what it is asked."""

    def __init__(self, address: str, environment: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gangflow.ray.control"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C is ours to handle
            )
        self._log = log
        try:
            self.joined = self.ask("join", address=address)
        except BaseException:
            self.close()
            raise

    def ask(self, do: str, **given: Any) -> dict[str, Any]:
        """Raises what the answer says: SetupError, or a JournalError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, "with": given}).encode() + b"\n")
            self._process.stdin.flush()
            line = self._line()
        except OSError:
            line = b""
        if not line:
            told = self._log.read_text(errors="replace").strip().splitlines()[-1:]
            raise SetupError("the connection to Ray ended: " + "".join(told or ["it said nothing"]), remedy=f"see {self._log}")
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise _ERRORS.get(said["code"], SetupError)(said["error"])
        return said

    def _line(self) -> bytes:
        """The next answer; empty when there will be none."""
        assert self._process.stdout is not None
        fd, said, deadline = self._process.stdout.fileno(), b"", time.monotonic() + ASK_S
        while not said.endswith(b"\n"):
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(fd, 65_536) if ready else b""
            if not piece:
                return b""
            said += piece
        return said

    def close(self) -> None:
        """Let go of Ray; detached actors stay."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class RayCluster:
    """A cluster whose controller, coordinators and agents' wrappers are actors."""

    def __init__(self, home: Home, head: RayHead | None, *, kept: bool) -> None:
        self.home = home
        self.head = head
        self.name = str(home.path)
        self._kept = kept
        self._token = given_token() if kept else ""
        """Of whoever joined it with a token; empty: the admin's."""
        self._control: _Control | None = None
        self._address: tuple[str, str] | None = None
        """(url, token) of a controller whose home may be on another machine."""

    @property
    def dashboard_url(self) -> str:
        """Of Ray's dashboard; empty without one."""
        return self.head.dashboard_url if self.head else ""

    @property
    def dashboard_token(self) -> str:
        """The file with the token that Ray's dashboard asks for; empty without one."""
        return str(Path(self.head.folder) / "token") if self.dashboard_url and self.head else ""

    # --- starting and joining -------------------------------------------------------------------------------------------

    @classmethod
    def start(cls, home: Home, spec: ClusterSpec | None, *, dashboard: bool = False, say: Say = silent) -> RayCluster:
        """Start Ray on this machine and the controller in it.

        Raises:
            SetupError: Ray or an agent did not start.
            JournalError: the journal in the home cannot be used.
        """
        if spec is not None:
            (home.path / "cluster.yaml").write_text(dump(spec))
        say("starting Ray on this machine" + (" with its dashboard" if dashboard else ""))
        cluster = cls(home, start_head(home.path, dashboard=dashboard), kept=False)
        try:
            say("starting the controller and the host agents")
            cluster._connected().ask("controller", home=str(home.path), ours=True)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @classmethod
    def join_home(cls, home: Home, *, say: Say = silent) -> RayCluster:
        """The kept cluster of a home; Ray itself is only spoken to when an actor is needed."""
        say(f"joining the cluster in {home.path}")
        return cls(home, read_head(home.path), kept=True)

    @classmethod
    def join_ray(cls, address: str, *, say: Say = silent) -> RayCluster:
        """The gangflow cluster in somebody's Ray cluster; its controller is started if there is none.

        Ray's own settings apply (`RAY_AUTH_MODE`, `RAY_AUTH_TOKEN_PATH`, …).
        """
        say(f"joining Ray at {address}")
        root().mkdir(parents=True, exist_ok=True, mode=0o700)
        control = _Control(address, {}, root() / "ray-control.log")
        try:
            home = Path(control.joined["home"])
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = control.ask("controller", home=str(home), ours=False)
        except BaseException:
            control.close()
            raise
        # Where its controller lives, which may be another machine.
        home = Path(found["home"])
        if home.is_dir():
            note_head(home, RayHead("", control.joined["address"]))
        cluster = cls(Home(home), None, kept=True)
        cluster._control, cluster._address = control, (found["url"], cluster._token or found["token"])
        return cluster

    # --- use ------------------------------------------------------------------------------------------------------------

    def client(self) -> Client:
        """A client of its controller."""
        return Client(*self._address) if self._address is not None else self.home.client(token=self._token)

    def aclient(self) -> AsyncClient:
        """The same for an event loop."""
        from gangflow.xce.rest.aclient import AsyncClient

        return AsyncClient(*self._address) if self._address is not None else self.home.aclient(token=self._token)

    def coordinate(self, group: str) -> None:
        """Start the group's coordinator as a detached actor."""
        url, token = self._address or (self.home.url, self._token or self.home.token)
        log = self.home.path / f"coordinator-{group}.log"
        self._connected().ask("coordinate", group=group, url=url, token=token, log=str(log))

    def stop(self) -> None:
        """End every group, agent and actor, and Ray if it was started for this cluster. Nothing of a kept one.

        Raises:
            SetupError: somebody else's Ray does not answer, so that nothing could be ended.
        """
        try:
            if not self._kept and self.head is not None and head_alive(self.head):
                self._connected().ask("take_down")
        except SetupError:
            # A Ray of our own that is half dead is ended all the same, by force.
            if self.head is None or not self.head.is_ours:
                raise
        finally:
            if self._control is not None:
                self._control.close()
                self._control = None
            if not self._kept and self.head is not None and self.head.is_ours:
                stop_head(self.home.path)
                _end_agents(self.home.path / "nodes")
        if not self._kept:
            stop_head(self.home.path)

    @classmethod
    def stop_home(cls, home: Home) -> None:
        """Stop the cluster of a home and the Ray that was started for it."""
        cls(home, read_head(home.path), kept=False).stop()

    def _connected(self) -> _Control:
        if self._control is None:
            if self.head is None:
                raise SetupError(f"no Ray cluster is noted in {self.home.path}")
            self._control = _Control(self.head.address, self.head.environment, self.home.path / "ray-control.log")
        return self._control


def _end_agents(nodes: Path) -> None:
    """Agents that nobody could end in order, because Ray or the controller was gone. Each takes its tasks down."""
    found = []
    for lock in nodes.glob("*/agent.lock"):
        try:
            process = psutil.Process(int(lock.read_text()))
            arguments = process.cmdline()
        except (OSError, ValueError, psutil.Error):
            continue
        if "gangflow.xce.hosts.agent" in arguments and str(lock.parent.resolve()) in arguments:
            found.append(process)
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(found, timeout=AGENT_S)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()  # its watchdog does the rest
    psutil.wait_procs(alive, timeout=CLOSE_S)
