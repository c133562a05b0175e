"""The whole service over HTTP in a thread of its own: real controller, journal and machine, over hosts that run nothing.

For tests that are not asynchronous themselves. Whatever a request makes it do, no process is started.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from gangflow.specs.cluster import ClusterSpec, HostSpec
from gangflow.telemetry.recorder import Recorder
from gangflow.xce.core.inputs import CreateClaim, SubmitGroup
from gangflow.xce.core.plan import Access, ClaimPlan, GroupPlan
from gangflow.xce.rest.server import create_app, end_streams
from gangflow.xce.rest.streams import Streams
from gangflow.xce.rest.tokens import Tokens
from tests.unit.xce.controller.worlds import World, member

ADMIN = "admin-token"
CLUSTER = ClusterSpec("fuzzed", hosts=[HostSpec("h[0-1]", cpu=4, mem="8GiB", ports=32)])
NEVER_MS = 2**52
TOKENS = Tokens(ADMIN)


def owner(name: str) -> str:
    """A token of this owner."""
    return TOKENS.owner_token(name, NEVER_MS)


@dataclass
class Served:
    """Where it listens, and what it serves."""

    url: str
    world: World
    loop: asyncio.AbstractEventLoop
    document: dict[str, Any]
    streams: Streams

    def call(self, work: Any) -> Any:
        """Run a coroutine in the service's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def client(self, token: str = ADMIN) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=f"{self.url}/v1", headers=headers, timeout=20, trust_env=False)

    def refill(self) -> None:
        """Put back the groups and claims that requests have ended."""
        self.call(_filled(self.world))


@contextmanager
def served(folder: Path, *, per_client: int = 16) -> Iterator[Served]:
    """Groups: `g1` of alice (its rollout bob's) runs and uses alice's claim, `g2` of carol waits, `g3` has ended."""
    ready: list[Served] = []
    stop = asyncio.Event()
    up = threading.Event()

    async def serve() -> None:
        world = World(folder)
        await world.start()
        streams = Streams(per_client, keepalive_s=0.2)
        recorder = Recorder(folder / "traces")
        app = create_app(world.controller, admin_token=ADMIN, cluster=CLUSTER, streams=streams, recorder=recorder)
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(app, log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listening]))
        await _filled(world)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        ready.append(Served(url, world, asyncio.get_running_loop(), app.openapi(), streams))
        up.set()
        await stop.wait()
        end_streams(app)
        server.should_exit = True
        await serving
        await world.kill()
        recorder.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="served", daemon=True)
    thread.start()
    assert up.wait(30), "the service did not start"
    try:
        yield ready[0]
    finally:
        ready[0].loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        assert not thread.is_alive(), "the service did not stop"


async def _filled(world: World) -> None:
    living = {group.plan.name for group in world.state.groups.values() if not group.state.terminal}
    if "data" not in world.state.claims:
        await world.controller.command(CreateClaim(ClaimPlan("data", "fake"), "alice"))
    rollout = replace(member("rollout", replicas=2), owner="bob", min_replicas=1, max_replicas=3)
    first = GroupPlan(
        "demo", (replace(member("actor"), owner="alice"), rollout), owner="alice",
        claims=(ClaimPlan("ckpt", "fake"), ClaimPlan("data", uses="data", access=Access.SHARED)),
    )  # fmt: skip
    if "demo" not in living:
        await world.controller.command(SubmitGroup(first))
    large = replace(member("big", cpu=4_000, replicas=2), owner="carol")
    if "waits" not in living:
        plan = GroupPlan("waits", (replace(member("a", cpu=4_000), owner="carol"), large), owner="carol")
        await world.controller.command(SubmitGroup(plan))
    if "over" not in {group.plan.name for group in world.state.groups.values()}:
        over = await world.submit(GroupPlan("over", (replace(member("a"), owner="alice"),), owner="alice"))
        await world.cancel(over)
