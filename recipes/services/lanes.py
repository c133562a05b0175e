"""One request at a time for each replica of a service that computes one after the other.

A request that waited in the service's queue would have the time of those before it in its own, and run into its timeout though
nothing is wrong; and the service would compute what nobody waits for any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

LOOK_S: Final = 1.0
"""Between two looks whether there are more replicas now."""


class Lanes:
    """Those of one member; thread-safe."""

    def __init__(self, replicas: Callable[[], int]) -> None:
        """`replicas`: how many there are now. While there is none, one request may look for it."""
        self._replicas = replicas
        self._taken: set[int] = set()
        self._changed = threading.Condition()

    @contextmanager
    def one(self) -> Iterator[int]:
        """Waits until a replica has nothing to do; the number of it, from 0, which is this thread's alone inside."""
        with self._changed:
            while (lane := self._free()) is None:
                self._changed.wait(LOOK_S)
            self._taken.add(lane)
        try:
            yield lane
        finally:
            with self._changed:
                self._taken.discard(lane)
                self._changed.notify()

    def _free(self) -> int | None:
        return next((lane for lane in range(max(1, self._replicas())) if lane not in self._taken), None)
