"""JSON as the standard has it: what every other reader of it can read, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute


def strict_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    ValueError for what Python's reader lets through (NaN, Infinity, 1e999, half of a surrogate pair), and for nesting that it
    cannot follow.
    """
    try:
        value = json.loads(text, parse_constant=_constant)
        # Only what can be written as UTF-8 can be shown to anybody again.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


class StrictRequest(Request):
    """A request whose body is JSON as the standard has it, or none."""

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            try:
                self._json = strict_json(body)
            except json.JSONDecodeError:
                raise
            except ValueError as error:
                raise json.JSONDecodeError(str(error), body.decode(errors="replace"), 0) from None
        return self._json


class StrictRoute(APIRoute):
    """A route that reads its body so: every router of the contract has it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return strictly
