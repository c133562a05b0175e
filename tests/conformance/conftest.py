"""One suite for the whole contract, and several ways to an XCE: the app in process, over HTTP, and whatever a URL names.

An XCE of somebody else's is held to the contract by

    pytest tests/conformance --xce-url http://xce.example:8080 --xce-token "$ADMIN_TOKEN"

(or `XCE_CONFORMANCE_URL` and `XCE_CONFORMANCE_TOKEN`). Then every test that takes the fixture `xce` runs against it, and no
other; the local ways are left out. The suite needs the admin's token; a cluster that is otherwise idle, of at least two equal
hosts with two CPUs, some memory and ports; on the hosts `sh`, `sleep`, `echo` and `test`; and the claim provider `directory`.
It makes groups, claims and owners with names of its own (`c-…`), closes and opens hosts, and takes away what it made: what was
there before stays as it is.
"""

from __future__ import annotations

import asyncio
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

LOCAL = ("in-process", "http")
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

    @staticmethod
    def name() -> str:
        """One that nothing has."""
        return f"c-{uuid.uuid4().hex[:12]}"

    async def submit(self, members: dict[str, Any], **more: Any) -> str:
        """A group with a name of its own; its id."""
        return (await self.client.submit({"name": self.name(), "members": members, **more})).id

    async def owner(self, name: str) -> AsyncClient:
        """A client of this owner."""
        return self.connect((await self.client.make_token(name, ttl_s=3_600)).token)

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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every way to an XCE; with a URL, that one."""
    if "xce" in metafunc.fixturenames:
        metafunc.parametrize("xce", ["url"] if metafunc.config.getoption("--xce-url") else LOCAL, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With a URL, what is about our own server only is left out."""
    if config.getoption("--xce-url"):
        here = Path(__file__).parent
        ours = [item for item in items if here in item.path.parents and "xce" not in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if item not in ours]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def runtime(pytestconfig: pytest.Config) -> AsyncIterator[Runtime | None]:
    """A real one, with an agent and processes; both local transports lead to it. None where a URL is given."""
    if pytestconfig.getoption("--xce-url"):
        yield None
        return
    with TemporaryDirectory(prefix="xce-") as folder:
        made = Runtime(ClusterHome(Path(folder)), CLUSTER)
        await made.start()
        yield made
        await made.take_down()


@pytest_asyncio.fixture(loop_scope="session")
async def xce(runtime: Runtime | None, request: pytest.FixtureRequest) -> AsyncIterator[Xce]:
    """An XCE; what a test left behind is torn down after it."""
    given: dict[str, Any] = {}
    app = None
    if runtime is None:
        url, token = request.config.getoption("--xce-url"), request.config.getoption("--xce-token")
    else:
        url, token = runtime.url, runtime.token
    if request.param == "in-process":
        assert runtime is not None
        app = create_app(runtime.controller, admin_token=token, cluster=CLUSTER)
        given["transport"] = InProcess(app)
    bare = httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=30, **given)
    async with AsyncClient(url, token, **given) as client, bare as http:
        made = Xce(client, lambda other: AsyncClient(url, other, patience=2, **given), http)
        before = await _there(client)
        yield made
        left = [view.id for view in (await client.groups(["live"])).groups if view.id not in before]
        for group in left:
            await client.cancel(group)
        for group in left:
            await made.ended(group)
        for claim in (await client.claims()).claims:
            if claim.standalone and claim.state != "RELEASING" and claim.id not in before:
                await client.delete_claim(claim.id)
        for host in (await client.hosts()).hosts:
            if host.closed and host.name not in before:
                await client.open_host(host.name)
    if app is not None:
        end_streams(app)


async def _there(client: AsyncClient) -> frozenset[str]:
    """What a test finds, and must leave alone: live groups, standalone claims, hosts that are closed."""
    groups = {view.id for view in (await client.groups(["live"])).groups}
    claims = {claim.id for claim in (await client.claims()).claims if claim.standalone}
    return frozenset(groups | claims | {host.name for host in (await client.hosts()).hosts if host.closed})
