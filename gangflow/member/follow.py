"""Keeps a member's picture of its group fresh: list, then watch the event stream in a background thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from gangflow.channel import ELIGIBLE
from gangflow.errors import NotFound, Superseded, Unauthorized, XceError
from gangflow.member.endpoints import Picture, changed, coordinator_facts, listed
from gangflow.xce.rest.messages import EventView, ValueView
from gangflow.xce.rest.schema import GroupView

FIRST_PICTURE_S = 30.0
"""How long the first question may wait for an XCE that does not answer."""
BEAT_S = 1.0
"""Whoever waits looks around, and beats, at least this often."""
RELIST_S = 1.0
"""Between two attempts to list again after an error."""


def quiet() -> None:
    """The beat of a wait that nobody needs to hear of."""


class GroupReader(Protocol):
    """What the follower asks of XCE; `gangflow.xce.rest.client.Client` is one."""

    def group(self, group: str) -> GroupView: ...

    def kv_get(self, group: str, name: str) -> ValueView: ...

    def events(self, after: int | None = None, group: str = "") -> Iterator[EventView]: ...


class Follower:
    """One per process. Threads read `picture`; `wait` blocks until it satisfies a condition."""

    def __init__(self, client: GroupReader, group: str) -> None:
        self._client = client
        self._group = group
        self._changed = threading.Condition()
        self._picture = Picture()
        self._listeners: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None
        self._closed = False
        self._fatal: XceError | None = None

    @property
    def picture(self) -> Picture:
        """The newest picture; the first call starts the thread and waits for the first list. XceError when there is none."""
        self._start()
        self.wait(lambda picture: picture.seq >= 0, FIRST_PICTURE_S)
        return self._picture

    def wait(self, condition: Callable[[Picture], bool], timeout_s: float, beat: Callable[[], object] = quiet) -> bool:
        """True once the condition holds, False after the timeout. Raises what ended the follower.

        `beat` is called at once, and again every `BEAT_S` while it waits: who waits is not hung.
        """
        self._start()
        deadline = time.monotonic() + timeout_s
        while True:
            beat()
            left = max(0.0, deadline - time.monotonic())
            with self._changed:
                done = self._changed.wait_for(lambda: self._fatal is not None or condition(self._picture), min(left, BEAT_S))
                if self._fatal is not None:
                    raise self._fatal
            if done or left <= BEAT_S:
                return done

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every change, from the follower's thread; returns what ends that."""
        with self._changed:
            self._listeners.append(listener)

        def stop() -> None:
            with self._changed:
                self._listeners.remove(listener)

        return stop

    def close(self) -> None:
        self._closed = True

    def _start(self) -> None:
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gangflow-follow", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            try:
                self._list()
                for event in self._client.events(self._picture.seq, self._group):
                    if self._closed:
                        return
                    self._adopt(changed(self._picture, event.seq, event.type, event.data))
                    if self._picture.stale_view:
                        self._list()
            except (NotFound, Superseded, Unauthorized) as error:
                # This incarnation has been replaced, or its group forgotten: it will never be told anything again.
                self._end(error)
                return
            except XceError:
                time.sleep(RELIST_S)
            except Exception as error:  # A picture that stands still for no reason would be worse than an error.
                self._end(XceError(f"the group cannot be followed: {type(error).__name__}: {error}"))
                return

    def _list(self) -> None:
        # The view before the value: what is written in between comes again by the stream, and versions keep the order.
        view = self._client.group(self._group)
        facts = coordinator_facts(view.document)
        self._adopt(listed(view, facts, self._client.kv_get(self._group, ELIGIBLE) if facts else None))

    def _adopt(self, picture: Picture) -> None:
        with self._changed:
            if picture == self._picture:
                return
            self._picture = picture
            self._changed.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def _end(self, error: XceError) -> None:
        with self._changed:
            self._fatal = error
            self._changed.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            listener()
