"""Making the samples of steps before they are needed: what turns a synchronous run into an asynchronous one."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """`make(step)` for each step in turn: in the caller's thread when `ahead` is 0, else up to so many steps early.

    A step is begun once its samples cannot become too old: when the policy has version v, those of steps up to v + ahead.
    """

    def __init__(self, make: Callable[[int], T], first: int, end: int, ahead: int) -> None:
        """Steps `first` … `end` − 1."""
        self._make = make
        self._next = first
        self._end = end
        self._ahead = ahead
        self._made: dict[int, Future[T]] = {}

    def published(self, version: int) -> None:
        """The policy of that version is out: begin what may be begun, in threads of their own."""
        if not self._ahead:
            return
        while self._next < min(version + self._ahead + 1, self._end):
            self._begin(self._next)
            self._next += 1

    def take(self, step: int) -> T:
        """The samples of a step, once they are there; raises what making them raised."""
        made = self._made.pop(step, None)
        return self._make(step) if made is None else made.result()

    def leave(self, timeout_s: float) -> None:
        """Nobody will take what is under way: wait a moment for it to end, since it uses what its owner is about to close."""
        wait(self._made.values(), timeout_s)

    def _begin(self, step: int) -> None:
        future: Future[T] = Future()
        self._made[step] = future
        context = contextvars.copy_context()

        def run() -> None:
            try:
                future.set_result(context.run(self._make, step))
            except BaseException as error:  # It is raised where the samples are needed.
                future.set_exception(error)

        # A daemon: a trainer that fails must not wait for samples that nobody will take.
        threading.Thread(target=run, name=f"samples-of-{step}", daemon=True).start()
