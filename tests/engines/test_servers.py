"""The servers that other tests share are vLLM's own, in its own processes, and nothing of them stays."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx

from tests.engines import servers
from tests.engines.conftest import Shared
from tests.engines.servers import Server


def generate(url: str, tokens: list[int]) -> dict[str, object]:
    params = {"max_tokens": 4, "temperature": 0, "logprobs": 0}
    body = {"model": servers.NAME, "token_ids": tokens, "sampling_params": params}
    answer = httpx.post(f"{url}/inference/v1/generate", json=body, timeout=60, trust_env=False)
    answer.raise_for_status()
    choice = answer.json()["choices"][0]
    return {key: choice[key] for key in ("token_ids", "logprobs", "weight_versions")}


def test_a_forked_server_answers_as_the_plain_command_does(engines: list[Server], plain_engine: Server) -> None:
    asked = [5, 6, 7, 8]
    expected = generate(plain_engine.url, asked)
    assert expected["weight_versions"] == [{"version": "default", "start": 0, "end": 4}]
    for server in engines:
        assert generate(server.url, asked) == expected
        assert {"server", "VLLM::EngineCore"} <= set(server.processes())


def test_one_that_was_killed_is_replaced_and_leaves_nothing(shared: Shared, engine: Server) -> None:
    before = engine.processes()
    servers.signalled(before["server"], signal.SIGKILL)
    servers.until(lambda: not engine.alive, 30, lambda: str(engine.processes()))
    (again,) = shared.first(1)
    assert again.pid != engine.pid
    assert not servers.in_session(engine.pid)
    assert generate(again.url, [5, 6])


def test_what_is_stopped_leaves_nothing(shared: Shared, tiny_model: Path) -> None:
    """Also of one that is frozen."""
    (server,) = shared.first(1)
    servers.signalled(server.pid, signal.SIGSTOP)
    session = server.pid
    server.stop()
    assert not servers.in_session(session)
