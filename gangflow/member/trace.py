"""`context.span`: what a member measures itself joins its group's trace. Costs a member nothing that it would notice.

Spans are kept and handed in by a background thread, about once a second. Losing some loses no fact: when XCE is away for
long, the oldest go.
"""

from __future__ import annotations

import atexit
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from gangflow.errors import GangflowError

INTERVAL_S = 1.0
MAX_KEPT = 4_096
MAX_SENT = 512
"""In one call; the contract takes no more."""
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-([0-9a-f]{16})-[0-9a-f]{2}")

Span = Mapping[str, Any]
Send = Callable[[Sequence[Span]], object]


class Spans:
    """The spans of one process. `traceparent` is the task's: without a valid one nothing is recorded."""

    def __init__(self, send: Send, traceparent: str) -> None:
        self._send = send
        found = _TRACEPARENT.fullmatch(traceparent)
        self._root = found[1] if found else ""
        self._current: ContextVar[str] = ContextVar("gangflow_span", default=self._root)
        self._kept: deque[Span] = deque(maxlen=MAX_KEPT)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, str | int]) -> Iterator[None]:
        """Measure what is inside; nested ones become its children. An exception marks it as failed and passes through."""
        if not self._root:
            yield
            return
        identity, parent, start_ms = secrets.token_hex(8), self._current.get(), _now_ms()
        token = self._current.set(identity)
        message = ""
        try:
            yield
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"[:4_000]
            raise
        finally:
            self._current.reset(token)
            self._keep(
                {
                    "span_id": identity,
                    "parent_id": parent,
                    "name": name,
                    "start_ms": start_ms,
                    "end_ms": max(start_ms, _now_ms()),
                    "failed": bool(message),
                    "message": message,
                    "attributes": dict(attributes),
                }
            )

    def flush(self) -> None:
        """Hand in what is kept, now; what nobody takes is kept for the next time."""
        with self._lock:
            while self._kept:
                batch = [self._kept.popleft() for _ in range(min(MAX_SENT, len(self._kept)))]
                try:
                    self._send(batch)
                except GangflowError:
                    self._kept.extendleft(reversed(batch))
                    return

    def _keep(self, span: Span) -> None:
        self._kept.append(span)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gangflow-spans", daemon=True)
            self._thread.start()
            atexit.register(self.flush)

    def _run(self) -> None:
        while True:
            time.sleep(INTERVAL_S)
            self.flush()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
