"""The reward model: trained first, then served. Run as `python -m gangflow.recipes.rlhf_ppo.reward`.

The first slot trains it on preference pairs, measures on held-out pairs how often it agrees with the annotators, before and
after, and saves it in the claim; others wait for it. A restarted one finds it there and serves at once. `/health` answers once
it serves: a reward model that is READY is trained.

    /score {sequences} → {scores, model}    one number for each reply (packed), and the fingerprint of what gave it
    /about {} → {model, report}             what was measured
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from gangflow.member.digest import write_atomically
from gangflow.member.identity import Identity
from gangflow.recipes.lm import model as models
from gangflow.recipes.lm import wire
from gangflow.recipes.lm.batch import pack
from gangflow.recipes.lm.claim import MODEL
from gangflow.recipes.lm.ranks import Team
from gangflow.recipes.rlhf_ppo import data as datasets
from gangflow.recipes.rlhf_ppo import task
from gangflow.recipes.rlhf_ppo.config import Config
from gangflow.recipes.rlhf_ppo.preferences import RewardModel, Scale
from gangflow.recipes.rlhf_ppo.scalar import Scalar
from gangflow.recipes.rlhf_ppo.texts import Texts
from gangflow.recipes.services.ending import ended, leave
from gangflow.recipes.services.packing import pack_floats
from gangflow.recipes.services.rules import CKPT, WRONG_INPUT
from gangflow.recipes.services.serving import Answer, check_asker, serve

FOLDER: Final = "reward"
"""In the claim: `model/`, a model folder, and the report, which is written last."""
REPORT: Final = "report.json"
LOOK_S: Final = 0.5
"""Between two looks of a slot that waits for the first one's model."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A reward model that may be served."""

    folder: Path
    fingerprint: str
    scale: Scale
    report: Mapping[str, Any]
    """What was measured."""


class Scorer:
    """What is served."""

    def __init__(self, model: RewardModel, team: Team, fingerprint: str, report: Mapping[str, Any]) -> None:
        self._model = model
        self._team = team
        self._fingerprint = fingerprint
        self._report = dict(report)
        self._lock = threading.Lock()

    def answers(self) -> dict[str, Answer]:
        """Path → what answers it."""
        return {"/score": self.score, "/about": self.about}

    def about(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What was measured."""
        return {"model": self._fingerprint, "report": self._report}

    def score(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The score of each reply. ValueError for what cannot be scored: never a score of 0 instead."""
        batch = pack(*wire.read(asked["sequences"], self._model.model.vocabulary))
        with self._lock:
            check_asker()
            scores = self._team.all(self._model, "scores", batch)
        return {"scores": pack_floats(scores.tolist()), "model": self._fingerprint}


def saved(folder: Path) -> Trained | None:
    """The reward model that was saved; None when there is none, or when it is not what was saved."""
    try:
        document = json.loads((folder / REPORT).read_text())
        found = Trained(
            folder / document["folder"], document["model"], Scale(document["mean"], document["std"]), document["report"]
        )
        if models.fingerprint(found.folder) == found.fingerprint:
            return found
        print(f"{found.folder} is not what was saved there; it is made again", file=sys.stderr, flush=True)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def make(folder: Path, config: Config, team: Team, base: str, texts: Texts) -> None:
    """Train a reward model (or take the one that is given), measure it, save it. On all ranks together; the leader writes."""
    learned = datasets.load(config)
    pairs, held_out = texts.pairs(learned.pairs), texts.pairs(learned.held_out_pairs)
    given = bool(config.reward_model)
    model = RewardModel(
        Scalar.load(base, fresh_head=None if given else config.seed, checkpointing=config.checkpointing), config, team
    )
    began = time.monotonic()
    before = model.accuracy(held_out)
    losses = [] if given else model.fit(pairs)
    if given:
        model.measure(pairs)
    report = {
        "trained": not given,
        "pairs": len(pairs),
        "held_out_pairs": len(held_out),
        "accuracy_before": before,
        "accuracy": before if given else model.accuracy(held_out),
        "ceiling": task.ceiling(learned.held_out_pairs) if learned.truth else None,
        "losses": [round(loss, 4) for loss in losses],
        "seconds": round(time.monotonic() - began, 1),
    }
    if team.leads:
        shutil.rmtree(folder, ignore_errors=True)
    made = Path(base) if given else folder / "model"
    if not given:
        model.save(made)
    if team.leads:
        document = {
            "folder": str(made) if given else made.name,
            "model": models.fingerprint(made),
            "mean": model.scale.mean,
            "std": model.scale.std,
            "report": report,
        }
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / REPORT, json.dumps(document, indent=2).encode())
        print(f"reward model: {before:.3f} → {report['accuracy']:.3f} of held-out pairs", flush=True)


def ensured(folder: Path, config: Config, slot: int, team: Team, base: str, texts: Texts) -> Trained:
    """The saved reward model; the first slot makes it, if there is none, the others wait for it. On all ranks together."""
    found = saved(folder)
    team.sum(torch.zeros(1))  # Nobody writes before all have looked.
    if found is None and slot == 0:
        make(folder, config, team, base, texts)
        team.sum(torch.zeros(1))  # Nobody looks before it is written.
        found = saved(folder)
        if found is None:
            raise OSError(f"the reward model that was just written to {folder} cannot be read")
    while found is None:  # As long as `ready_timeout` of the member allows.
        time.sleep(LOOK_S)
        found = saved(folder)
    return found


def main() -> int:
    """Serve on the port that XCE gave; further ranks compute with the first. The exit code says whether a restart can help."""
    return ended(_rank, for_good=WRONG_INPUT)


def _rank() -> None:
    config = Config.from_environment()
    me = Identity.read(os.environ)
    team = Team.join(config.device)
    policy = me.claim(MODEL)
    base = config.reward_model or config.reward_base or policy
    texts = Texts(models.tokenizer_of(policy))
    texts.check_same(base)
    found = ensured(Path(me.claim(CKPT)) / FOLDER, config, me.slot, team, base, texts)
    # What is served is what a restart would serve: the saved one.
    model = RewardModel(Scalar.load(found.folder), config, team, found.scale)
    if not team.leads:
        team.follow(model)
        return
    serve(Scorer(model, team, found.fingerprint, found.report).answers())


if __name__ == "__main__":
    leave(main())
