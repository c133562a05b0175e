"""The SDK over real processes: a session in a running loop, a member that lives in one, a controller that dies meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import gangflow as gf
from gangflow import events
from tests.integration.live.cluster import DEADLINE_S, TWO_HOSTS, OwnRoot

MEMBER = """
import asyncio, pathlib
import gangflow as gf

async def main():
    async with gf.aio.context() as ctx:
        ctx.heartbeat(step=1)
        (endpoint,) = await ctx.wait_endpoints("worker", 1)
        state = pathlib.Path(ctx.claims["ckpt"], "state")
        state.write_text("learned")
        await ctx.checkpoint(0, state)
        print("waits for", ctx.group, endpoint.member, flush=True)
        while not (await ctx.client.kv_get(ctx.group, "go")).version:
            await asyncio.sleep(0.05)
        print("resumes after", (await ctx.resume()).step, flush=True)

asyncio.run(main())
"""
GROUP = gf.CoStartGroup(
    "book",
    {
        "trainer": gf.Job([sys.executable, "-c", MEMBER], resources={"cpu": "100m"}),
        "worker": gf.ReplicaSet(["sleep", "600"], replicas=1, max_replicas=2, resources={"cpu": "100m"}),
    },
    claims=[gf.Claim("ckpt")],
)


async def test_a_session_in_a_running_event_loop(root: OwnRoot) -> None:
    """As in a notebook: a cluster of one's own is launched and found again from inside a loop; the event stream survives the
    controller's SIGKILL without a gap, and a change of targets asked for meanwhile is carried out."""
    seen: list[events.Event] = []
    waits = asyncio.Event()

    async def follow(run: gf.aio.AsyncRun) -> None:
        async for event in run.events():
            seen.append(event)
            if isinstance(event, events.ValueWritten):
                waits.set()

    async with asyncio.timeout(3 * DEADLINE_S):
        with gf.launch(GROUP, runtime="local", cluster=TWO_HOSTS) as run:
            arun = await gf.aio.attach("book")
            following = asyncio.create_task(follow(arun))
            await waits.wait()
            home = run.cluster.home  # type: ignore[attr-defined]
            os.kill(json.loads((home.path / "controller.json").read_text())["pid"], signal.SIGKILL)
            change = await arun.scale(worker=2, wait=True)
            assert change is not None
            assert change.state == "DONE"
            run.client.kv_put(run.id, "go", "1")
            assert run.wait(timeout=DEADLINE_S).state == "SUCCEEDED"
            await following
            assert seen == list(run.events()), "nothing twice, nothing left out"
            assert isinstance(seen[-1], events.GroupEnded)
            said = "".join([piece async for piece in arun.logs("trainer")])
            assert said.splitlines() == [f"waits for {run.id} worker", "resumes after 0"]
            assert [view.incarnation for view in run.status().member("worker").slots] == [1, 1], "no member was touched"
            await arun.close()


async def test_the_async_block_leaves_no_process(root: OwnRoot) -> None:
    """`root` looks through /proc for whatever is left."""
    async with await gf.aio.launch(GROUP, runtime="local", cluster=TWO_HOSTS) as run:
        async for event in run.events():
            if isinstance(event, events.GroupRunning):
                break
    assert not run.cluster.home.alive  # type: ignore[attr-defined]
