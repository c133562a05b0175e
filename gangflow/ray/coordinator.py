"""A group's coordinator as a detached actor: started again by Ray after a crash, gone when its group has ended."""

from __future__ import annotations

import logging
from pathlib import Path

import ray

from gangflow.coordinators.run import coordinate
from gangflow.errors import Fenced, NotFound, SetupError
from gangflow.ray.agents import NAMESPACE, LoopThread, log_to
from gangflow.xce.rest.aclient import AsyncClient

_log = logging.getLogger(__name__)


class CoordinatorActor:
    """Drives one group, as the group's own spec says."""

    def __init__(self, group: str, url: str, token: str, name: str, log: str) -> None:
        log_to(Path(log))
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self._group = group
        self._name = name
        self._address = (url, token)
        self._thread = LoopThread("coordinator")
        self._thread.start(self._run())

    def alive(self) -> bool:
        """Answers when it has started."""
        return True

    async def _run(self) -> None:
        async with AsyncClient(*self._address) as client:
            try:
                state = await coordinate(client, self._group)
                _log.info("group %s ended: %s", self._group, state)
            except (Fenced, NotFound, SetupError) as error:
                # Started again it would end the same: another one drives the group, or there is nothing to drive.
                _log.warning("group %s: %s", self._group, error.message)
        # Ending the process would start the actor again: it asks Ray to be forgotten.
        ray.kill(ray.get_actor(self._name, NAMESPACE), no_restart=True)
