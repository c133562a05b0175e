"""The HTTP server of a recipe's small services (reward, reference, critic): JSON by POST, `/health` by GET.

Connections are kept open. Standard library only: such a program is ready, and back after a kill, as soon as what it computes
with is imported.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from gangflow.member.identity import Identity

Answer = Callable[[dict[str, Any]], dict[str, Any]]
"""From the request's JSON to the answer's. A ValueError (or KeyError) becomes status 400 with its text."""

LONGEST_BODY: Final = 512 * 2**20
"""Bytes of a request: a step of thousands of long replies goes to a critic as a whole."""


_asker = threading.local()


class NobodyWaits(Exception):
    """Whoever asked has gone: it has waited for too long, or has ended."""


def check_asker() -> None:
    """Inside an answer: NobodyWaits when the connection was closed by the asker. For what computes long, between two parts."""
    connection: socket.socket | None = getattr(_asker, "connection", None)
    if connection is None:
        return
    poll = select.poll()
    try:
        poll.register(connection, select.POLLIN)
        gone = bool(poll.poll(0)) and not connection.recv(1, socket.MSG_PEEK)
    except (OSError, ValueError):  # It was reset.
        gone = True
    if gone:
        raise NobodyWaits


class JsonServer(ThreadingHTTPServer):
    """Serves `answers` (path → function) on one address; port 0 picks a free one. Every connection has its thread."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, host: str, port: int, answers: Mapping[str, Answer]) -> None:
        self.answers = dict(answers)
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    """Buffered: head and body leave in one packet."""
    timeout = 600
    server: JsonServer

    def do_GET(self) -> None:
        if self.path == "/health":
            self._reply(200, {"ok": True})
        else:
            self._reply(404, {"error": f"no {self.path}"})

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        if not 0 <= length <= LONGEST_BODY:
            self.close_connection = True
            self._reply(413, {"error": f"a body of at most {LONGEST_BODY} bytes"})
            return
        body = self.rfile.read(length)
        answer = self.server.answers.get(self.path)
        if answer is None:
            self._reply(404, {"error": f"no {self.path}"})
            return
        try:
            request = json.loads(body)
            if not isinstance(request, dict):
                raise ValueError("expected a JSON object")
            _asker.connection = self.connection
            found = answer(request)
        except NobodyWaits:
            self.close_connection = True
            return
        except (KeyError, ValueError) as wrong:
            self._reply(400, {"error": f"{type(wrong).__name__}: {wrong}"})
            return
        self._reply(200, found)

    def _reply(self, status: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: there are several a second."""


def serve(answers: Mapping[str, Answer], port: str = "http") -> None:
    """Serve on this member's port of that name until SIGTERM, then exit 0. NotAMember when no XCE started this process."""
    me = Identity.read(os.environ)
    host = me.addresses(me.member, port)[me.slot].rsplit(":", 1)[0]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with JsonServer(host, me.port(port), answers) as server:
        print(f"{me.member} serves on {server.url}", flush=True)
        server.serve_forever(poll_interval=0.2)
