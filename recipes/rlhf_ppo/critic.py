"""The critic: a value model with its own optimizer, behind a service. Run as `python -m gangflow.recipes.rlhf_ppo.critic`.

It is always at a step that the actor knows. Every request says which life of the actor asks (`actor`) and at which step; what
is asked of another step than the critic's is not done, and answered with the step where it is: `{"at": n}`, or null before its
first `/begin`. The actor then brings it to where it should be (`critic_client`). So neither a restarted critic nor a restarted
actor can ever train with values of another step.

    /begin  {actor, step, checkpoint}       from that folder, or (null, step 0) anew          → {at}
    /values {actor, step, sequences}        → {values}: packed, one for each token of a reply
    /train  {actor, step, sequences, values, returns}  the update of that step                → {at: step + 1, report}
    /save   {actor, step, folder}           everything that must survive                      → {at}

Each is safe to repeat: an update is done once, whoever asks for it again. A full disk is answered with `{"full": reason}`, a
gradient that is no number with `{"broken": reason}`.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from gangflow.member.identity import Identity
from gangflow.recipes.lm import wire
from gangflow.recipes.lm.batch import Sequences, pack
from gangflow.recipes.lm.claim import MODEL
from gangflow.recipes.lm.ranks import Team
from gangflow.recipes.lm.spread import TrainingBroken
from gangflow.recipes.rlhf_ppo.config import Config
from gangflow.recipes.rlhf_ppo.values import ValueLearner
from gangflow.recipes.services.disk import is_full
from gangflow.recipes.services.packing import floats, pack_floats
from gangflow.recipes.services.serving import Answer, serve


class Critic:
    """The leading rank's: one request at a time, each for the step where it is."""

    def __init__(self, learner: ValueLearner, team: Team) -> None:
        self._learner = learner
        self._team = team
        self._lock = threading.Lock()
        self._actor = 0
        self._at: int | None = None
        """None: nobody has said where to begin."""
        self._fresh = True
        """The learner is as it was made."""
        self._last: tuple[str, dict[str, Any]] | None = None
        """The digest of the last update's request, and what was answered to it."""
        self._saved: tuple[int, str] | None = None

    def answers(self) -> dict[str, Answer]:
        """Path → what answers it."""
        paths = {"/begin": self.begin, "/values": self.values, "/train": self.train, "/save": self.save}
        return {path: self._alone(answer) for path, answer in paths.items()}

    def begin(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Be at that step. ValueError for a checkpoint of another one."""
        step, folder = _whole(asked, "step"), asked["checkpoint"]
        if folder is None and (step or not self._fresh):
            raise ValueError(f"step {step} without a checkpoint: only a critic that has not trained yet begins so, at step 0")
        self._at = self._last = self._saved = None  # Half-loaded, should this fail.
        if folder is not None:
            self._fresh = False
            self._team.all(self._learner, "load", Path(folder))
        if self._learner.step != step:
            raise ValueError(f"{folder}: the critic of step {self._learner.step}, not of {step}")
        self._at = step
        return {"at": step}

    def values(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What the critic says of each token of the replies, before the update of that step."""
        if _whole(asked, "step") != self._at:
            return {"at": self._at}
        batch = self._sequences(asked)
        found = self._team.all(self._learner, "values", batch)
        return {"at": self._at, "values": pack_floats(found[batch.answer].tolist())}

    def train(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The update of that step, once."""
        step = _whole(asked, "step")
        digest = hashlib.sha256(json.dumps({**asked, "actor": 0}, sort_keys=True).encode()).hexdigest()
        if self._last is not None and self._last[0] == digest:
            return self._last[1]
        if step != self._at:
            return {"at": self._at}
        batch = self._sequences(asked)
        before, returns = (_spread(batch, floats(asked[key])) for key in ("values", "returns"))
        self._at, self._fresh = None, False  # Half-trained, should this fail.
        try:
            report = self._team.all(self._learner, "train", batch, before, returns)
        except TrainingBroken as broken:
            return {"broken": str(broken)}
        self._at = step + 1
        self._last = (digest, {"at": self._at, "report": asdict(report)})
        return self._last[1]

    def save(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Write the state of that step as a folder that was not there before."""
        step, folder = _whole(asked, "step"), str(asked["folder"])
        if step != self._at:
            return {"at": self._at}
        if self._saved != (step, folder) or not Path(folder).exists():
            try:
                self._team.all(self._learner, "save", Path(folder))
            except OSError as error:
                if not is_full(error):
                    raise
                return {"full": str(error)}
            self._saved = (step, folder)
        return {"at": step}

    def _alone(self, answer: Answer) -> Answer:
        def answered(asked: dict[str, Any]) -> dict[str, Any]:
            actor = _whole(asked, "actor")
            with self._lock:
                if actor < self._actor:
                    raise ValueError(f"actor: incarnation {self._actor} has asked already, {actor} must stop")
                if actor > self._actor:
                    # A new life of the actor says itself where it begins.
                    self._actor, self._at, self._last = actor, None, None
                return answer(asked)

        return answered

    def _sequences(self, asked: Mapping[str, Any]) -> Sequences:
        return pack(*wire.read(asked["sequences"], self._learner.model.vocabulary))


def _spread(batch: Sequences, flat: list[float]) -> Any:
    """(n, t − 1) of one number for each token of a reply; 0 elsewhere."""
    wanted = int(batch.answer.sum())
    if len(flat) != wanted:
        raise ValueError(f"{len(flat)} numbers for {wanted} tokens of replies")
    found = torch.zeros_like(batch.sampled)
    found[batch.answer] = torch.tensor(flat, dtype=torch.float32)
    return found


def _whole(asked: Mapping[str, Any], key: str) -> int:
    value = asked[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{key}: expected a whole number from 0, got {value!r}")
    return value


def main() -> None:
    """Serve on the port that XCE gave; further ranks compute with the first."""
    config = Config.from_environment()
    me = Identity.read(os.environ)
    team = Team.join(config.device)
    learner = ValueLearner.start(config.critic_model or me.claim(MODEL), config, team)
    if not team.leads:
        team.follow(learner)
        return
    serve(Critic(learner, team).answers())


if __name__ == "__main__":
    main()
