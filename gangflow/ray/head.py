"""A Ray cluster of gangflow's own on this machine: started with `ray start --head`, ended process by process.

A cluster that `ray.init()` starts dies with its driver, and `ray stop` ends every Ray on the machine. So ours is started by
Ray's command, with a folder, ports and a token of its own, and taken down by the mark in its processes' environment.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_fixed

from gangflow.clusters import with_scripts
from gangflow.errors import SetupError

MARK = "GANGFLOW_RAY"
"""In the environment of every process of one of our Ray clusters: its folder."""
OBJECT_STORE_BYTES = 100_000_000
"""Nothing of ours travels through the object store; Ray wants at least 75 MB."""
START_ATTEMPTS = 3
"""Ray waits 30 s for its raylet, hard-coded, and has been seen to fail that under load."""
START_TIMEOUT_S = 90
STOP_TIMEOUT_S = 10
_HEART = "gcs_server"
"""What has this in its command line is the process without which there is no Ray cluster."""
_LABELS_OF_FAULT = ("Error", "error", "failed")


@dataclass(frozen=True, slots=True)
class RayHead:
    """Where our Ray cluster is, as `ray.json` in the home of the gangflow cluster has it."""

    folder: str
    """Of the Ray that was started for this home; empty when it is somebody else's."""
    address: str
    """Empty while Ray is just being started."""
    dashboard_url: str = ""
    """Empty when it was started without a dashboard."""

    @property
    def is_ours(self) -> bool:
        """Whether it was started for this home alone."""
        return bool(self.folder)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to join this cluster and no other. Somebody else's: whatever is set."""
        if not self.is_ours:
            return {}
        return {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(Path(self.folder) / "token"),
            "RAY_TMPDIR": self.folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            # Ray warns on every start that it will stop doing this; we ask for the new behaviour.
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            MARK: self.folder,
        }


class _StartFailed(Exception):
    pass


def without_ray(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without anything of Ray's: what a member of a group starts from."""
    ours = ("RAY_", MARK, "GANGFLOW_DASHBOARD_HOME", "PYTHONPATH_BEFORE_RAY")
    clean = {key: value for key, value in environment.items() if not key.startswith(ours)}
    before = environment.get("PYTHONPATH_BEFORE_RAY")
    if before is not None:
        if before:
            clean["PYTHONPATH"] = before
        else:
            clean.pop("PYTHONPATH", None)
    return clean


def start_head(home: Path, *, dashboard: bool = True, cpus: int | None = None) -> RayHead:
    """Start a Ray cluster for the gangflow cluster at `home` and note it in `ray.json`.

    Raises:
        SetupError: Ray did not come up in three attempts; carries the last lines that it printed.
    """
    # What an earlier one left, which nobody governs any more.
    stop_head(home)
    # Ray's sockets have long names below its folder, and a unix socket's path ends at 107 bytes: not below `home`.
    folder = Path(tempfile.mkdtemp(prefix="gf-ray-"))
    # Noted first: whoever is killed in the middle of a start leaves something that `stop_head` can find.
    note_head(home, RayHead(str(folder), ""))
    try:
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        head = _start(folder, home, dashboard, cpus)
    except _StartFailed as error:
        stop_head(home)
        raise SetupError(f"Ray did not start: {error}", remedy="see `ray start --head` on this machine") from error
    except BaseException:
        stop_head(home)
        raise
    note_head(home, head)
    return head


def note_head(home: Path, head: RayHead) -> None:
    """Say in the home which Ray it lives in."""
    (home / "ray.json").write_text(json.dumps(asdict(head)))


@retry(retry=retry_if_exception_type(_StartFailed), stop=stop_after_attempt(START_ATTEMPTS), wait=wait_fixed(1), reraise=True)
def _start(folder: Path, home: Path, dashboard: bool, cpus: int | None) -> RayHead:
    dashboard_port, client_port = _free_ports(2)
    head = RayHead(str(folder), "", f"http://127.0.0.1:{dashboard_port}" if dashboard else "")
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--port=0", f"--temp-dir={folder / 'r'}",
        f"--object-store-memory={OBJECT_STORE_BYTES}", "--disable-usage-stats", "--node-ip-address=127.0.0.1",
        f"--include-dashboard={str(dashboard).lower()}", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard_port}",
        f"--ray-client-server-port={client_port}", "--dashboard-agent-listen-port=0", "--dashboard-agent-grpc-port=0",
        "--runtime-env-agent-port=0", "--metrics-export-port=0", "--no-monitor", "--include-log-monitor=false",
        *([f"--num-cpus={cpus}"] if cpus is not None else []),
    ]  # fmt: skip
    environment = with_scripts(without_ray(os.environ)) | head.environment | _dashboard_environment(home)
    try:
        outcome = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=START_TIMEOUT_S,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        _end_processes(str(folder))
        raise _StartFailed(f"no answer within {START_TIMEOUT_S} s") from error
    noted = folder / "r" / "ray_current_cluster"
    if outcome.returncode != 0 or not noted.exists():
        _end_processes(str(folder))
        lines = (outcome.stdout + outcome.stderr).strip().splitlines()
        telling = [line for line in lines if any(label in line for label in _LABELS_OF_FAULT)] or lines
        raise _StartFailed("; ".join(telling[-3:]) or f"exit code {outcome.returncode}")
    return RayHead(str(folder), noted.read_text().strip(), head.dashboard_url)


