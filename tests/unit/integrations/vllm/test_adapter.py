"""The eight verbs over a vLLM server's HTTP, and what its faults become."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gangflow.channel import Head, WeightsId
from gangflow.coordinators.engine import EngineFenced, EngineRefused, EngineSilent, PauseMode
from gangflow.integrations.vllm import adapter
from gangflow.integrations.vllm.adapter import VllmEngine
from gangflow.integrations.vllm.transport import PathTransport
from tests.unit.integrations.vllm.conftest import TOKENS, connect
from tests.unit.integrations.vllm.fake_vllm import DEVELOPMENT, FakeVllm, logprob
from tests.unit.integrations.vllm.within import Within

T = 5.0
Publish = Callable[..., Head]
SCORE = {"score": True}


async def pushed(engine: VllmEngine, head: Head, mode: PauseMode = "wait") -> None:
    await engine.pause(mode, T)
    assert await engine.load(head, T, 1) == head.weights
    await engine.resume(T)


def asked(server: FakeVllm) -> list[str]:
    """What was asked, without the looks at capabilities."""
    return [request for request in server.requests if request not in ("GET /openapi.json", "GET /version")]


async def test_a_push_is_marker_reload_cache_version_and_the_version_read_back(
    server: FakeVllm, engine: VllmEngine, publish: Publish
) -> None:
    head = publish(7)
    labels: list[str] = []
    for path in ("/collective_rpc", "/reset_prefix_cache"):
        server.on[path] = lambda: labels.append(server.label)
    await pushed(engine, head)
    assert asked(server) == [
        "POST /pause?mode=wait",
        "GET /weight_info",
        "POST /update_weight_version",
        "POST /collective_rpc",
        "POST /reset_prefix_cache",
        "GET /weight_info",
        "POST /update_weight_version",
        "GET /weight_info",
        "POST /resume",
    ]
    marker = f"loading {head.weights.label()} under term 1"
    assert labels == [marker, marker]
    assert (server.label, server.weights, server.paused) == (head.weights.label(), "policy 1/7", "")
    assert await engine.version(T) == head.weights


async def test_the_probe_tells_what_was_loaded(server: FakeVllm, engine: VllmEngine, publish: Publish) -> None:
    first, second = publish(1), publish(2)
    for head, other in ((first, second), (second, first)):
        await pushed(engine, head)
        assert head.probe is not None
        assert other.probe is not None
        ((found),) = await engine.generate([list(head.probe.tokens)], SCORE, T)
        assert head.probe.difference(found["logprobs"]).largest == 0
        assert other.probe.difference(found["logprobs"]).largest > 0.1


async def test_half_loaded_weights_are_seen_by_the_probe_alone(server: FakeVllm, engine: VllmEngine, publish: Publish) -> None:
    """/health is 200, the version is right, and the weights are not what was published."""
    head = publish(1)
    server.reload_fault = "half"
    await pushed(engine, head)
    await engine.health(T)
    assert await engine.version(T) == head.weights
    ((found),) = await engine.generate([list(TOKENS)], SCORE, T)
    assert head.probe is not None
    assert head.probe.difference(found["logprobs"]).largest > 0.1


@pytest.mark.parametrize("fault", ["broken", "poisoned"])
async def test_a_failed_load_leaves_a_version_that_is_nobodys(
    server: FakeVllm, engine: VllmEngine, publish: Publish, fault: str
) -> None:
    """Scenario 45: it answers /health, and may not serve before it has weights."""
    await pushed(engine, publish(1))
    server.reload_fault = fault
    await engine.pause("wait", T)
    with pytest.raises(EngineRefused, match="HTTP 500: Call to collective_rpc method failed") as refused:
        await engine.load(publish(2), T, 1)
    assert refused.value.weights is None
    assert await engine.version(T) is None
    with pytest.raises(EngineRefused, match="no weights that anybody published"):
        await engine.resume(T)
    assert not server.dead


async def test_a_good_load_heals_a_failed_one(server: FakeVllm, engine: VllmEngine, publish: Publish) -> None:
    server.reload_fault = "broken"
    await engine.pause("wait", T)
    with pytest.raises(EngineRefused):
        await engine.load(publish(1), T, 1)
    server.reload_fault = ""
    head = publish(2)
    await pushed(engine, head)
    assert await engine.version(T) == head.weights


async def test_a_load_that_hangs_is_silence_and_leaves_the_marker(
    server: FakeVllm, engine: VllmEngine, publish: Publish
) -> None:
    await pushed(engine, publish(1))
    server.reload_fault = "hang"
    await engine.pause("wait", T)
    with pytest.raises(EngineSilent, match=r"load: no answer to POST /collective_rpc within 0\.2 s"):
        await engine.load(publish(2), 0.2, 1)
    assert await engine.version(T) is None


async def test_the_deadline_is_that_of_the_whole_verb(
    server: FakeVllm, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call of the load is quick enough by itself."""
    monkeypatch.setattr(adapter, "RESET_PAUSE_S", 3_600.0)
    engine = connect(server, PathTransport("none"))
    await engine.pause("wait", T)
    server.cache_busy = 1_000
    with pytest.raises(EngineSilent, match=r"load: no answer within 0\.5 s"):
        await engine.load(publish(1), 0.5, 1)


