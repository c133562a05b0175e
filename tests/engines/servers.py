"""Real vLLM servers for tests: a nursery that forks them quickly, the plain command, and what is left of them."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
VENV = Path(os.environ.get("GANGFLOW_VLLM_VENV", ROOT / ".venv-vllm"))
QUICK = Path(__file__).with_name("quick_vllm.py")
NAME = "tiny"
"""What the servers call their model."""
START_S = 240.0
END_S = 30.0
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # As `VllmServer.on_cpu` has it: a worker within the engine core.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


def arguments(model: Path, port: int) -> list[str]:
    """Of `vllm`, for a tiny model on this CPU."""
    return [
        "serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--served-model-name", NAME, "--dtype", "float32",
        "--max-model-len", "256", "--enforce-eager", "--num-gpu-blocks-override", "512", "--enable-scale-out",
    ]  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(slots=True)
class Server:
    """One `vllm serve` in a session of its own, whoever its parent is."""

    url: str
    pid: int
    log: Path
    popen: subprocess.Popen[bytes] | None = None

    def processes(self) -> dict[str, int]:
        """What lives of it, by name: `server`, `VLLM::EngineCore`, …"""
        return {"server" if pid == self.pid else title: pid for pid, title in in_session(self.pid).items()}

    @property
    def alive(self) -> bool:
        return self.pid in in_session(self.pid)

    def wait_healthy(self) -> None:
        """AssertionError with the end of its log when it ends, or does not answer in time."""
        until(lambda: not self.alive or answers(self.url), START_S, lambda: f"{self.url} is not healthy: {self.tail()}")
        assert self.alive, f"the server ended before it was healthy: {self.tail()}"

    def tail(self, size: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-size:]

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for what is left after a while. Nothing of it lives when this returns."""
        signalled(self.pid, signal.SIGCONT)
        if signalled(self.pid, signal.SIGTERM):
            gone(lambda: self.alive, END_S)
        # What it leaves behind (all of it, when it was killed before) would stay.
        for pid in in_session(self.pid):
            signalled(pid, signal.SIGKILL)
        gone(lambda: bool(in_session(self.pid)), END_S)
        if self.popen is not None:
            self.popen.wait(END_S)
        assert not in_session(self.pid)


class Nursery:
    """Imports vLLM once; each server is a fork of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = str(folder / "nursery")
        self._count = 0
        self._log = folder / "nursery.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(VENV / "bin/python"), str(QUICK), "--nursery", self._socket],
                env={**os.environ, **ENVIRONMENT}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def serve(self, model: Path) -> Server:
        """A server that was just begun: `wait_healthy` before it is asked."""
        until(
            lambda: self._process.poll() is not None or os.path.exists(self._socket),
            START_S,
            lambda: f"vLLM was not imported: {self._log.read_text(errors='replace')[-3000:]}",
        )
        assert self._process.poll() is None, self._log.read_text(errors="replace")[-3000:]
        self._count += 1
        port = free_port()
        log = self._folder / f"server-{self._count}.log"
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._socket)
            request = {"argv": arguments(model, port), "env": {}, "log": str(log)}
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(connection.makefile().read())
        return Server(f"http://127.0.0.1:{port}", answer["pid"], log)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(END_S)


def plain(model: Path, folder: Path) -> Server:
    """The plain command, as users have it. It was just begun."""
    port = free_port()
    log = folder / f"plain-{port}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(VENV / "bin/vllm"), *arguments(model, port)],
            env={**os.environ, **ENVIRONMENT}, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    return Server(f"http://127.0.0.1:{port}", process.pid, log, process)


def restore(url: str, model: Path) -> None:
    """As it was when it started: the model's own weights under the version `default`, admitting, nothing cached."""
    with httpx.Client(base_url=url, timeout=30.0, trust_env=False) as client:
        for path, body in (
            ("/pause?mode=abort", None),
            ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(model)}}),
            ("/reset_prefix_cache", None),
            ("/update_weight_version", {"new_version": "default"}),
            ("/resume", None),
        ):
            client.post(path, json=body).raise_for_status()


def answers(url: str) -> bool:
    """Whether /health is 200."""
    try:
        return httpx.get(f"{url}/health", timeout=2.0, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def make_model(folder: Path, *, seed: int = 0) -> Path:
    """A tiny model (Qwen3, a third of a million parameters, characters as tokens) in that folder, as the recipes make it."""
    command = [sys.executable, "-m", "gangflow.recipes.lm.tiny", str(folder), "--seed", str(seed)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    made = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr
    return folder


# --- processes, as the kernel knows them


def in_session(session: int) -> dict[int, str]:
    """pid → title of all that lives in a session; zombies are not alive."""
    found: dict[int, str] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            state, _, _, sid = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:4]
            if int(sid) == session and state not in "ZX":
                found[int(entry)] = Path(f"/proc/{entry}/cmdline").read_text().replace("\0", " ").strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def signalled(pid: int, sign: signal.Signals) -> bool:
    """Whether there was still somebody to signal."""
    try:
        os.kill(pid, sign)
    except ProcessLookupError:
        return False
    return True


def until(true: Callable[[], object], deadline_s: float, story: Callable[[], str]) -> None:
    """Wait for something that only looking can tell. AssertionError with the story when the deadline has passed."""
    assert gone(lambda: not true(), deadline_s), story()


def gone(still: Callable[[], bool], deadline_s: float) -> bool:
    """Whether that came to an end before the deadline."""
    deadline = time.monotonic() + deadline_s
    while still():
        if time.monotonic() > deadline:
            return False
        select.select([], [], [], 0.05)
    return True


def stop_all(servers: Sequence[Server]) -> None:
    for server in servers:
        signalled(server.pid, signal.SIGTERM)
    for server in servers:
        server.stop()
