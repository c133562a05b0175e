"""Calls of the contract that this version does not enforce. They exist to say so: 501 `not_enforced`, and nothing is done."""

from __future__ import annotations

from fastapi import APIRouter

from gangflow.xce.rest.json_text import StrictRoute
from gangflow.xce.rest.messages import ProblemView
from gangflow.xce.rest.problems import not_enforced

router = APIRouter(tags=["not enforced yet"], responses={501: {"model": ProblemView}}, route_class=StrictRoute)

CALLS = (("POST", "/groups:plan", "planning a group before its submission"),)


def _refuse(method: str, path: str, what: str) -> None:
    async def refuse() -> None:
        raise not_enforced(what)

    router.add_api_route(path, refuse, methods=[method], status_code=501, summary=f"Not enforced yet: {what}")


for _method, _path, _what in CALLS:
    _refuse(_method, _path, _what)
