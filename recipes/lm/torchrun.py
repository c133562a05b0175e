"""torchrun, ending with its ranks' exit code. Run as `python -m gangflow.recipes.lm.torchrun`, with torchrun's arguments.

torchrun itself ends with 1 whatever its ranks ended with, and the rules of a group go by exit codes (`services.rules`).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Final

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

SILENT: Final = 1
"""The exit code that says nothing: of an exception, and of a signal's victim."""
LATER_S: Final = 5.0
"""How long the launcher of another task than the first waits before it ends with nothing to say. Its ranks see the connection
break as soon as rank 0 ends, and XCE goes by the first task that ended: it has to hear why rank 0 did."""


def exit_code(failures: Mapping[int, ProcessFailure]) -> int:
    """Of a launcher whose ranks (in the order in which they were seen) failed so.

    The first code that says something: a rank that ends by itself breaks its peers' connections, which then end with 1. What
    torchrun ended (SIGTERM), and what a signal ended, says nothing.
    """
    return next((failure.exitcode for failure in failures.values() if failure.exitcode > SILENT), SILENT)


def main(arguments: list[str] | None = None) -> int:
    """Run torchrun to its end; the exit code."""
    try:
        run.main(arguments)
    except ChildFailedError as failed:
        print(failed, file=sys.stderr, flush=True)
        code = exit_code(failed.failures)
        if code == SILENT and os.environ.get("PET_NODE_RANK", "0") != "0":
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Whoever ends the whole job does not wait for this.
            time.sleep(LATER_S)
        return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
