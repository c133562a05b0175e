"""The asking side of a recipe's small services (reward, reference, critic): patient, and never inventing an answer.

A service that does not answer is asked again, wherever it is by then, until `patience_s` is over: a failure to judge is never
a reward of 0. An answer that says that the request itself was wrong (a status of 4xx) is not asked again.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import httpx

from gangflow.errors import GangflowError

REQUEST_TIMEOUT_S: Final = 5.0
"""For one attempt, unless the caller knows better."""
CONNECT_TIMEOUT_S: Final = 5.0
"""For the connection of an attempt: a host that is gone refuses nothing, and another replica may be there."""
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0


class ServiceFailed(GangflowError):
    """A service did not answer for too long, refused what it was asked, or answered something else."""

    code = "service_failed"


class Asking:
    """Asks members of the group that serve JSON by POST, over kept-open connections; thread-safe."""

    def __init__(
        self,
        endpoints: Callable[[str], Sequence[str]],
        *,
        patience_s: float,
        waiting: Callable[[str], None] = lambda reason: None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """`endpoints` gives a member's URLs as they are now.

        `waiting` is called before each further attempt, with the reason: the actor tells its coordinator that it lives.
        """
        self._endpoints = endpoints
        self._patience_s = patience_s
        self._waiting = waiting
        timeout = httpx.Timeout(request_timeout_s, connect=min(CONNECT_TIMEOUT_S, request_timeout_s))
        self._http = httpx.Client(timeout=timeout, trust_env=False)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.repeated = 0
        """Requests that had to be asked again."""

    def close(self) -> None:
        """What other threads still ask for is asked for no more, and nobody says any more that they wait."""
        self._closed.set()
        self._http.close()

    def ask(self, member: str, path: str, body: Mapping[str, Any], *, first: int = 0) -> dict[str, Any]:
        """The JSON object that one of the member's slots answers to `POST path`. ServiceFailed when none does in time.

        `first`: which of its slots is asked first (counted round), to spread requests over them.
        """
        deadline = time.monotonic() + self._patience_s
        pause = FIRST_PAUSE_S
        attempt = 0
        while True:
            urls = self._endpoints(member)
            reason = f"{member} has no endpoint"
            if urls and not self._closed.is_set():
                url = urls[(first + attempt) % len(urls)] + path
                try:
                    answer = self._http.post(url, json=body)
                except (httpx.TransportError, RuntimeError) as broken:
                    if isinstance(broken, RuntimeError) and not self._closed.is_set():
                        raise  # It is what a closed client says.
                    reason = f"{url}: {type(broken).__name__}: {broken}"
                else:
                    if answer.status_code == httpx.codes.OK:
                        return _object(url, answer)
                    reason = f"{url}: status {answer.status_code}: {answer.text[:200]}"
                    if answer.is_client_error:
                        raise ServiceFailed(reason)
            if self._closed.is_set():
                raise ServiceFailed(f"{member} is asked no more; last: {reason}")
            if time.monotonic() + pause > deadline:
                raise ServiceFailed(f"{member} did not answer for {self._patience_s:g} s; last: {reason}")
            attempt += 1
            with self._lock:
                self.repeated += 1
            self._waiting(reason)
            self._closed.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)


def _object(url: str, answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        found = None
    if not isinstance(found, dict):
        raise ServiceFailed(f"{url}: expected a JSON object, got {answer.text[:200]!r}")
    return found
