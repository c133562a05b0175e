"""How a recipe's program ends: what it says last, and the exit code by which rules know whether a restart can help."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Callable
from typing import Final, NoReturn

from gangflow.errors import GangflowError, SpecError
from gangflow.member.failures import PolicyMismatch


class BadInput(GangflowError, ValueError):
    """What a user has given (a file, a prompt in it, a model's tokenizer) cannot be used. A restart would read it again."""

    code = "bad_input"
    exit_code = 2


FOR_GOOD: Final = (PolicyMismatch, BadInput, SpecError)
"""What a restart would only meet again."""


def ended(work: Callable[[], None], *, for_good: int) -> int:
    """Do the program's work; its exit code: 0, `for_good` for what a restart would meet again, 1 for everything else.

    What it failed of is on stderr: what is expected in a line, with what to do about it; anything else as a traceback.
    """
    try:
        work()
    except GangflowError as error:
        print(f"{error.code}: {error.message}" + (f" ({error.advice})" if error.advice else ""), file=sys.stderr, flush=True)
        return for_good if isinstance(error, FOR_GOOD) else 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def leave(code: int) -> NoReturn:
    """End this process. With anything but 0 at once: nobody waits for threads that still ask or compute, nor can the teardown
    of what they use (torch's now and then aborts) make another code of it. What is registered to be sent last is sent."""
    if code == 0:
        sys.exit(0)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
