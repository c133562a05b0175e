"""GRPO on column addition: a trainer, two rollout engines, a reward and a reference server, started together.

`Config` (with `PRESETS`), `build(config)` and `coordinator(config)` are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gangflow.recipes.grpo.build import build, cluster

    from gangflow.recipes.grpo.config import PRESETS, Config

_HOMES = {"Config": "config", "PRESETS": "config", "build": "build", "cluster": "build"}

__all__ = ["PRESETS", "Config", "build", "cluster"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
