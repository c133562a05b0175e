"""A cluster on this machine without Ray: one controller process, one agent, one coordinator process per group."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from gangflow.clusters import Say, silent, with_scripts
from gangflow.errors import (
    ClusterRefused,
    GangflowError,
    JournalCorrupt,
    JournalFull,
    JournalLocked,
    JournalRegressed,
    SetupError,
)
from gangflow.home import Home, given_token
from gangflow.specs.cluster import ClusterSpec
from gangflow.specs.document import dump
from gangflow.xce.rest.client import Client

if TYPE_CHECKING:
    from gangflow.xce.rest.aclient import AsyncClient

START_S = 60
"""For a controller to recover its journal, find its agents and listen."""
STOP_S = 120
"""For everything to be gone, members' grace periods included."""
COORDINATOR_STOP_S = 5
"""For a coordinator whose XCE is gone to end when it is told to."""
_ERRORS: dict[int, type[GangflowError]] = {
    kind.exit_code: kind for kind in (JournalFull, JournalLocked, JournalCorrupt, JournalRegressed, SetupError, ClusterRefused)
}


class LocalCluster:
    """The cluster of a home."""

    def __init__(self, home: Home, *, kept: bool = False) -> None:
        self.home = home
        self.name = str(home.path)
        self._kept = kept
        self._token = given_token() if kept else ""
        """Of whoever joined it with a token; empty: the admin's."""

    @classmethod
    def start(cls, home: Home, spec: ClusterSpec | None, *, say: Say = silent) -> LocalCluster:
        """Start a controller in a home, under a supervisor that starts it again after a crash.

        Raises:
            SetupError, JournalError: as the controller said it.
        """
        say("starting the controller and its agent (no Ray)")
        if spec is not None:
            (home.path / "cluster.yaml").write_text(dump(spec))
        log = home.path / "controller.log"
        command = [sys.executable, "-m", "gangflow.supervise", "--", sys.executable, "-m", "gangflow.xce.serve"]
        with log.open("ab") as out:
            process = subprocess.Popen(
                [*command, "--home", str(home.path)],
                env=with_scripts(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=out,
                start_new_session=True,
            )
        assert process.stdout is not None
        said = b""
        try:
            with process.stdout:
                said = _first_line(process.stdout.fileno(), START_S)
        finally:
            if not said:  # Ctrl-C, too: nothing of a start that is given up may be left.
                process.send_signal(signal.SIGUSR1)
                code = process.wait(timeout=STOP_S)
        if not said:
            kind = _ERRORS.get(code, SetupError)
            # The error says its code and its remedy itself.
            words = _last_words(log).removeprefix(f"{kind.code}: ").removesuffix(f"\n{kind.remedy}")
            raise kind(words or f"the controller ended with {code}")
        _let_go(process)
        return cls(home)

    def client(self) -> Client:
        """A client of its controller."""
        return self.home.client(token=self._token)

    def aclient(self) -> AsyncClient:
        """The same for an event loop."""
        return self.home.aclient(token=self._token)

    def coordinate(self, group: str) -> None:
        """The coordinator is a supervised process beside the controller."""
        pid = start_coordinator(group, self.home.url, self._token or self.home.token, self.home.path)
        with contextlib.suppress(psutil.NoSuchProcess):
            note = {"pid": pid, "started": psutil.Process(pid).create_time()}
            (self.home.path / f"coordinator-{group}.json").write_text(json.dumps(note))

    def stop(self) -> None:
        """Cancel every group, end the agent and the controller. Nothing of a cluster that is kept for others.

        Raises:
            SetupError: something is still there after two minutes.
        """
        if self._kept:
            return
        self._stop_controller()
        # One that did not hear of its group's end any more would wait for XCE to come back.
        _end_coordinators(self.home)

    def _stop_controller(self) -> None:
        process = _controller(self.home)
        if process is None:
            # A controller that crashed left its agent: start one on the journal again, so that everything ends in order.
            process = self._revive()
        if process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGUSR1)
            try:
                process.wait(timeout=STOP_S)
            except psutil.TimeoutExpired as error:
                raise SetupError(f"the cluster in {self.home.path} did not end within {STOP_S} s") from error

    def _revive(self) -> psutil.Process | None:
        if not self.home.left_behind:
            return None
        with contextlib.suppress(JournalLocked):  # Its own supervisor was faster, and it is on its way up.
            LocalCluster.start(self.home, None)
        deadline = time.monotonic() + START_S
        while (process := _controller(self.home)) is None and time.monotonic() < deadline:
            time.sleep(0.1)
        return process


def _controller(home: Home) -> psutil.Process | None:
    """The controller's process, if it is that: a number alone may mean another process by now."""
    try:
        process = psutil.Process(int(json.loads((home.path / "controller.json").read_text())["pid"]))
        arguments = process.cmdline()
    except (OSError, ValueError, KeyError, psutil.Error):
        return None
    return process if "gangflow.xce.serve" in arguments and str(home.path) in arguments else None


def _end_coordinators(home: Home) -> None:
    """End what is left of the coordinators that were started beside this home's controller."""
    for note in home.path.glob("coordinator-*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, psutil.Error):
            known = json.loads(note.read_text())
            process = psutil.Process(int(known["pid"]))
            # A number alone may mean another process by now; the clock may have been set by a second.
            if abs(process.create_time() - known["started"]) < 2:
                family = [process, *process.children(recursive=True)]
                process.terminate()
                _, left = psutil.wait_procs(family, timeout=COORDINATOR_STOP_S)
                for each in left:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
                psutil.wait_procs(left, timeout=COORDINATOR_STOP_S)
        note.unlink(missing_ok=True)


def start_coordinator(group: str, url: str, token: str, log_folder: Path | None) -> int:
    """Start a group's coordinator as a supervised process in a session of its own; it ends with the group. Its pid."""
    environment = {**os.environ, "XCE_URL": url, "XCE_TOKEN": token}
    command = [sys.executable, "-m", "gangflow.supervise", "--", sys.executable, "-m", "gangflow.coordinators.run"]
    target = (log_folder / f"coordinator-{group}.log").open("ab") if log_folder else subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            [*command, "--group", group],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=target,
            stderr=target,
            start_new_session=True,
        )
        _let_go(process)
        return process.pid
    finally:
        if not isinstance(target, int):
            target.close()


def _let_go(process: subprocess.Popen[bytes]) -> None:
    """It is meant to outlive this object, and this process: no warning about that. The thread only waits for its end."""
    threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()


def _last_words(log: Path) -> str:
    """What the controller said last: `code: message`, which may go on over several lines, and its advice."""
    lines = log.read_text(errors="replace").strip().splitlines()
    begins = [number for number, line in enumerate(lines) if re.match(r"[a-z_]+: ", line)]
    return "\n".join(lines[begins[-1] :] if begins else lines[-1:])


def _first_line(fd: int, limit_s: float) -> bytes:
    """What the controller says when it is ready; empty if it ended or did not say so in time."""
    deadline = time.monotonic() + limit_s
    said = b""
    while not said.endswith(b"\n"):
        ready, _, _ = select.select([fd], [], [], max(0, deadline - time.monotonic()))
        piece = os.read(fd, 4096) if ready else b""
        if not piece:
            return b""
        said += piece
    return said