async def test_a_version_that_lies_is_found_out(server: FakeVllm, engine: VllmEngine, publish: Publish) -> None:
    old, new = publish(1), publish(2)
    await pushed(engine, old)
    await engine.pause("wait", T)

    def lie() -> None:
        if server.label == new.weights.label():
            server.lies = old.weights.label()

    server.on["/weight_info"] = lie
    with pytest.raises(EngineRefused, match=f"it says that it has {old.weights} after {new.weights}") as refused:
        await engine.load(new, T, 1)
    assert refused.value.weights is None


async def test_labels_of_somebody_else_are_no_version(server: FakeVllm, engine: VllmEngine) -> None:
    for label in ("default", "7", "loading 1/2/" + "a" * 64 + " under term 1", "1/2/abc", "released"):
        server.label = label
        assert await engine.version(T) is None
    server.label = "3/4/" + "a" * 64
    assert await engine.version(T) == WeightsId(3, 4, "a" * 64)


# --- before the engine is touched


def rewrite(head: Head, content: str) -> None:
    Path(head.path, "model.safetensors").write_text(content)


async def test_a_path_with_other_content_is_refused_before_the_engine_is_touched(
    server: FakeVllm, engine: VllmEngine, publish: Publish
) -> None:
    """A file became another one on its way."""
    old, new = publish(1), publish(2)
    await pushed(engine, old)
    rewrite(new, "policy 1/2 with a flipped bit")
    server.requests.clear()
    with pytest.raises(EngineRefused, match="was published: the engine was not touched") as refused:
        await engine.load(new, T, 1)
    assert refused.value.weights == old.weights
    assert server.requests == ["GET /weight_info"]


async def test_a_path_that_cannot_be_read_is_refused_with_the_way_out(
    server: FakeVllm, engine: VllmEngine, publish: Publish
) -> None:
    head = publish(1)
    away = Head(head.weights, head.path + "-away")
    with pytest.raises(EngineRefused, match=r"cannot be read here: No such file .* GANGFLOW_VLLM_CHECK=none"):
        await engine.load(away, T, 1)
    assert "POST /collective_rpc" not in server.requests
    unchecked = connect(server, PathTransport("none"))
    with pytest.raises(EngineRefused, match="HTTP 500: Call to collective_rpc"):
        await unchecked.load(away, T, 1)
    assert server.weights == "broken"


@pytest.mark.parametrize("verb", ["pause", "load", "resume", "abort", "release", "version"])
async def test_a_server_without_development_mode_refuses_with_the_remedy(
    publish: Publish, paths: PathTransport, verb: str
) -> None:
    server = FakeVllm(development=False)
    engine = connect(server, paths)
    calls: dict[str, Callable[[], Any]] = {
        "pause": lambda: engine.pause("wait", T),
        "load": lambda: engine.load(publish(1), T, 1),
        "resume": lambda: engine.resume(T),
        "abort": lambda: engine.abort(T),
        "release": lambda: engine.release(T),
        "version": lambda: engine.version(T),
    }
    with pytest.raises(EngineRefused, match="start it with VLLM_SERVER_DEV_MODE=1"):
        await calls[verb]()
    assert asked(server) == []
    await engine.health(T)


async def test_a_server_whose_paths_cannot_be_seen_says_so(server: FakeVllm, paths: PathTransport) -> None:
    def hidden(request: httpx.Request) -> httpx.Response:
        return httpx.Response(404, json={"detail": "Not Found"})

    engine = VllmEngine("http://rollout", 1, 1, paths, Within(httpx.MockTransport(hidden)))
    with pytest.raises(EngineRefused, match="--disable-fastapi-docs"):
        await engine.pause("wait", T)


async def test_a_pause_mode_that_it_does_not_have_is_refused(server: FakeVllm, engine: VllmEngine) -> None:
    server.pause_modes("abort", "wait")
    with pytest.raises(EngineRefused, match="does not pause with keep, only with abort, wait"):
        await engine.pause("keep", T)
    await engine.pause("wait", T)


# --- what runs while weights change


