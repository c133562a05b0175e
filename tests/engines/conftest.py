"""What tests with real engines share over a session: a tiny model, a nursery of vLLM servers, one server by the plain command.

These tests run in `.venv-rl` (`make test-engines`), which has torch; vLLM has an environment of its own. Each server is started
when it is first asked for, and ended by its pid at the end of the session.
"""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gangflow.integrations.vllm.adapter import VllmEngine
from gangflow.integrations.vllm.transport import PathTransport
from gangflow.integrations.vllm.wire import VllmWire
from tests.engines import servers
from tests.engines.servers import Nursery, Server

if TYPE_CHECKING:
    from tests.engines.versions import Trainer

if importlib.util.find_spec("torch") is None:
    # Without torch nothing here can be imported: a bare `pytest` of the small environment goes by.
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Engines start slowly on a busy machine: a test that names no limit of its own has ten minutes."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model (Qwen3, float32) with its tokenizer, warmed up a little. Read it, do not write to it."""
    return servers.make_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Forks vLLM servers in a few seconds each."""
    made = Nursery(tmp_path_factory.mktemp("vllm"))
    yield made
    made.close()


class Shared:
    """The session's servers: the same ones for every test, and a new one for one that a test has killed."""

    def __init__(self, nursery: Nursery, model: Path) -> None:
        self._nursery = nursery
        self._model = model
        self._servers: list[Server] = []

    def first(self, count: int) -> list[Server]:
        """`count` healthy servers, each as it was when it started."""
        for number in range(count):
            if number == len(self._servers):
                self._servers.append(self._nursery.serve(self._model))
            elif not self._servers[number].alive:
                self._servers[number].stop()
                self._servers[number] = self._nursery.serve(self._model)
        chosen = self._servers[:count]
        for server in chosen:
            server.wait_healthy()
            servers.restore(server.url, self._model)
        return chosen

    def close(self) -> None:
        servers.stop_all(self._servers)


@pytest.fixture(scope="session")
def shared(nursery: Nursery, tiny_model: Path) -> Iterator[Shared]:
    made = Shared(nursery, tiny_model)
    yield made
    made.close()


@pytest.fixture
def engine(shared: Shared) -> Server:
    """One shared server, with the tiny model's own weights, admitting; its model is called `servers.NAME`."""
    return shared.first(1)[0]


@pytest.fixture
def engine_url(engine: Server) -> str:
    return engine.url


@pytest.fixture
def engines(shared: Shared) -> list[Server]:
    """Two shared servers."""
    return shared.first(2)


@pytest.fixture(scope="session")
def plain_engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server by the plain command `vllm serve …`: what users start."""
    server = servers.plain(tiny_model, tmp_path_factory.mktemp("plain"))
    try:
        server.wait_healthy()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def trainer(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """Publishes versions of the tiny model."""
    from tests.engines.versions import Trainer

    return Trainer(tiny_model, tmp_path_factory.mktemp("weights"))


@pytest.fixture
async def rollout(engine_url: str) -> AsyncIterator[VllmEngine]:
    """A coordinator's side of the shared server."""
    made = VllmEngine(engine_url, 1, 1, PathTransport())
    yield made
    await made.close()


@pytest.fixture
async def wire() -> AsyncIterator[VllmWire]:
    """The SDK's side of any server."""
    made = VllmWire()
    yield made
    await made.close()
