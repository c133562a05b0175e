"""`python -m gangflow.supervise -- COMMAND …`: starts a command again whenever a crash ended it. What Ray does for an actor.

An ordinary end (exit code 0, or one of gangflow's own error codes from 2 on, which mean that a new start would end the same)
is final, and its exit code is ours. A signal and 1, with which Python ends at an exception that nobody caught, are crashes.
Signals are passed on. The child dies with us.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType

FINAL_CODES = frozenset({0, *range(2, 10)})
"""0, and `docs/operations.md`'s that name something to be put right first."""
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
HEALTHY_S = 30.0
"""A life this long makes the next pause short again."""
GIVE_UP_S = 3_600.0
"""Without a healthy life for so long, it is left: what it needs does not come back."""
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Supervisor:
    """One command, kept alive."""

    def __init__(self, command: Sequence[str]) -> None:
        # The kernel ends the child when this process is gone, however it went.
        self._command = ["setpriv", "--pdeathsig", "TERM", *command]
        self._child: subprocess.Popen[bytes] | None = None
        self._told: int | None = None
        """The last signal that was to be passed on: an end of the child is final from then on."""
        self._wake = threading.Event()

    def run(self) -> int:
        """Returns the exit code of the last life."""
        for number in PASSED_ON:
            signal.signal(number, self._pass_on)
        pause, code = FIRST_PAUSE_S, 0
        healthy_at = time.monotonic()
        while self._told is None:
            begin = time.monotonic()
            self._child = subprocess.Popen(self._command)
            if self._told is not None:
                self._child.send_signal(self._told)  # It came while the child was being started.
            code = self._child.wait()
            if self._told is not None or code in FINAL_CODES:
                break
            if time.monotonic() - begin > HEALTHY_S:
                pause, healthy_at = FIRST_PAUSE_S, time.monotonic()
            if time.monotonic() - healthy_at > GIVE_UP_S:
                print(f"gangflow: {self._command[3:]} ended with {code}; given up", file=sys.stderr, flush=True)
                break
            print(f"gangflow: {self._command[3:]} ended with {code}; again in {pause:g} s", file=sys.stderr, flush=True)
            self._wake.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
        return max(code, 0)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._told = number
        self._wake.set()
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)


def main() -> int:
    """The command line."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    return Supervisor(arguments).run()


if __name__ == "__main__":
    sys.exit(main())
