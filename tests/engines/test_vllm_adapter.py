"""The eight verbs on real vLLM servers: what was loaded is what transformers computes, and a failure is seen for what it is."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file, save_file

from gangflow.channel import Head, WeightsId
from gangflow.coordinators.engine import EngineRefused, EngineSilent, PauseMode
from gangflow.integrations.vllm.adapter import VllmEngine
from gangflow.integrations.vllm.transport import PathTransport
from gangflow.integrations.vllm.wire import VllmWire
from gangflow.member.digest import digest
from gangflow.member.endpoints import Endpoint
from gangflow.member.wire import RequestFailed
from tests.engines import servers
from tests.engines.conftest import Shared
from tests.engines.servers import Server
from tests.engines.versions import (
    ALIKE,
    LONG,
    MANY,
    SCORE,
    SEQUENCE,
    TOLERANCE,
    T,
    Trainer,
    agrees,
    all_running,
    begun,
    flight,
    probed,
    pushed,
    running,
    sample,
    scraped,
)
from tests.unit.integrations.vllm.fake_vllm import DEVELOPMENT, OPENAPI


@pytest.fixture
def expendable(shared: Shared, engine: Server) -> Iterator[Server]:
    """The shared server, for a test after which nobody can use it any more."""
    yield engine
    servers.signalled(engine.pid, signal.SIGKILL)
    servers.until(lambda: not engine.alive, 30, engine.tail)


# --- what a server is


def test_a_real_server_lists_what_the_one_in_memory_lists(engine_url: str) -> None:
    with httpx.Client(base_url=engine_url, trust_env=False) as http:
        real = http.get("/openapi.json").json()
    assert set(real["paths"]) == set(OPENAPI["paths"])
    assert set(DEVELOPMENT) < set(real["paths"])
    for path, methods in OPENAPI["paths"].items():
        for method, said in methods.items():
            for parameter in said.get("parameters", ()):
                (found,) = [p for p in real["paths"][path][method]["parameters"] if p["name"] == parameter["name"]]
                assert found["schema"].items() >= parameter["schema"].items()


async def test_what_a_real_server_can_do(rollout: VllmEngine) -> None:
    able = await rollout._calls.capabilities()
    assert all((able.reload, able.transfer, able.versions, able.sleep, able.tokens, able.abort, able.spans, able.reset_running))
    assert able.pause_modes == {"wait", "keep", "abort"}
    assert "temperature" in able.sampling


# --- weights


async def test_an_engine_says_what_transformers_says_of_every_version(rollout: VllmEngine, trainer: Trainer) -> None:
    """Agreement to 1e-5; versions are far apart by that measure, and one may come back."""
    heads = [trainer.head(version) for version in (1, 2, 1)]
    assert heads[0].probe is not None
    assert heads[1].probe is not None
    assert heads[0].probe.difference(heads[1].probe.logprobs).largest > 100 * TOLERANCE
    for head in heads:
        await pushed(rollout, head)
        assert await rollout.version(T) == head.weights
        agrees(trainer, SEQUENCE, await sample(rollout, SEQUENCE))


async def test_a_partial_rollout_goes_on_with_the_new_weights(rollout: VllmEngine, trainer: Trainer, engine_url: str) -> None:
    old, new = trainer.head(1), trainer.head(2)
    await pushed(rollout, old)
    asking = begun(rollout)
    await running(engine_url, 10 * MANY)
    await rollout.pause("keep", T)
    assert not asking.done()
    await rollout.load(new, T, 1)
    await rollout.resume(T)
    outputs = await asking
    mixed = [output for output in outputs if [version for version, _, _ in output["versions"]] == [1, 2]]
    assert len(mixed) > MANY / 2
    for output in mixed[:3]:
        assert output["versions"][0][2] > 1
        agrees(trainer, SEQUENCE, output)


async def test_wait_ends_with_the_old_weights_what_runs_and_holds_what_comes(
    rollout: VllmEngine, trainer: Trainer, engine_url: str
) -> None:
    """Scenario 46: pausing for new weights does not kill what runs."""
    old, new = trainer.head(1), trainer.head(2)
    await pushed(rollout, old)
    asking = begun(rollout)
    await all_running(engine_url)
    await rollout.pause("wait", T)
    outputs = await asking
    sampled = [output for output in outputs if output["versions"] == [[1, 0, LONG]]]
    assert len(sampled) == MANY
    coming = asyncio.create_task(sample(rollout, SEQUENCE))
    await rollout.load(new, T, 1)
    assert not coming.done()
    await rollout.resume(T)
    assert (await coming)["versions"] == [[2, 0, 8]]


@pytest.mark.parametrize("verb", ["abort", "pause"])
async def test_what_runs_is_ended_and_the_engine_goes_on(
    rollout: VllmEngine, trainer: Trainer, engine_url: str, verb: str
) -> None:
    await pushed(rollout, trainer.head(1))
    asking = begun(rollout)
    await all_running(engine_url)
    await (rollout.abort(T) if verb == "abort" else rollout.pause("abort", T))
    with pytest.raises(EngineRefused, match="the engine ended it: abort"):
        await asking
    if verb == "pause":
        await rollout.resume(T)
    agrees(trainer, SEQUENCE, await sample(rollout, SEQUENCE))


@pytest.mark.parametrize("mode", ["wait", "keep", "abort"])
async def test_nothing_of_the_old_weights_is_in_the_prefix_cache(
    rollout: VllmEngine, trainer: Trainer, engine_url: str, mode: PauseMode
) -> None:
    async def hits() -> int:
        return (await scraped(engine_url)).prompt_tokens_by_source["local_cache_hit"]

    await pushed(rollout, trainer.head(1))
    before = await hits()
    agrees(trainer, ALIKE, await sample(rollout, ALIKE))
    assert await hits() == before
    agrees(trainer, ALIKE, await sample(rollout, ALIKE))
    assert await hits() == before + 128, "the prompt was not cached: this test shows nothing"
    await pushed(rollout, trainer.head(2), mode)
    agrees(trainer, ALIKE, await sample(rollout, ALIKE))
    assert await hits() == before + 128


async def test_a_score_does_not_come_from_the_cache(rollout: VllmEngine, trainer: Trainer) -> None:
    """Else the probe would say what the old weights said."""
    await pushed(rollout, trainer.head(1))
    await sample(rollout, ALIKE)
    (found,) = await rollout.generate([ALIKE], SCORE, T)
    assert found["logprobs"] == pytest.approx(trainer.says(1, ALIKE), abs=TOLERANCE)


# --- weights that are none


def broken(head: Head, folder: Path, how: Callable[[Path], None]) -> Head:
    """A copy with other content under a digest that fits: the trainer's saver had a fault."""
    shutil.copytree(head.path, folder)
    how(folder / "model.safetensors")
    return Head(WeightsId(1, 9, digest(folder)), str(folder), head.probe)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])


