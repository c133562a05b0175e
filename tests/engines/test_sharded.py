"""A model that is split over two ranks is the folder's, and each rank has half of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("sharded_ranks.py")


def test_each_rank_has_its_half_of_the_folders_model(tiny_model: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(PROGRAM)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [*words, str(tiny_model), str(tmp_path)], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    for told in ranks:
        assert told["split"]
        assert told["optimized"]
        assert told["checkpointing"]
        assert told["same"]
        assert told["names"]
        assert told["meta"] == []
        assert told["apart"] < 1e-5
        assert told["stops"] == [1]
        assert told["local"] < 0.6 * told["all"]
    assert sum(told["local"] for told in ranks) == ranks[0]["all"]