async def sampling(engine: VllmEngine, tokens: int = 6, **params: Any) -> Any:
    (found,) = await engine.generate([{"token_ids": list(TOKENS), "seed": 3}], {"max_tokens": tokens, **params}, T)
    return found


async def test_keep_lets_a_request_go_on_with_the_new_weights(server: FakeVllm, engine: VllmEngine, publish: Publish) -> None:
    """A partial rollout over a push has spans of two versions, and nothing of the old weights behind the second."""
    old, new = publish(1), publish(2)
    await pushed(engine, old)
    server.hold_after = 2
    running = asyncio.create_task(sampling(engine))
    await server.held.wait()
    await engine.pause("keep", T)
    await engine.load(new, T, 1)
    assert "POST /reset_prefix_cache?reset_running_requests=true" in server.requests
    server.hold_after = None
    await engine.resume(T)
    output = await running
    assert output["versions"] == [[1, 0, 2], [2, 2, 6]]
    whole = [*TOKENS, *output["token_ids"]]
    for place in range(2, 6):
        before = whole[: len(TOKENS) + place]
        assert output["logprobs"][place] == logprob("policy 1/2", before, output["token_ids"][place])


async def test_wait_ends_what_runs_with_the_old_weights_and_holds_what_comes(
    server: FakeVllm, engine: VllmEngine, publish: Publish
) -> None:
    """Scenario 46: pausing for new weights does not kill what runs."""
    old, new = publish(1), publish(2)
    await pushed(engine, old)
    server.hold_after = 2
    running = asyncio.create_task(sampling(engine))
    await server.held.wait()
    pausing = asyncio.create_task(engine.pause("wait", T))
    while "POST /pause?mode=wait" not in server.requests[-1:]:
        await asyncio.sleep(0)
    coming = asyncio.create_task(sampling(engine))
    server.hold_after = None
    server.wake()
    await pausing
    assert (await running)["versions"] == [[1, 0, 6]]
    await engine.load(new, T, 1)
    assert not coming.done()
    await engine.resume(T)
    assert (await coming)["versions"] == [[2, 0, 6]]


async def test_abort_ends_what_runs_and_leaves_admission_as_it_is(
    server: FakeVllm, engine: VllmEngine, publish: Publish
) -> None:
    await pushed(engine, publish(1))
    server.hold_after = 2
    running = asyncio.create_task(sampling(engine))
    await server.held.wait()
    await engine.abort(T)
    server.hold_after = None
    with pytest.raises(EngineRefused, match="the engine ended it: abort"):
        await running
    assert (await sampling(engine))["versions"] == [[1, 0, 6]]


async def test_of_several_samples_all_have_ended_when_one_failed(
    server: FakeVllm, engine: VllmEngine, publish: Publish
) -> None:
    await pushed(engine, publish(1))
    server.hold_prompt = [9]
    with pytest.raises(EngineRefused, match="out of vocabulary"):
        await engine.generate([[9], [500], [9]], {"max_tokens": 2}, T)
    assert (server.left, server.running) == (2, [])


async def test_the_prefix_cache_of_the_old_weights_is_gone(server: FakeVllm, engine: VllmEngine, publish: Publish) -> None:
    old, new = publish(1), publish(2)
    await pushed(engine, old)
    await sampling(engine)
    await pushed(engine, new)
    output = await sampling(engine, 1)
    assert output["logprobs"] == [logprob("policy 1/2", TOKENS, output["token_ids"][0])]


async def test_a_cache_that_is_busy_is_reset_a_little_later(
    server: FakeVllm, engine: VllmEngine, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "RESET_PAUSE_S", 0.0)
    server.cache_busy = adapter.RESET_TRIES - 1
    await pushed(engine, publish(1))
    server.cache_busy = adapter.RESET_TRIES
    await engine.pause("wait", T)
    with pytest.raises(EngineRefused, match="prefix cache cannot be reset") as refused:
        await engine.load(publish(2), T, 1)
    assert refused.value.weights is None
    assert await engine.version(T) is None


async def test_keep_is_refused_by_a_server_that_cannot_compute_anew(
    server: FakeVllm, engine: VllmEngine, publish: Publish
) -> None:
    server.forget_parameters("/reset_prefix_cache")
    await engine.pause("keep", T)
    with pytest.raises(EngineRefused, match="pause with wait or abort"):
        await engine.load(publish(1), T, 1)
    await engine.pause("abort", T)
    await engine.load(publish(2), T, 1)


async def test_requests_that_stood_still_stay_so_over_another_pause(
    server: FakeVllm, engine: VllmEngine, publish: Publish
) -> None:
    await engine.pause("keep", T)
    await engine.pause("wait", T)
    await engine.load(publish(1), T, 1)
    assert "POST /reset_prefix_cache?reset_running_requests=true" in server.requests
    await engine.resume(T)
    await pushed(engine, publish(2))
    assert server.requests[-5:-4] == ["POST /reset_prefix_cache"]