def _dashboard_environment(home: Path) -> dict[str, str]:
    """Let Ray's dashboard find our page: a folder with a `sitecustomize` that does nothing in any other process."""
    from gangflow.integrations import ray_dashboard

    before = os.environ.get("PYTHONPATH", "")
    site = str(Path(ray_dashboard.__file__).with_name("site"))
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, (site, before))),
        "PYTHONPATH_BEFORE_RAY": before,
        "GANGFLOW_DASHBOARD_HOME": str(home),
    }


def read_head(home: Path) -> RayHead | None:
    """The Ray cluster that this home's cluster lives in, if there is one; it need not be alive."""
    try:
        return RayHead(**json.loads((home / "ray.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def stop_head(home: Path) -> None:
    """End every process of the Ray that was started for this home, and forget it. Nothing of any other Ray is touched."""
    head = read_head(home)
    if head is not None and head.is_ours:
        _end_processes(head.folder)
        shutil.rmtree(head.folder, ignore_errors=True)
    (home / "ray.json").unlink(missing_ok=True)


def head_alive(head: RayHead) -> bool:
    """Whether a Ray cluster of our own can still be asked something; of somebody else's we do not know."""
    return not head.is_ours or any(True for _ in _processes(head.folder, _HEART))


def _processes(folder: str, words: str = "") -> Iterator[psutil.Process]:
    """Of one Ray cluster of ours: all that have its mark. Agents and members are started without it."""
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if _marked(process.pid, folder) and words in " ".join(process.cmdline()):
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue


def _marked(pid: int, folder: str) -> bool:
    """Whether a process is of the Ray in this folder, by its environment.

    Ray's agents write their title over the front of their environment, and with it the mark; what is left of Ray's own
    variables may still name the folder. Members and our agents have none of these.
    """
    return folder.encode() in Path(f"/proc/{pid}/environ").read_bytes()


def _family(folder: str) -> list[psutil.Process]:
    """All processes of one Ray: the marked ones, and Ray's own below them, of which some have nothing left of the mark."""
    found = {process.pid: process for process in _processes(folder)}
    for process in list(found.values()):
        try:
            for child in process.children(recursive=True):
                if " ".join(child.cmdline()).startswith("ray::"):
                    found.setdefault(child.pid, child)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return list(found.values())


def _end_processes(folder: str) -> None:
    found = _family(folder)
    for ask in (psutil.Process.terminate, psutil.Process.kill):
        for process in found:
            try:
                ask(process)
            except psutil.NoSuchProcess:
                continue
        _, left = psutil.wait_procs(found, timeout=STOP_TIMEOUT_S if ask is psutil.Process.kill else 2)
        known = {process.pid: process for process in left}
        found = list({**{process.pid: process for process in _family(folder)}, **known}.values())


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
