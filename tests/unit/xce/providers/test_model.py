"""The model provider: on every node of a slot at once, asked until it is there, pinned until it is released."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from gangflow.xce.core.effects import Provision, Release
from gangflow.xce.ports import Held, ModelState, ModelWanted, Provisioned
from gangflow.xce.providers import model
from gangflow.xce.providers.model import ModelFailed, ModelProvider, Models

SHA = "ab" * 32
PARAMETERS = (("source", "file:///models/m"), ("sha256", SHA), ("size", "2GiB"))


@dataclass
class Caches:
    """Nodes whose caches answer at once, after some questions, never, or not at all."""

    questions: dict[str, int] = field(default_factory=dict)
    """Node → how often it still answers "not yet"."""
    errors: dict[str, str] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    paths: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, ModelWanted]] = field(default_factory=list)
    dropped: list[tuple[str, str, str]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    async def want_model(self, node: str, wanted: ModelWanted) -> ModelState:
        self.asked.append((node, wanted))
        try:
            await asyncio.sleep(0)
            if node in self.away:
                raise ConnectionError(f"{node} does not answer")
            if node in self.errors:
                return ModelState(error=self.errors[node])
            if self.questions.get(node, 0):
                self.questions[node] -= 1
                return ModelState("", 1, 2)
            return ModelState(self.paths.get(node, "/cache/m"))
        except asyncio.CancelledError:
            self.cancelled.append(node)
            raise

    async def drop_model(self, node: str, root: str, pin: str) -> None:
        self.dropped.append((node, root, pin))
        if node in self.away:
            raise ConnectionError(f"{node} does not answer")

    async def check_model(self, node: str, root: str, pin: str) -> str:
        if node in self.away:
            raise ConnectionError(f"{node} does not answer")
        return self.errors.get(node, "")


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch) -> Caches:
    monkeypatch.setattr(model, "ASK_S", 0.0)
    return Caches()


def provider(caches: Caches) -> ModelProvider:
    """Hosts `h0`, `h1` are on node n0, all others on one of their own."""
    node_of = lambda host: "n0" if host in ("h0", "h1") else f"n{host[1:]}"  # noqa: E731
    return ModelProvider(Models(caches, node_of, lambda: "cluster", "/cache", 1_024))


def provision(*hosts: str) -> Provision:
    return Provision("g1/rollout[0]/m", 1, "g1", "m", "model", PARAMETERS, ("rollout", 0), hosts)


def release(*hosts: str) -> Release:
    return Release("g1/rollout[0]/m", "g1", "m", "model", "/cache/m", False, PARAMETERS, ("rollout", 0), hosts)


async def test_it_is_made_on_every_node_of_the_slot(caches: Caches) -> None:
    caches.questions = {"n2": 3}
    made = await provider(caches).provision(provision("h0", "h1", "h2"))
    assert made == Provisioned("/cache/m", "h0", ("h0", "h1", "h2"))
    assert [node for node, _ in caches.asked].count("n0") == 1
    assert [node for node, _ in caches.asked].count("n2") == 4
    assert caches.asked[0][1] == ModelWanted("cluster/g1/rollout[0]/m", "/cache", 1_024, "/models/m", SHA, 2_048)


async def test_a_failure_on_one_node_is_the_claims_and_ends_the_others(caches: Caches) -> None:
    caches.errors = {"n2": "no room"}
    caches.questions = {"n0": 10**9}
    with pytest.raises(ModelFailed, match=r"no room \(on n2\)"):
        await provider(caches).provision(provision("h0", "h2"))
    asked = len(caches.asked)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(caches.asked) <= asked + 1, "nobody goes on asking"
    caches.errors, caches.away = {}, {"n2"}
    with pytest.raises(ConnectionError, match="n2 does not answer"):
        await provider(caches).provision(provision("h0", "h2"))


async def test_one_path_for_all_tasks_of_a_slot(caches: Caches) -> None:
    caches.paths = {"n2": "/elsewhere/m"}
    with pytest.raises(ModelFailed, match="different places on its hosts: /cache/m, /elsewhere/m"):
        await provider(caches).provision(provision("h0", "h2"))


async def test_what_is_not_wanted_any_more_is_not_asked_for(caches: Caches) -> None:
    caches.questions = {"n0": 10**9}
    work = asyncio.create_task(provider(caches).provision(provision("h0")))
    while not caches.asked:
        await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


async def test_a_release_drops_the_pins_and_does_not_wait_for_the_dead(caches: Caches) -> None:
    """Scenario 20: a node that is gone for good keeps no obligation open; its pin is none after a day."""
    caches.away = {"n2"}
    await provider(caches).release(release("h0", "h1", "h2"))
    pin = ("/cache", "cluster/g1/rollout[0]/m")
    assert caches.dropped == [("n0", *pin), *[("n2", *pin)] * model.DROP_TRIES]


async def test_a_check_is_of_all_hosts(caches: Caches) -> None:
    held = Held("g1/rollout[0]/m", "g1", "m", "model", "/cache/m", PARAMETERS, ("rollout", 0), ("h0", "h2"))
    assert await provider(caches).check(held) == ""
    caches.errors = {"n2": "/cache/m was changed"}
    assert await provider(caches).check(held) == "/cache/m was changed on n2"
    caches.errors, caches.away = {}, {"n0"}
    with pytest.raises(ConnectionError):
        await provider(caches).check(held)


async def test_without_hosts_or_a_way_to_them_it_says_so(caches: Caches) -> None:
    with pytest.raises(ModelFailed, match="there are none"):
        await provider(caches).provision(provision())
    with pytest.raises(ModelFailed, match="no way to the caches"):
        await ModelProvider(None).provision(provision("h0"))
