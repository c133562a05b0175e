"""The contract as an ASGI app over a controller, and the check of where it may listen."""

from __future__ import annotations

import ipaddress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, FastAPI, Response

from gangflow.errors import SetupError
from gangflow.xce.rest import contract, problems
from gangflow.xce.rest.access import Service, entitled
from gangflow.xce.rest.guard import BODY_BYTES, BodyLimit
from gangflow.xce.rest.messages import ProblemView
from gangflow.xce.rest.page import PAGE
from gangflow.xce.rest.port import ControllerPort
from gangflow.xce.rest.routers import claims, events, groups, heartbeats, members, operations, refused, slots, traces, values
from gangflow.xce.rest.routers import cluster as cluster_calls
from gangflow.xce.rest.routers import tokens as token_calls
from gangflow.xce.rest.schema import API
from gangflow.xce.rest.streams import Streams
from gangflow.xce.rest.tokens import Tokens

if TYPE_CHECKING:
    from gangflow.specs.cluster import ClusterSpec

_REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": ProblemView} for code in (400, 401, 403, 404, 409, 413, 422, 429, 503)
}


def create_app(
    controller: ControllerPort,
    *,
    admin_token: str,
    cluster: ClusterSpec | None = None,
    streams: Streams | None = None,
    body_bytes: int = BODY_BYTES,
    recorder: traces.Traces | None = None,
) -> FastAPI:
    """The app. An empty admin token trusts every caller without one: for loopback only, see `check_bind`.

    `cluster` is what specs are checked against (levels, reservation rules), `recorder` keeps the groups' traces. Call
    `end_streams(app)` before a server stops.
    """
    app = FastAPI(
        title="XCE: co-start groups",
        version=version("gangflow"),
        openapi_url=f"{API}/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = Service(controller, Tokens(admin_token), cluster, streams or Streams())
    app.state.traces = recorder
    app.add_middleware(BodyLimit, limit=body_bytes)
    problems.install(app)
    api = APIRouter(prefix=API, responses=_REFUSALS, dependencies=[Depends(entitled)])
    # What is refused comes first: `/groups:plan` must not be taken for something that exists.
    parts = (
        refused, groups, members, slots, values, heartbeats, events, traces, claims, cluster_calls, token_calls, operations,
    )  # fmt: skip
    for part in parts:
        api.include_router(part.router)
    app.include_router(api)
    contract.install(app)
    app.add_api_route("/gangflow", _page, include_in_schema=False)
    return app


def end_streams(app: FastAPI) -> None:
    """End every open stream; readers connect again to whoever serves next."""
    service: Service = app.state.service
    service.streams.end_all()


def check_bind(host: str, admin_token: str) -> None:
    """Refuse to listen on other than loopback addresses without a token: SetupError."""
    if admin_token or is_loopback(host):
        return
    raise SetupError(
        f"refused to listen on {host or 'every address'} without a token: everybody who reaches it could run programs here",
        remedy="set a token, or listen on 127.0.0.1",
    )


def is_loopback(host: str) -> bool:
    """Is this address of this machine only? A name other than `localhost` may be anything: no."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _page() -> Response:
    return Response(PAGE.replace("{{API}}", API), media_type="text/html; charset=utf-8")
