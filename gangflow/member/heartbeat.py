"""`context.heartbeat`: the newest fields, sent by a background thread, rarely enough to cost nothing.

Only what the program itself does makes a beat. A thread that beats by itself would say that a hung trainer is well.
"""

from __future__ import annotations

import atexit
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from gangflow.channel import ROLE_KEY
from gangflow.errors import GangflowError, Superseded

LIMIT_BYTES = 4_096
INTERVAL_S = 0.2
"""Two beats are at least this far apart; what comes faster is merged."""


class Fields:
    """What was said so far. Shared by whoever sends it, and thread-safe."""

    def __init__(self, own: Callable[[], Mapping[str, Any]] = dict) -> None:
        self._own = own
        self._lock = threading.Lock()
        self._said: dict[str, Any] = {}
        self._superseded: Superseded | None = None
        self.on_beat: Callable[[Mapping[str, Any]], None] | None = None
        """Hears the fields of every call, also of those that are merged into one beat."""

    def say(self, fields: Mapping[str, Any]) -> None:
        """See `Heartbeat.beat`."""
        if ROLE_KEY in fields:
            raise ValueError(f"{ROLE_KEY!r} is filled by the SDK")
        if self.on_beat is not None:
            self.on_beat(fields)
        with self._lock:
            if self._superseded is not None:
                raise self._superseded
            merged = {**self._said, **fields}
            size = len(json.dumps(merged, allow_nan=False))
            if size > LIMIT_BYTES - 512:
                raise ValueError(f"a heartbeat of {size} bytes: at most {LIMIT_BYTES - 512} (the SDK adds its own)")
            self._said = merged

    def body(self) -> dict[str, Any]:
        """The beat to send now."""
        with self._lock:
            return {**self._said, ROLE_KEY: dict(self._own())}

    def over(self, error: Superseded) -> None:
        """A newer incarnation runs: whoever beats next is told."""
        with self._lock:
            self._superseded = error


class Heartbeat:
    """`send` puts one on the wire; a beat that nobody takes is dropped, since the next one says more."""

    def __init__(
        self,
        send: Callable[[Mapping[str, Any]], object],
        own: Callable[[], Mapping[str, Any]] = dict,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.fields = Fields(own)
        self._send = send
        self._interval_s = interval_s
        self._wake = threading.Condition()
        self._due = False
        self._sending = False
        self._closing = False
        self._thread: threading.Thread | None = None

    def beat(self, fields: Mapping[str, Any]) -> None:
        """Fields replace those of the same name; the others stay. TypeError when not JSON, ValueError above 4 KiB.

        Superseded when XCE said that a newer incarnation runs: this process must stop.
        """
        self.fields.say(fields)
        with self._wake:
            self._due = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gangflow-heartbeat", daemon=True)
                self._thread.start()
                # What a program says last, it says right before its end: that is sent, too.
                atexit.register(self.close)
            self._wake.notify_all()

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait till the newest beat was sent (or dropped)."""
        with self._wake:
            return self._wake.wait_for(lambda: not self._due and not self._sending, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what is due, and end the thread; a later beat starts it again."""
        with self._wake:
            thread, self._thread, self._closing = self._thread, None, True
            self._wake.notify_all()
        atexit.unregister(self.close)
        if thread is not None:
            thread.join(timeout_s)
        self._closing = False

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._due or self._closing)
                if not self._due:
                    return
                self._due, self._sending = False, True
            try:
                self._send(self.fields.body())
            except Superseded as error:
                self.fields.over(error)
            except GangflowError:
                pass
            with self._wake:
                self._sending = False
                self._wake.notify_all()
                # The pause between two beats, which only the end cuts short.
                self._wake.wait_for(lambda: self._closing, self._interval_s)
