"""A rank for test_torchrun.py: `ending_rank.py FOLDER`. Meets the others over gloo, says so there, and ends as ENDS says.

ENDS: JSON, rank → exit code, or "killed"; the others wait for a message of a rank that ends, as followers of a leader do.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.barrier()
    Path(sys.argv[1], str(rank)).write_text(str(os.getpid()))
    ends = json.loads(os.environ["ENDS"])
    how = ends.get(str(rank))
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how is not None:
        os._exit(how)
    source = int(next(iter(ends), 1 - rank))
    dist.broadcast(torch.zeros(1), src=source)


if __name__ == "__main__":
    main()
