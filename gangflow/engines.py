"""Rollout engines by name: how a coordinator commands one, and how the SDK asks it for samples.

`embedded` and `vllm` come with gangflow; others are entry points of the group `gangflow.engines` that name an `EngineKind`. One
is imported when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from gangflow.errors import SetupError

if TYPE_CHECKING:
    from gangflow.coordinators.engine import EngineFactory
    from gangflow.member.wire import Wire

GROUP = "gangflow.engines"
BUILT_IN = {"embedded": "gangflow.integrations.embedded", "vllm": "gangflow.integrations.vllm"}
"""Name → the package whose `KIND` it is."""


@dataclass(frozen=True, slots=True)
class EngineKind:
    """Both sides of one kind of engine."""

    adapter: EngineFactory
    """The coordinator's: the eight verbs (`gangflow.coordinators.engine`)."""
    wire: Callable[[], Wire]
    """The SDK's way to it, called once in each process that asks for samples (`gangflow.member.wire`)."""


def kind(name: str) -> EngineKind:
    """The engine of that name. SetupError when there is none, or when it cannot be loaded."""
    try:
        if name in BUILT_IN:
            found = import_module(BUILT_IN[name]).KIND
        else:
            found = _point(name)
    except SetupError:
        raise
    except Exception as error:  # Whatever the import of another's package raises.
        raise SetupError(f"the engine {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(found, EngineKind):
        raise SetupError(f"the engine {name!r} is a {type(found).__name__}, not a gangflow.engines.EngineKind")
    return found


def _point(name: str) -> object:
    points = entry_points(group=GROUP)
    if name not in points.names:
        raise SetupError(f"no adapter for the engine {name!r}; there are: {', '.join(sorted({*BUILT_IN, *points.names}))}")
    return points[name].load()
