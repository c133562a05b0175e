"""A rank of a learner in a test of several; run by torchrun, or alone: `lm_ranks.py MODEL OUT MODE`.

MODE is JSON: settings of the learner; `die`: the rank that dies in the second step (with SIGKILL); `full`: the rank for which
there is no room when a checkpoint is saved for the first time.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemWriter

from gangflow.recipes.grpo.lm.config import LmConfig
from gangflow.recipes.grpo.lm.learner import Learner
from gangflow.recipes.lm import checkpoint
from gangflow.recipes.lm.ranks import Team
from tests.engines.test_lm_learner import batch


class Mortal(Learner):
    """Dies in its second step, if it is the one."""

    die = -1

    def train(self, made: Any) -> Any:
        if self.step == 1 and self.team.rank == self.die:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(made)


def no_room_once(*, leads: bool) -> None:
    """The leader cannot make the folder; another rank cannot write its part."""
    owner, name = (checkpoint, "_begin") if leads else (FileSystemWriter, "write_data")
    real = getattr(owner, name)

    def refuses(*_: Any) -> None:
        setattr(owner, name, real)
        raise OSError(errno.ENOSPC, "No space left on device")

    setattr(owner, name, refuses)


def main() -> None:
    torch.set_num_threads(1)
    model, out, mode = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    Mortal.die = mode.pop("die", -1)
    full = mode.pop("full", -1)
    team = Team.join("cpu")
    if team.rank == full:
        no_room_once(leads=team.leads)
    config = LmConfig(**{"prompts": 3, "samples": 4, "steps": 10, "actor_procs": team.size, **mode})
    learner = Mortal.start(str(model), config, team)
    if not team.leads:
        team.follow(learner)
        team.leave()
        return
    saved = out / "saved"
    if saved.exists():
        team.all(learner, "load", saved)
    reports = [
        team.all(learner, "train", batch(model, seed=seed, stale=0.01)) for seed in range(learner.step, learner.step + 2)
    ]
    team.all(learner, "export", out / f"weights-{team.size}-{learner.step}")
    refused = 0
    while not saved.exists():
        try:
            team.all(learner, "save", saved)
        except OSError as error:
            if error.errno != errno.ENOSPC or any(out.glob(".*")):  # nothing may be left of it
                raise
            refused += 1
    probe = team.all(learner, "probe", [5, 6, 7, 8])
    told = {
        "steps": learner.step,
        "kl": [report.kl for report in reports],
        "norm": [report.norm for report in reports],
        "importance": [report.importance for report in reports],
        "tokens": [report.tokens for report in reports],
        "probe": probe.logprobs,
        "refused": refused,
    }
    (out / f"told-{team.size}.json").write_text(json.dumps(told))
    team.end()
    team.leave()


if __name__ == "__main__":
    main()
