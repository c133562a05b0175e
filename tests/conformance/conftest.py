"""One suite, several ways to an XCE: the app in process, over HTTP, and whatever `XCE_CONFORMANCE_URL` names.

A URL's token comes from `XCE_CONFORMANCE_TOKEN`. The suite needs a cluster that is otherwise idle, with a shell and `sleep` on
its hosts.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gangflow.specs.cluster import ClusterSpec, HostSpec
from gangflow.xce.cluster_home import ClusterHome
from gangflow.xce.rest.aclient import AsyncClient
from gangflow.xce.rest.schema import GroupView
from gangflow.xce.rest.server import create_app, end_streams
from gangflow.xce.runtime import Runtime
from tests.inprocess import InProcess

URL = os.environ.get("XCE_CONFORMANCE_URL", "")
TOKEN = os.environ.get("XCE_CONFORMANCE_TOKEN", "")
TRANSPORTS = ["in-process", "http", *(["url"] if URL else [])]
DEADLINE_S = 60.0
CLUSTER = ClusterSpec("conformance", hosts=[HostSpec("h[0-1]", cpu=2, mem="1GiB", gpus=1, ports=16)])


@dataclass
class Xce:
    """An XCE, called as its admin, and what a test needs around that."""

    client: AsyncClient
    connect: Callable[[str], AsyncClient]
    """A client with another token."""
    http: httpx.AsyncClient
    """Bare, with the admin's token."""

    async def submit(self, members: dict[str, Any], **more: Any) -> str:
        """A group with a name of its own; its id."""
        name = f"c-{uuid.uuid4().hex[:12]}"
        return (await self.client.submit({"name": name, "members": members, **more})).id

    async def until(self, group: str, reached: Callable[[GroupView], bool]) -> GroupView:
        """List, then watch, until the group is so; fails after a deadline, with the group as it is then."""
        view = await self.client.group(group)
        try:
            async with asyncio.timeout(DEADLINE_S):
                stream = self.client.events(view.seq, group)
                while not reached(view):
                    await anext(stream)
                    view = await self.client.group(group)
        except TimeoutError:
            raise AssertionError(f"not reached: {view.model_dump_json(indent=1, exclude={'document'})}") from None
        return view

    async def running(self, group: str) -> GroupView:
        return await self.until(group, lambda view: view.state == "RUNNING")

    async def ended(self, group: str) -> GroupView:
        return await self.until(group, lambda view: view.terminal)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def runtime() -> AsyncIterator[Runtime]:
    """A real one, with an agent and processes; both local transports lead to it."""
    with TemporaryDirectory(prefix="xce-") as folder:
        made = Runtime(ClusterHome(Path(folder)), CLUSTER)
        await made.start()
        yield made
        await made.take_down()


@pytest_asyncio.fixture(params=TRANSPORTS, loop_scope="session")
async def xce(runtime: Runtime, request: pytest.FixtureRequest) -> AsyncIterator[Xce]:
    """An XCE; groups that a test left behind are torn down after it."""
    given: dict[str, Any] = {}
    app = None
    url, token = (URL, TOKEN) if request.param == "url" else (runtime.url, runtime.token)
    if request.param == "in-process":
        app = create_app(runtime.controller, admin_token=token, cluster=CLUSTER)
        given["transport"] = InProcess(app)
    bare = httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}, trust_env=False, **given)
    async with AsyncClient(url, token, **given) as client, bare as http:
        made = Xce(client, lambda other: AsyncClient(url, other, patience=2, **given), http)
        yield made
        left = [view.id for view in (await client.groups(["live"])).groups]
        for group in left:
            await client.cancel(group)
        for group in left:
            await made.ended(group)
    if app is not None:
        end_streams(app)