# --- who commands


async def test_a_newer_coordinator_that_loads_meanwhile_ends_this_one(
    server: FakeVllm, engine: VllmEngine, publish: Publish, paths: PathTransport
) -> None:
    mine, theirs = publish(1), publish(2)

    def intrude() -> None:
        server.label = f"loading {theirs.weights.label()} under term 2"

    await engine.pause("wait", T)
    server.on["/reset_prefix_cache"] = intrude
    with pytest.raises(EngineFenced, match="term 2 is loading it; this one has 1"):
        await engine.load(mine, T, 1)
    newer = connect(server, paths, term=3)
    with pytest.raises(EngineRefused, match="somebody else changed its weights during the load") as refused:
        await newer.load(mine, T, 1)
    assert refused.value.weights is None


async def test_release_gives_the_weights_back_and_a_load_brings_others(
    server: FakeVllm, engine: VllmEngine, publish: Publish, paths: PathTransport
) -> None:
    await pushed(engine, publish(1))
    await engine.release(T)
    await engine.release(T)
    assert (server.paused, server.asleep, server.weights) == ("abort", True, "discarded")
    assert await engine.version(T) is None
    with pytest.raises(EngineRefused, match="no weights"):
        await engine.resume(T)
    # A successor, which has not seen the release.
    other = connect(server, paths, term=2)
    await other.pause("wait", T)
    await other.load(publish(2), T, 1)
    assert (server.asleep, server.paused) == (False, "abort")
    await other.resume(T)
    assert server.weights == "policy 1/2"


async def test_release_of_a_server_that_cannot_sleep_only_pauses(
    server: FakeVllm, engine: VllmEngine, publish: Publish
) -> None:
    server.lose("/sleep")
    await pushed(engine, publish(1))
    await engine.release(T)
    assert (server.paused, server.asleep, server.label) == ("abort", False, "released")


# --- health, silence, death


async def test_a_dead_engine_is_not_well(server: FakeVllm, engine: VllmEngine) -> None:
    await engine.health(T)
    server.dead = True
    with pytest.raises(EngineRefused, match="/health: HTTP 503"):
        await engine.health(T)


@pytest.mark.parametrize("path", ["/health", "/pause", "/openapi.json"])
async def test_one_that_hangs_is_silent(server: FakeVllm, engine: VllmEngine, path: str) -> None:
    server.hang = {path}
    with pytest.raises(EngineSilent, match=f"no answer to .* {path} within 0.05 s"):
        await (engine.health(0.05) if path == "/health" else engine.pause("wait", 0.05))


async def test_one_that_is_away_is_silent(paths: PathTransport) -> None:
    engine = VllmEngine("http://127.0.0.1:9", 1, 1, paths)
    try:
        with pytest.raises(EngineSilent, match="/health: ClientConnectorError"):
            await engine.health(T)
    finally:
        await engine.close()


async def test_a_connection_that_the_server_closed_is_no_silence(server: FakeVllm, paths: PathTransport) -> None:
    """vLLM closes a connection after a 500 without saying so; the next request on it finds out."""
    closed: list[str] = []

    def once(request: httpx.Request) -> httpx.Response:
        if request.url.path not in closed:
            closed.append(request.url.path)
            raise httpx.ReadError("", request=request)
        return httpx.Response(200, content=b"")

    engine = VllmEngine("http://rollout", 1, 1, paths, Within(httpx.MockTransport(once)))
    await engine.health(T)
    assert closed == ["/health"]

    def always(request: httpx.Request) -> httpx.Response:
        raise httpx.RemoteProtocolError("closed", request=request)

    with pytest.raises(EngineSilent, match="RemoteProtocolError closed"):
        await VllmEngine("http://rollout", 1, 1, paths, Within(httpx.MockTransport(always))).health(T)


async def test_an_answer_that_is_not_json_is_a_refusal(paths: PathTransport) -> None:
    engine = VllmEngine(
        "http://rollout", 1, 1, paths, Within(httpx.MockTransport(lambda _: httpx.Response(200, text="<html>")))
    )
    with pytest.raises(EngineRefused, match="not JSON: <html>"):
        await engine.health(T)


def test_what_a_server_in_production_lists_is_what_development_adds() -> None:
    """The fake's own list is that of the real one."""
    server = FakeVllm(development=False, scale_out=False)
    assert not set(DEVELOPMENT) & server.paths
    assert {"/health", "/v1/completions", "/metrics"} <= server.paths
