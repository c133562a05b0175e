"""The supervisor with real children: a crash is followed by another life, an end that means something is final."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gangflow import supervise

DEADLINE_S = 60.0
Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a supervised shell script; each life of it adds its pid to the file `lives`."""
    begun: list[subprocess.Popen[str]] = []

    def supervise(script: str) -> subprocess.Popen[str]:
        lived = f"echo $$ >> {tmp_path}/lives; life=$(wc -l < {tmp_path}/lives)\n{script}"
        command = [sys.executable, "-m", "gangflow.supervise", "--", "sh", "-c", lived]
        begun.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return begun[-1]

    yield supervise
    for process in begun:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=DEADLINE_S)


def _lives(folder: Path, count: int) -> list[int]:
    """The pids of the lives so far, as soon as there are so many."""
    file, end = folder / "lives", time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        if file.exists() and len(pids := file.read_text().split()) >= count:
            return [int(pid) for pid in pids]
        time.sleep(0.01)
    raise AssertionError(f"not {count} lives within {DEADLINE_S:g} s")


def _gone(pid: int) -> None:
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except OSError:
            return
        time.sleep(0.01)
    raise AssertionError(f"{pid} is still there")


def test_a_killed_child_lives_again(start: Start, tmp_path: Path) -> None:
    supervisor = start("test $life = 1 && exec sleep 1000; exit 0")
    (first,) = _lives(tmp_path, 1)
    os.kill(first, signal.SIGKILL)
    assert supervisor.wait(timeout=DEADLINE_S) == 0
    assert len(_lives(tmp_path, 2)) == 2
    assert supervisor.stderr is not None
    assert "ended with -9; again in 0.2 s" in supervisor.stderr.read()


def test_an_exception_that_nobody_caught_is_a_crash(start: Start, tmp_path: Path) -> None:
    supervisor = start("test $life = 1 && exit 1; exit 0")
    assert supervisor.wait(timeout=DEADLINE_S) == 0
    assert len(_lives(tmp_path, 2)) == 2


@pytest.mark.parametrize("code", [0, 2, 5, 6, 7, 8, 9])
def test_an_end_that_another_start_would_repeat_is_final(start: Start, tmp_path: Path, code: int) -> None:
    assert start(f"exit {code}").wait(timeout=DEADLINE_S) == code
    assert len(_lives(tmp_path, 1)) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_the_child_and_its_end_is_final_then(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    supervisor = start(
        f"trap 'touch {tmp_path}/told-{number}; exit 70' TERM INT USR1; touch {tmp_path}/ready; while :; do sleep 0.02; done"
    )
    _lives(tmp_path, 1)
    end = time.monotonic() + DEADLINE_S
    while not (tmp_path / "ready").exists() and time.monotonic() < end:
        time.sleep(0.01)
    supervisor.send_signal(number)
    assert supervisor.wait(timeout=DEADLINE_S) == 70
    assert (tmp_path / f"told-{number}").exists()
    assert len(_lives(tmp_path, 1)) == 1


def test_a_signal_between_two_lives_ends_it_without_another(start: Start, tmp_path: Path) -> None:
    supervisor = start("test $life -lt 4 || exec sleep 1000; kill -9 $$")
    _lives(tmp_path, 3)
    assert supervisor.stderr is not None
    for line in supervisor.stderr:
        if "again in 0.8 s" in line:
            supervisor.terminate()
            break
    assert supervisor.wait(timeout=DEADLINE_S) == 0
    assert len(_lives(tmp_path, 3)) == 3


def test_the_child_dies_with_its_supervisor(start: Start, tmp_path: Path) -> None:
    supervisor = start("exec sleep 1000")
    (child,) = _lives(tmp_path, 1)
    supervisor.kill()
    _gone(child)


def test_what_never_lives_long_is_given_up(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(supervise, "GIVE_UP_S", 0.0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest's own handlers stay
    assert supervise.Supervisor(["sh", "-c", "exit 33"]).run() == 33
    assert "given up" in capfd.readouterr().err
