"""What both clients set up alike: addresses, headers, timeouts, and how long they keep trying."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx
from tenacity import retry_if_exception, stop_after_delay, wait_random_exponential

from gangflow.xce.rest.calls import Call
from gangflow.xce.rest.refusals import transient
from gangflow.xce.rest.schema import KEY_HEADER, TERM_HEADER
from gangflow.xce.rest.watch import KEEPALIVE_S

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
STREAM_TIMEOUT = httpx.Timeout(10.0, read=3 * KEEPALIVE_S)


def options(url: str, token: str, timeout: float) -> dict[str, Any]:
    """Arguments of an `httpx.Client` or `httpx.AsyncClient`."""
    parts = urlsplit(url)
    return {
        "base_url": url,
        "headers": {"Authorization": f"Bearer {token}"} if token else {},
        "timeout": timeout,
        # A proxy of the environment never leads to this very machine.
        "trust_env": parts.hostname not in LOOPBACK,
        # Loading the CA bundle costs tens of milliseconds, for nothing where there is no TLS.
        "verify": parts.scheme == "https",
    }


def request(call: Call[Any], term: int) -> dict[str, Any]:
    """Arguments of `request()`: the same for every try of the call."""
    headers = dict(call.headers)
    if call.key:
        headers[KEY_HEADER] = call.key
    if term:
        headers[TERM_HEADER] = str(term)
    given: dict[str, Any] = {"method": call.method, "url": call.path, "headers": headers, "params": dict(call.query)}
    if call.body is not None:
        given["json"] = call.body
    return given


def policy(patience: float) -> Mapping[str, Any]:
    """Arguments of tenacity's `Retrying`: what was not answered is sent again for `patience` seconds, politely spaced."""
    return {
        "retry": retry_if_exception(transient),
        "wait": wait_random_exponential(multiplier=0.05, max=2),
        "stop": stop_after_delay(patience),
        "reraise": True,
    }
