"""A rank of a torchrun job, for test_torchrun_tasks.py: meets the others over gloo, and says who it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist

import gangflow


def main() -> None:
    context = gangflow.context()
    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    told = {"task": context.task, "local": int(os.environ["LOCAL_RANK"]), "world": dist.get_world_size(), "sum": float(total)}
    Path(context.claims["ckpt"], f"rank-{dist.get_rank()}-{context.incarnation}.json").write_text(json.dumps(told))
    dist.barrier()
    if os.environ.get("DIES") == str(dist.get_rank()) and context.incarnation == 1:
        raise SystemExit(3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
