"""The policy of a TRL trainer for the rollouts: its weights as a folder in a claim, and a probe of what they say."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from gangflow.channel import Probe
from gangflow.integrations.torch import logprobs
from gangflow.member.context import Context

KEPT: Final = 2
"""Folders of weights that stay: the newest, and what an engine may still be loading."""
PROBED: Final = 64
"""Tokens of a probe at most."""
_NAME = re.compile(r"i([0-9]+)-v([0-9]+)")


class Publisher:
    """Publishes the trainer's policy as version `global_step`, once for each. Every rank calls it; the first one writes."""

    def __init__(self, context: Context, folder: Path, dtype: torch.dtype | None = None) -> None:
        """`folder`: in a claim that the rollouts share. `dtype`: of the weights in it; None: as they are trained."""
        self._context = context
        self._folder = folder
        self._dtype = dtype
        self.version: int | None = None
        """What was published last by this process."""

    def ensure(self, trainer: Any, tokens: Sequence[int]) -> None:
        """The trainer's present weights are published. `tokens`: a text of the task, of which the probe is made."""
        version = int(trainer.state.global_step)
        if version == self.version:
            return
        accelerator, model = trainer.accelerator, trainer.accelerator.unwrap_model(trainer.model_wrapped)
        if hasattr(model, "merge_adapter"):
            raise ValueError("an adapter (PEFT) is trained: engines are given whole weights, which this does not merge")
        # Where weights are sharded, both are collectives: every rank takes part.
        probe = probe_by(trainer, tokens)
        state = accelerator.get_state_dict(trainer.model_wrapped)
        if accelerator.is_main_process:
            if self._dtype is not None:
                state = {name: value.to(self._dtype) if value.is_floating_point() else value for name, value in state.items()}
            path = self._folder / f"i{self._context.incarnation}-v{version}"
            path.mkdir(parents=True, exist_ok=True)
            model.save_pretrained(path, state_dict=state)
            self._context.weights.publish(version, path, probe=probe)
            self._forget()
        self.version = version

    def _forget(self) -> None:
        found = [
            (int(match[1]), int(match[2]), path) for path in self._folder.iterdir() if (match := _NAME.fullmatch(path.name))
        ]
        for _, _, path in sorted(found)[:-KEPT]:
            shutil.rmtree(path, ignore_errors=True)


def probe_by(trainer: Any, tokens: Sequence[int]) -> Probe | None:
    """The trainer's log-probabilities of a text, as the engines must have them; None for a single token, which has none."""
    tokens = tuple(tokens)[:PROBED]
    if len(tokens) < 2:
        return None
    model = trainer.model_wrapped
    training = model.training
    model.eval()
    try:
        # Not as it trains (perhaps with dropout): what the weights say, as exactly as they are.
        return logprobs.probe_of(model, tokens, trainer.accelerator.device)
    finally:
        model.train(training)
