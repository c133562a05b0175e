"""A trainer's program whose gradient breaks, for the tests of both recipes' actors."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from gangflow.recipes.grpo.lm.config import LmConfig
from gangflow.recipes.lm.ranks import Team
from gangflow.recipes.lm.spread import Spread


def broken(program: ModuleType, learner: type, monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    """Have `program.main` lead a run whose first update is of a gradient that is no number."""

    def lead(*_: Any) -> dict[str, Any]:
        layer = torch.nn.Linear(1, 1)
        spread = Spread(layer, [], Team(), sharding="replicate", dtype="float32")
        spread.backward(layer(torch.full((1, 1), float("nan"))).sum())
        spread.update(torch.optim.SGD(layer.parameters()), 1.0, "step 7")
        raise AssertionError("a gradient that is no number was taken")

    settings = getattr(program, "Config", LmConfig)
    monkeypatch.setattr(settings, "from_environment", classmethod(lambda cls: cls()))
    monkeypatch.setattr(program, "Identity", SimpleNamespace(read=lambda _: SimpleNamespace(claim=lambda _: str(model))))
    monkeypatch.setattr(learner, "start", classmethod(lambda cls, *_: None))
    monkeypatch.setattr(program.gangflow, "context", lambda: None)
    monkeypatch.setattr(program, "lead", lead)
