"""Agents of an earlier version of gangflow: an upgrade of the controller ends no member, so they go on with what they hold.

They are given nothing that they would misunderstand, and are replaced as soon as they hold nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from gangflow.xce.core.effects import Prepare, TaskEffect, Warn
from gangflow.xce.core.inputs import TaskRefused

PROTOCOLS = (1,)
"""Earlier ones whose hello, reports and remaining orders are those of today."""
NO_CONTAINERS = (
    "the agent of its host is of an earlier version, which runs no containers; it is replaced when its tasks have ended"
)


def understood(effects: Sequence[TaskEffect]) -> tuple[list[TaskEffect], list[TaskRefused]]:
    """What an agent of protocol 1 carries out as it is meant, and refusals in its place of what it would start wrongly.

    A warning is left out: such an agent would not answer it.
    """
    meant: list[TaskEffect] = []
    refused: list[TaskRefused] = []
    for effect in effects:
        if isinstance(effect, Prepare) and (effect.launch.folder_words or effect.launch.cleanup):
            refused.append(TaskRefused(effect.task, effect.host, NO_CONTAINERS))
        elif not isinstance(effect, Warn):
            meant.append(effect)
    return meant, refused
