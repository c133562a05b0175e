"""A vLLM server in memory, an engine on it, and weights in folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gangflow.channel import Head, Probe, WeightsId
from gangflow.integrations.vllm.adapter import VllmEngine
from gangflow.integrations.vllm.transport import PathTransport
from gangflow.member.digest import digest
from tests.inprocess import InProcess
from tests.unit.integrations.vllm.fake_vllm import FakeVllm, logprob
from tests.unit.integrations.vllm.within import Within

TOKENS = (5, 6, 7, 8)


@pytest.fixture
def server() -> FakeVllm:
    return FakeVllm()


@pytest.fixture
def paths() -> PathTransport:
    return PathTransport()


@pytest.fixture
def engine(server: FakeVllm, paths: PathTransport) -> VllmEngine:
    return connect(server, paths)


def connect(server: FakeVllm, paths: PathTransport, term: int = 1) -> VllmEngine:
    return VllmEngine("http://rollout", 1, term, paths, Within(InProcess(server.app)))


@pytest.fixture
def publish(tmp_path: Path) -> Callable[..., Head]:
    """Writes a model folder, as the trainer would, and gives its head with a probe."""

    def write(version: int, incarnation: int = 1) -> Head:
        folder = tmp_path / f"i{incarnation}-v{version}"
        folder.mkdir()
        content = f"policy {incarnation}/{version}"
        (folder / "model.safetensors").write_text(content)
        (folder / "config.json").write_text("{}")
        probe = Probe(TOKENS, tuple(logprob(content, TOKENS[:place], TOKENS[place]) for place in range(1, len(TOKENS))))
        return Head(WeightsId(incarnation, version, digest(folder)), str(folder), probe)

    return write
