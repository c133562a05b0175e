"""What stands before every handler: a limit on the request's body, whatever its headers say."""

from __future__ import annotations

from fastapi import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gangflow.xce.rest.problems import MEDIA_TYPE, problem_document

BODY_BYTES = 1_048_576
"""A spec with many members and long commands is some tens of KiB."""


class BodyLimit:
    """ASGI middleware: 413 for a body over the limit, announced or not, without reading it to its end."""

    def __init__(self, app: ASGIApp, limit: int = BODY_BYTES) -> None:
        self._app = app
        self._limit = limit
        self._text = f"a request's body is at most {limit} bytes"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._limit:
            await self._refuse(scope, receive, send)
            return
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                # Of all exceptions, FastAPI lets this one through when it is raised by the read of a body.
                raise HTTPException(413, self._text)
            return message

        await self._app(scope, limited, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        document = problem_document(413, "too_large", self._text)
        await Response(document.model_dump_json(exclude_none=True), 413, media_type=MEDIA_TYPE)(scope, receive, send)
