"""A server as `VllmServer` starts it: by its own command line and environment."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangflow.channel import Head, WeightsId
from gangflow.integrations.vllm.adapter import VllmEngine
from gangflow.integrations.vllm.launch import VllmServer
from gangflow.integrations.vllm.transport import PathTransport
from gangflow.member.digest import digest
from gangflow.recipes.lm import model as models
from tests.engines import servers
from tests.engines.servers import Server

T = 60.0


@pytest.fixture(scope="module")
def launched(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("launched")
    spec = VllmServer.on_cpu(
        model_claim="model", kv_blocks=512, max_model_len=256, host="127.0.0.1", command=str(servers.VENV / "bin/vllm")
    )
    port = servers.free_port()
    given = {"XCE_PORT_HTTP": str(port), "XCE_CLAIM_MODEL": str(tiny_model)}
    log = folder / "server.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            spec.command_line(), env={**os.environ, **spec.environment(), **given}, cwd=folder,
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    server = Server(f"http://127.0.0.1:{port}", process.pid, log, process)
    try:
        server.wait_healthy()
        yield server
    finally:
        server.stop()


async def test_it_can_do_all_and_answers_the_probe_before_what_waits(launched: Server, tiny_model: Path) -> None:
    engine = VllmEngine(launched.url, 1, 1, PathTransport())
    try:
        able = await engine._calls.capabilities()
        assert all((able.reload, able.versions, able.tokens, able.abort, able.spans, able.reset_running))
        probe = models.probe_of(models.load(tiny_model), [5, 9, 17, 33])
        head = Head(WeightsId(1, 1, digest(tiny_model)), str(tiny_model), probe)
        await engine.pause("wait", T)
        assert await engine.load(head, T, 1) == head.weights
        await engine.resume(T)
        (found,) = await engine.generate([list(probe.tokens)], {"score": True}, T)
        assert probe.difference(found["logprobs"]).largest <= 1e-5
        assert engine._first, "it has no priorities: the probe would wait behind every request"
    finally:
        await engine.close()


def test_the_process_that_was_started_is_the_server(launched: Server) -> None:
    """Its end is the slot's end; a shell in between would outlive it, or hide how it ended."""
    line = Path(f"/proc/{launched.pid}/cmdline").read_text().split("\0")
    assert line[line.index("serve") - 1].endswith("/vllm")
    assert {"server", "VLLM::EngineCore"} <= set(launched.processes())
    assert "VLLM::Worker" not in launched.processes(), "one that spins on a core while it waits"


def test_a_server_ends_by_itself_when_its_core_was_killed(launched: Server) -> None:
    """As it ships, with the worker in the core: what ended is seen by XCE, and a new one is started."""
    servers.signalled(launched.processes()["VLLM::EngineCore"], signal.SIGKILL)
    servers.until(lambda: not launched.alive, 60, launched.tail)
    assert launched.popen is not None
    assert launched.popen.wait(30) is not None
