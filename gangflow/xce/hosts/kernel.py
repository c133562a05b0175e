"""What is asked of Linux beyond Python's standard library: subreaper, parent-death signal, boot-time clock, OOM kills."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from functools import cache

_PR_SET_CHILD_SUBREAPER = 36

_LEFT_ALONE = {signal.SIGPIPE, signal.SIGKILL, signal.SIGSTOP}
_SHIM = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != parent:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.stderr.write(f"setpriv: failed to execute {sys.argv[2]}: {error.strerror}\\n")
    sys.exit(127 if error.errno == 2 else 126)
"""


def become_subreaper() -> None:
    """Orphans of our descendants become our children, so that we can find and reap them. OSError if refused."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


@cache
def death_wrapper() -> tuple[str, ...]:
    """The command prefix that ties a child's life to ours: SIGKILL when the thread that forked it ends. `setpriv` (util-linux,
    part of every Debian) costs 0.3 ms; where it is missing, Python does the same in about 15 ms."""
    setpriv = shutil.which("setpriv", path=os.environ.get("PATH", "") + ":/usr/bin:/bin")
    if setpriv:
        wrapper = (setpriv, "--pdeathsig", "KILL", "--")
        # BusyBox has a setpriv without this option.
        if subprocess.run([*wrapper, "true"], check=False, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0:
            return wrapper
    return (sys.executable, "-I", "-S", "-c", _SHIM, str(os.getpid()))


EXEC_FAILED = "setpriv: failed to execute"
"""How the wrapper's line on stderr begins when the command could not be executed (it then exits with 126 or 127)."""


def plain_signals() -> None:
    """Undo what whoever started us had ignored or blocked (`nohup`, a shell's `&`): our children would inherit it."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals() - _LEFT_ALONE:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def allow_files(wanted: int) -> None:
    """Raise our limit of open files towards `wanted`, as far as the hard limit lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    best = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < best:
        resource.setrlimit(resource.RLIMIT_NOFILE, (best, hard))


def boottime() -> float:
    """Seconds of CLOCK_BOOTTIME: it goes on while the machine sleeps, so a lease cannot outlive a suspend unnoticed."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def oom_kills() -> int:
    """How often the kernel's OOM killer has struck on this machine since it booted; 0 where that cannot be read."""
    try:
        with open("/proc/vmstat", "rb") as file:
            for line in file:
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0


def kernel_log() -> str | None:
    """The kernel's message buffer; None where it may not be read."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    lines: list[bytes] = []
    try:
        while True:
            try:
                record = os.read(fd, 16384)
            except BlockingIOError:
                break
            except BrokenPipeError:  # the record was overwritten while we read: go on with the next
                continue
            except OSError:
                return None if not lines else b"".join(lines).decode("utf-8", "replace")
            if not record:
                break
            lines.append(record)
    finally:
        os.close(fd)
    return b"".join(lines).decode("utf-8", "replace")
