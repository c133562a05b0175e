"""Why did it end? From a main process's wait status and what we did to it, the cause that failure rules match."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from gangflow.xce.core.plan import Cause
from gangflow.xce.hosts import kernel


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a task ended, as its exit report says it."""

    cause: Cause | None
    code: int | None
    signal: int | None
    message: str


@dataclass(frozen=True, slots=True)
class Ending:
    """What we did to a task: nothing matches `cause` None (it was asked for)."""

    cause: Cause | None
    message: str


def classify(status: int, ending: Ending | None, stderr_tail: str, oom: bool) -> Verdict:
    """`status` is an exit code, or a signal's number negated."""
    code = status if status >= 0 else None
    number = -status if status < 0 else None
    how = f"exited with code {code}" if number is None else f"killed by {signal_name(number)}"
    if ending is not None:
        return Verdict(ending.cause, code, number, f"{ending.message}; {how}" if ending.message else how)
    if oom and status != 0:
        return Verdict(Cause.OOM, code, number, f"out of memory: {how}")
    if number is not None:
        return Verdict(Cause.SIGNAL, None, number, how)
    if code in (126, 127) and kernel.EXEC_FAILED in stderr_tail:
        line = next(line for line in reversed(stderr_tail.splitlines()) if kernel.EXEC_FAILED in line)
        return Verdict(Cause.START_FAILED, code, None, line.removeprefix("setpriv: "))
    return Verdict(None if code == 0 else Cause.APP_EXIT, code, None, how)


def signal_name(number: int) -> str:
    """`SIGKILL`, or `signal 40` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def named_as_oom_victim(log: str, pid: int) -> bool:
    """Whether the kernel's log says that the OOM killer took this process."""
    return re.search(rf"[Oo]ut of memory: Killed process {pid} ", log) is not None


def died_of_memory(pid: int, killed: bool, kills_before: int) -> bool:
    """Whether a process that got SIGKILL (`killed`) got it from the kernel for want of memory. `kills_before` is
    `kernel.oom_kills()` a moment ago: where the kernel's log is closed to us, a new kill in that moment is the best evidence
    there is."""
    if not killed or kernel.oom_kills() == kills_before:
        return False
    log = kernel.kernel_log()
    return True if log is None else named_as_oom_victim(log, pid)
