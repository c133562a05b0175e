"""Writing into a shared folder that may be full: free what nobody needs, wait, try again, and say so all the while."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable
from typing import Final, TypeVar

from gangflow.errors import GangflowError

T = TypeVar("T")

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
PAUSE_S: Final = 1.0


class DiskFull(GangflowError):
    """There was no room to write a checkpoint or weights, for too long."""

    code = "disk_full"
    remedy = "make room in the claim, or take a larger one; a restarted actor goes on from its newest checkpoint"


def is_full(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, says that the disk (or the quota) is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        error = error.__cause__ or error.__context__
    return False


def with_room(
    what: str,
    write: Callable[[], T],
    *,
    free: Callable[[], None],
    waiting: Callable[[str], None],
    patience_s: float,
    pause_s: float = PAUSE_S,
) -> T:
    """What `write` returns. While the disk is full: `free`, then wait and try again, for at most `patience_s`, then DiskFull.

    `write` must leave nothing half-done behind when it fails, and may be called any number of times. `waiting` is called with
    the reason before each further attempt. Every other error is raised as it is.
    """
    deadline = time.monotonic() + patience_s
    attempt = 0
    while True:
        try:
            return write()
        except Exception as error:
            if not is_full(error):
                raise
            reason = f"{what}: the disk is full ({error})"
            if time.monotonic() + pause_s > deadline:
                raise DiskFull(f"{reason}, for {patience_s:g} s") from error
        if not attempt:
            print(f"{reason}; freeing what nobody needs", file=sys.stderr, flush=True)
        attempt += 1
        free()
        waiting(reason)
        if attempt > 1:  # what was freed may be enough
            time.sleep(pause_s)
