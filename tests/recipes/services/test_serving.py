"""A long answer that nobody waits for any more is not computed to its end."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gangflow.recipes.services.serving import JsonServer, NobodyWaits, check_asker

DEADLINE_S = 60.0


class Long:
    """Computes in parts until `enough` is set, or until nobody waits."""

    def __init__(self) -> None:
        self.begun, self.enough, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.gone = False

    def __call__(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.begun.set()
        deadline = time.monotonic() + DEADLINE_S
        try:
            while not self.enough.wait(0.001) and time.monotonic() < deadline:
                check_asker()
            return {"done": True}
        except NobodyWaits:
            self.gone = True
            raise
        finally:
            self.ended.set()


@pytest.fixture
def long() -> Iterator[tuple[Long, JsonServer]]:
    answer = Long()
    with JsonServer("127.0.0.1", 0, {"/long": answer}) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield answer, server
        server.shutdown()
        thread.join()


def test_who_has_gone_is_not_computed_for(long: tuple[Long, JsonServer]) -> None:
    answer, server = long
    with socket.create_connection(server.server_address[:2], timeout=DEADLINE_S) as asker:
        asker.sendall(b"POST /long HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        assert answer.begun.wait(DEADLINE_S)
    assert answer.ended.wait(DEADLINE_S)
    assert answer.gone
    with httpx.Client(trust_env=False) as next_one:
        answer.enough.set()
        assert next_one.post(f"{server.url}/long", json={}).json() == {"done": True}


def test_who_waits_is_answered(long: tuple[Long, JsonServer]) -> None:
    answer, server = long
    threading.Thread(target=lambda: answer.begun.wait(DEADLINE_S) and answer.enough.set()).start()
    assert httpx.post(f"{server.url}/long", json={}, trust_env=False, timeout=DEADLINE_S).json() == {"done": True}
    assert not answer.gone


def test_without_a_request_there_is_nobody_to_look_for() -> None:
    check_asker()
