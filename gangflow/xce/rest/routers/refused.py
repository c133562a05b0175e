"""Calls of the contract that this version does not enforce. They exist to say so: 501 `not_enforced`, and nothing is done."""

from __future__ import annotations

from fastapi import APIRouter

from gangflow.xce.rest.access import Admin
from gangflow.xce.rest.messages import ProblemView
from gangflow.xce.rest.problems import not_enforced

router = APIRouter(tags=["not enforced yet"], responses={501: {"model": ProblemView}})

CALLS = (
    ("POST", "/groups:plan", "planning a group before its submission"),
    ("POST", "/groups/{group}:suspend", "suspending a group"),
    ("POST", "/groups/{group}:resume", "resuming a group"),
    ("POST", "/groups/{group}:restart", "an operator's restart of a whole group"),
    ("PATCH", "/groups/{group}/members", "changing the targets of replica sets"),
    ("GET", "/groups/{group}/changes/{change}", "changing the targets of replica sets"),
    ("DELETE", "/groups/{group}/members/{member}", "ending one member"),
    ("POST", "/groups/{group}/members/{member}/slots/{index}:drain", "draining a slot"),
    ("POST", "/hosts/{host}:close", "closing a host"),
    ("POST", "/hosts/{host}:open", "opening a host"),
    ("POST", "/hosts/{host}:drain", "draining a host"),
    ("POST", "/claims", "standalone claims"),
    ("DELETE", "/claims/{claim}", "standalone claims"),
    ("GET", "/jobs", "plain jobs (submit a group of one instead)"),
    ("POST", "/jobs", "plain jobs (submit a group of one instead)"),
)


def _refuse(method: str, path: str, what: str) -> None:
    async def refuse(_: Admin) -> None:
        raise not_enforced(what)

    router.add_api_route(path, refuse, methods=[method], status_code=501, summary=f"Not enforced yet: {what}")


for _method, _path, _what in CALLS:
    _refuse(_method, _path, _what)
