"""The synchronous client and `xcecli` against a real XCE over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import uuid

import pytest

from gangflow.xce.rest.client import Client
from gangflow.xce.runtime import Runtime

pytestmark = pytest.mark.asyncio(loop_scope="session")


def spec(script: str) -> dict[str, object]:
    command = {"command": ["sh", "-c", script], "resources": {"cpu": 0.1}, "termination_grace": "1s"}
    return {"name": f"c-{uuid.uuid4().hex[:12]}", "members": {"a": {"job": command}}}


async def xcecli(runtime: Runtime, *words: str) -> str:
    environment = {**os.environ, "GANGFLOW_URL": runtime.url, "GANGFLOW_TOKEN": runtime.token}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gangflow.cli.xcecli", *words,
        env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_the_synchronous_client_follows_a_group_to_its_end(runtime: Runtime) -> None:
    def story() -> tuple[str, list[str], str]:
        with Client(runtime.url, runtime.token) as client:
            submitted = client.submit(spec("echo one; echo two"))
            view = client.group(submitted.id)
            before = view.seq
            for _ in client.events(view.seq, submitted.id):
                view = client.group(submitted.id)
                if view.terminal:
                    break
            types = [event.type for event in client.events(before, submitted.id, view.seq)]
            text = "".join(piece.text for piece in client.follow_log(submitted.id, "a", 0))
            return view.state, types, text

    state, types, text = await asyncio.to_thread(story)
    assert (state, text) == ("SUCCEEDED", "one\ntwo\n")
    assert "SlotExited" in types


async def test_xcecli_shows_what_the_contract_says(runtime: Runtime) -> None:
    def begin() -> str:
        with Client(runtime.url, runtime.token) as client:
            group = client.submit(spec("sleep 300")).id
            view = client.group(group)
            for _ in client.events(view.seq, group):
                if client.group(group).state == "RUNNING":
                    return group
        raise AssertionError("the stream ended")

    def finish(group: str) -> None:
        with Client(runtime.url, runtime.token) as client:
            client.cancel(group)

    group = await asyncio.to_thread(begin)
    records = json.loads(await xcecli(runtime, "groups", "-json", "-o", "jobid stat state"))["RECORDS"]
    assert {"JOBID": group, "STAT": "RUN", "STATE": "RUNNING"} in records
    assert (await xcecli(runtime, "hosts", "-noheader")).split()[:2] == ["h0", "ok"]
    assert "does not wait; it is RUNNING" in await xcecli(runtime, "why", group, "-p3")
    assert "BarrierReleased" in await xcecli(runtime, "events", group)
    assert (await xcecli(runtime, "members", group, "-noheader")).split()[:2] == [group, "a"]
    await asyncio.to_thread(finish, group)


async def test_an_answer_does_not_wait_for_an_acknowledgement(runtime: Runtime) -> None:
    """Without TCP_NODELAY the body of every answer comes 40 ms after its head."""
    assert runtime._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
