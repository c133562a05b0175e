"""Exit causes: from a wait status, what we did, what stderr and the kernel say."""

from __future__ import annotations

import signal

import pytest

from gangflow.xce.core.plan import Cause
from gangflow.xce.hosts import exits, kernel
from gangflow.xce.hosts.exits import Ending, classify, died_of_memory, named_as_oom_victim, signal_name


@pytest.mark.parametrize(
    ("status", "tail", "oom", "cause", "code", "number"),
    [
        (0, "", False, None, 0, None),
        (3, "", False, Cause.APP_EXIT, 3, None),
        (127, "sh: 1: nope: not found", False, Cause.APP_EXIT, 127, None),
        (127, "setpriv: failed to execute x: No such file", False, Cause.START_FAILED, 127, None),
        (126, "noise\nsetpriv: failed to execute x: Permission denied", False, Cause.START_FAILED, 126, None),
        (1, "setpriv: failed to execute x: said by the application", False, Cause.APP_EXIT, 1, None),
        (-9, "", False, Cause.SIGNAL, None, 9),
        (-9, "", True, Cause.OOM, None, 9),
        (1, "", True, Cause.OOM, 1, None),
        (0, "", True, None, 0, None),
    ],
)
def test_causes(status: int, tail: str, oom: bool, cause: Cause | None, code: int | None, number: int | None) -> None:
    verdict = classify(status, None, tail, oom)
    assert (verdict.cause, verdict.code, verdict.signal) == (cause, code, number)
    assert verdict.message


def test_what_we_did_explains_it() -> None:
    stopped = classify(-15, Ending(None, "stopped"), "", False)
    assert (stopped.cause, stopped.signal, stopped.message) == (None, 15, "stopped; killed by SIGTERM")
    unhealthy = classify(-9, Ending(Cause.UNHEALTHY, "live probe failed: x"), "", True)
    assert unhealthy.cause is Cause.UNHEALTHY


def test_signal_names() -> None:
    assert signal_name(signal.SIGSEGV) == "SIGSEGV"
    assert signal_name(int(signal.SIGRTMIN) + 3) == f"signal {int(signal.SIGRTMIN) + 3}"


LOG = """6,1,1,-;Memory cgroup out of memory: Killed process 123 (python) total-vm:1kB
3,2,2,-;Out of memory: Killed process 77 (x)
"""


def test_the_kernels_log_names_its_victims() -> None:
    assert named_as_oom_victim(LOG, 123)
    assert named_as_oom_victim(LOG, 77)
    assert not named_as_oom_victim(LOG, 12)
    assert not named_as_oom_victim(LOG, 7)


@pytest.mark.parametrize(
    ("killed", "kills", "log", "verdict"),
    [(True, 5, LOG, True), (True, 4, LOG, False), (False, 5, LOG, False), (True, 5, "", False), (True, 5, None, True)],
)
def test_died_of_memory(monkeypatch: pytest.MonkeyPatch, killed: bool, kills: int, log: str | None, verdict: bool) -> None:
    monkeypatch.setattr(kernel, "oom_kills", lambda: kills)
    monkeypatch.setattr(kernel, "kernel_log", lambda: log)
    assert died_of_memory(123, killed, 4) is verdict
    assert exits.kernel is kernel