def lose(file: Path) -> None:
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})


def reshape(file: Path) -> None:
    tensors = load_file(file)
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = tensors[name][:, :-2].contiguous()
    save_file(tensors, file, metadata={"format": "pt"})


async def refused(engine: VllmEngine, head: Head) -> None:
    """Nobody can say what it has, it may not serve, and it lives."""
    await engine.pause("wait", T)
    with pytest.raises(EngineRefused, match="HTTP 500") as error:
        await engine.load(head, T, 1)
    assert error.value.weights is None
    assert await engine.version(T) is None
    with pytest.raises(EngineRefused, match="no weights that anybody published"):
        await engine.resume(T)
    await engine.health(T)


async def test_a_file_that_broke_after_it_was_published_does_not_reach_the_engine(
    rollout: VllmEngine, trainer: Trainer, tmp_path: Path
) -> None:
    old, new = trainer.head(1), trainer.head(2)
    await pushed(rollout, old)
    damaged = broken(new, tmp_path / "weights", cut)
    await rollout.pause("wait", T)
    with pytest.raises(EngineRefused, match="was published") as error:
        await rollout.load(replace(damaged, weights=new.weights), T, 1)
    assert error.value.weights == old.weights
    await rollout.resume(T)
    await probed(rollout, old)


@pytest.mark.parametrize("fault", ["cut", "away"])
async def test_a_load_that_failed_leaves_no_version_and_a_good_one_heals(
    rollout: VllmEngine, trainer: Trainer, tmp_path: Path, fault: str
) -> None:
    await pushed(rollout, trainer.head(1))
    blind = VllmEngine(rollout.url, 1, 1, PathTransport("none"))
    head = broken(trainer.head(2), tmp_path / "weights", cut)
    if fault == "away":
        shutil.rmtree(head.path)
    await refused(blind, head)
    await blind.close()
    await pushed(rollout, trainer.head(2))
    agrees(trainer, SEQUENCE, await sample(rollout, SEQUENCE))


