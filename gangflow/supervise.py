"""`python -m gangflow.supervise -- COMMAND …`: starts a command again whenever a crash ended it. What Ray does for an actor.

An ordinary end (exit code 0, or one of gangflow's own error codes, which mean that a new start would end the same) is final,
and its exit code is ours. Signals are passed on. The child dies with us.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

FINAL_CODES = range(10)
"""0, and `docs/operations.md`'s."""
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
HEALTHY_S = 30.0
"""A life this long makes the next pause short again."""
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Supervisor:
    """One command, kept alive."""

    def __init__(self, command: Sequence[str]) -> None:
        # The kernel ends the child when this process is gone, however it went.
        self._command = ["setpriv", "--pdeathsig", "TERM", *command]
        self._child: subprocess.Popen[bytes] | None = None
        self._ending = False

    def run(self) -> int:
        """Returns the exit code of the last life."""
        for number in PASSED_ON:
            signal.signal(number, self._pass_on)
        pause = FIRST_PAUSE_S
        while True:
            begin = time.monotonic()
            self._child = subprocess.Popen(self._command)
            code = self._child.wait()
            if self._ending or code in FINAL_CODES:
                return max(code, 0)
            if time.monotonic() - begin > HEALTHY_S:
                pause = FIRST_PAUSE_S
            print(f"gangflow: {self._command[3:]} ended with {code}; again in {pause:g} s", file=sys.stderr, flush=True)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._ending = True
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)
        elif self._child is None:
            sys.exit(0)


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
