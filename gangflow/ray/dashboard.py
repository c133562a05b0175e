"""The dashboard module: the page, and a read-only way through to the controller's REST contract.

Runs in the dashboard's process, behind the dashboard's own authentication; the cluster's token never reaches the browser.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import aiohttp.web
from ray.dashboard import optional_utils
from ray.dashboard import utils as dashboard_utils

from gangflow.xce.rest.page import PAGE

_TIMEOUT = aiohttp.ClientTimeout(total=10)
_FORWARDED = ("groups", "hosts", "queue", "claims")
"""First path segments that the page may read. Only GET goes through."""


class GangflowHead(dashboard_utils.DashboardHeadModule):  # type: ignore[misc] # Ray is not typed
    """Serves `/gangflow` and `/api/gangflow/…`."""

    routes = optional_utils.DashboardHeadRouteTable

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._home = Path(os.environ.get("GANGFLOW_DASHBOARD_HOME", ""))
        self._session: aiohttp.ClientSession | None = None

    @routes.get("/gangflow")  # type: ignore[untyped-decorator]
    async def page(self, _request: aiohttp.web.Request) -> aiohttp.web.Response:
        """The page itself."""
        return aiohttp.web.Response(text=PAGE.replace("{{API}}", "/api/gangflow"), content_type="text/html")

    @routes.get("/api/gangflow/{path:.*}")  # type: ignore[untyped-decorator]
    async def read(self, request: aiohttp.web.Request) -> aiohttp.web.Response:
        """One GET of the controller's contract, with the cluster's token added here."""
        path = request.match_info["path"]
        if path.split("/")[0] not in _FORWARDED or ".." in path:
            return aiohttp.web.json_response({"detail": f"{path!r} is not shown here"}, status=404)
        try:
            controller = json.loads((self._home / "controller.json").read_text())
            token = (self._home / "token").read_text().strip()
        except (OSError, ValueError):
            return aiohttp.web.json_response({"detail": "no gangflow controller has started on this cluster yet"}, status=503)
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT)
        try:
            async with self._session.get(
                f"{controller['url']}/v1/{path}", params=request.query, headers={"Authorization": f"Bearer {token}"}
            ) as answer:
                return aiohttp.web.Response(
                    body=await answer.read(), status=answer.status, content_type=answer.content_type or "application/json"
                )
        except (aiohttp.ClientError, TimeoutError) as error:
            return aiohttp.web.json_response({"detail": f"the controller does not answer: {error}"}, status=503)

    async def run(self) -> None:
        """Nothing runs in the background."""

    @staticmethod
    def is_minimal_module() -> bool:
        """It needs aiohttp, which a minimal Ray has not."""
        return False