async def test_weights_that_lack_a_tensor_are_seen_by_the_probe_alone(
    rollout: VllmEngine, trainer: Trainer, tmp_path: Path
) -> None:
    """vLLM says 200, keeps the old tensor, and serves on."""
    await pushed(rollout, trainer.head(1))
    head = broken(trainer.head(2), tmp_path / "weights", lose)
    await rollout.pause("wait", T)
    assert await rollout.load(head, T, 1) == head.weights
    await rollout.resume(T)
    await rollout.health(T)
    (found,) = await rollout.generate([SEQUENCE], SCORE, T)
    assert head.probe is not None
    assert head.probe.difference(found["logprobs"]).largest > 10 * TOLERANCE
    await pushed(rollout, trainer.head(2))


async def test_weights_of_another_shape_ruin_an_engine_for_good(
    expendable: Server, rollout: VllmEngine, trainer: Trainer, tmp_path: Path
) -> None:
    """It is half loaded and stays so, whatever is loaded then: only a restart helps, and nothing says that it is well."""
    await pushed(rollout, trainer.head(1))
    await refused(rollout, broken(trainer.head(2), tmp_path / "weights", reshape))
    await refused(rollout, trainer.head(2))


# --- an engine that stands still


async def test_one_whose_server_stands_still_is_silent_in_every_verb(
    engine: Server, rollout: VllmEngine, trainer: Trainer
) -> None:
    await pushed(rollout, trainer.head(1))
    servers.signalled(engine.pid, signal.SIGSTOP)
    try:
        for verb in (
            rollout.health(0.3),
            rollout.pause("wait", 0.3),
            rollout.load(trainer.head(2), 0.3, 1),
            rollout.resume(0.3),
            rollout.abort(0.3),
            rollout.version(0.3),
            rollout.release(0.3),
            rollout.generate([SEQUENCE], SCORE, 0.3),
        ):
            with pytest.raises(EngineSilent, match=r"no answer.* within 0\.3 s"):
                await verb
    finally:
        servers.signalled(engine.pid, signal.SIGCONT)
    await pushed(rollout, trainer.head(2))


async def test_one_whose_core_stands_still_answers_health_only(
    engine: Server, rollout: VllmEngine, trainer: Trainer, wire: VllmWire
) -> None:
    head = trainer.head(1)
    await pushed(rollout, head)
    target = Endpoint("rollout", 0, 1, {}, engine.url, head.weights)
    await wire.generate(target, flight([5, 6]), T)
    core = engine.processes()["VLLM::EngineCore"]
    servers.signalled(core, signal.SIGSTOP)
    try:
        await rollout.health(5.0)
        with pytest.raises(EngineSilent, match=r"pause: no answer to POST /pause within 0\.5 s"):
            await rollout.pause("wait", 0.5)
        with pytest.raises(RequestFailed, match=r"no answer within 0\.5 s"):
            await wire.generate(target, flight([5, 6]), 0.5)
    finally:
        servers.signalled(core, signal.SIGCONT)
    await pushed(rollout, head)


async def test_one_whose_core_was_killed_answers_nothing_any_more(
    expendable: Server, rollout: VllmEngine, trainer: Trainer
) -> None:
    """Its API server may stay for ever, if a verb was on its way: what counts is that its health is bad."""
    await pushed(rollout, trainer.head(1))
    servers.signalled(expendable.processes()["VLLM::EngineCore"], signal.SIGKILL)
    with pytest.raises((EngineRefused, EngineSilent)):
        await rollout.load(trainer.head(2), 5.0, 1)
    with pytest.raises((EngineRefused, EngineSilent)):
        await rollout.health(5.0)


async def test_release_and_another_life(rollout: VllmEngine, trainer: Trainer) -> None:
    await pushed(rollout, trainer.head(1))
    await rollout.release(T)
    assert await rollout.version(T) is None
    with pytest.raises(EngineRefused, match="no weights"):
        await rollout.resume(T)
    await pushed(rollout, trainer.head(2))
    agrees(trainer, SEQUENCE, await sample(rollout, SEQUENCE))
