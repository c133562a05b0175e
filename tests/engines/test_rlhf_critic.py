"""The critic is always at a step that the actor knows, whoever of the two was restarted."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gangflow.recipes.lm.batch import Sequences, pack
from gangflow.recipes.lm.ranks import Team
from gangflow.recipes.lm.spread import TrainingBroken
from gangflow.recipes.rlhf_ppo.critic import Critic
from gangflow.recipes.rlhf_ppo.critic_client import CriticClient, CriticFailed
from gangflow.recipes.rlhf_ppo.values import ValueLearner
from gangflow.recipes.services.asking import Asking, ServiceFailed
from tests.engines.rlhf_parts import Service, make_model, same, service, settings

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
REPLIES = [[20, 21, 1], [22, 1], [23, 24, 25, 26]]
TOKENS = sum(map(len, REPLIES))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("rlhf") / "model")


class World:
    """A critic that can be killed, and what an actor does with it."""

    def __init__(self, folder: Path, served: Service) -> None:
        self.folder = folder
        self.served = served
        self._asking: list[Asking] = []
        self.learner = self.started()

    def started(self) -> ValueLearner:
        self.served.stop()
        self.learner = ValueLearner.start(self.folder, settings(), Team())
        self.served.start(Critic(self.learner, Team()).answers())
        return self.learner

    def client(self, actor: int = 1) -> CriticClient:
        return CriticClient(self.asking(), actor)

    def asking(self) -> Asking:
        self._asking.append(Asking(lambda member: self.served.urls, patience_s=5.0))
        return self._asking[-1]

    def close(self) -> None:
        for asking in self._asking:
            asking.close()


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    with service({}) as served:
        made = World(folder, served)
        yield made
        made.close()


def _returns(step: int) -> list[float]:
    return [float(value) for value in torch.randn(TOKENS, generator=torch.Generator().manual_seed(step))]


def _step(client: CriticClient, step: int) -> dict[str, float]:
    values = client.values(step, PROMPTS, REPLIES)
    return client.train(step, PROMPTS, REPLIES, [value for row in values for value in row], _returns(step))


def _by_hand(folder: Path, steps: int) -> ValueLearner:
    learner = ValueLearner.start(folder, settings(), Team())
    batch = pack(PROMPTS, REPLIES)
    for step in range(steps):
        returns = torch.zeros_like(batch.sampled)
        returns[batch.answer] = torch.tensor(_returns(step))
        learner.train(batch, learner.values(batch), returns)
    return learner


def test_through_the_service_it_trains_as_it_would_alone(world: World, folder: Path) -> None:
    client = world.client()
    client.begin(0, None)
    assert client.values(0, PROMPTS, REPLIES) == [[0.0] * len(reply) for reply in REPLIES]
    reports = [_step(client, step) for step in range(3)]
    assert [set(report) for report in reports] == [{"loss", "clipped", "norm"}] * 3
    assert client.values(3, PROMPTS, REPLIES) != [[0.0] * len(reply) for reply in REPLIES]
    assert same(world.learner.model.state_dict(), _by_hand(folder, 3).model.state_dict())
    assert client.brought == 0


@pytest.mark.parametrize("moment", ["values", "train", "save"])
def test_a_restarted_critic_is_brought_to_the_actors_step_and_is_what_it_was(
    world: World, folder: Path, tmp_path: Path, moment: str
) -> None:
    client = world.client()
    client.begin(0, None)
    _step(client, 0)
    client.save(1, tmp_path / "one")
    client.saved(1, tmp_path / "one")
    _step(client, 1)
    values = [value for row in client.values(2, PROMPTS, REPLIES) for value in row]
    world.started()  # it has forgotten everything
    if moment == "values":
        assert [value for row in client.values(2, PROMPTS, REPLIES) for value in row] == values
        client.train(2, PROMPTS, REPLIES, values, _returns(2))
    elif moment == "train":
        client.train(2, PROMPTS, REPLIES, values, _returns(2))
    else:
        client.save(2, tmp_path / "two")
        client.saved(2, tmp_path / "two")
        client.train(2, PROMPTS, REPLIES, values, _returns(2))
    assert (client.brought, client.differing) == (1, 0)
    assert same(world.learner.model.state_dict(), _by_hand(folder, 3).model.state_dict())


def test_a_restarted_actor_takes_the_critic_back_to_its_checkpoint(world: World, folder: Path, tmp_path: Path) -> None:
    first = world.client()
    first.begin(0, None)
    _step(first, 0)
    first.save(1, tmp_path / "one")
    for step in (1, 2):
        _step(first, step)
    second = world.client(actor=2)
    second.begin(1, tmp_path / "one")
    for step in (1, 2):
        _step(second, step)
    assert same(world.learner.model.state_dict(), _by_hand(folder, 3).model.state_dict())
    with pytest.raises(ServiceFailed, match="incarnation 2 has asked already, 1 must stop"):
        first.values(3, PROMPTS, REPLIES)


def test_an_update_that_is_asked_for_again_is_done_once(world: World, folder: Path) -> None:
    client = world.client()
    client.begin(0, None)
    client.train(0, PROMPTS, REPLIES, [0.0] * TOKENS, _returns(0))
    report = client.train(0, PROMPTS, REPLIES, [0.0] * TOKENS, _returns(0))  # as after a lost answer
    assert report["loss"] > 0
    assert world.learner.step == 1
    assert client.brought == 0
    assert same(world.learner.model.state_dict(), _by_hand(folder, 1).model.state_dict())


def test_nothing_is_done_for_another_step(world: World) -> None:
    asking = world.asking()
    wanted = {"actor": 1, "step": 4, "sequences": {}, "values": "", "returns": "", "folder": "/nowhere"}
    for path in ("/values", "/train", "/save"):
        assert asking.ask("critic", path, wanted) == {"at": None}
    world.client().begin(0, None)
    for path in ("/values", "/train", "/save"):
        assert asking.ask("critic", path, wanted) == {"at": 0}
    assert world.learner.step == 0


def test_a_new_life_of_the_actor_says_itself_where_it_begins(world: World) -> None:
    world.client(actor=1).begin(0, None)
    asking = world.asking()
    assert asking.ask("critic", "/values", {"actor": 2, "step": 0, "sequences": {}}) == {"at": None}


def test_a_checkpoint_of_another_step_is_refused(world: World, tmp_path: Path) -> None:
    client = world.client()
    client.begin(0, None)
    _step(client, 0)
    client.save(1, tmp_path / "one")
    with pytest.raises(ServiceFailed, match="the critic of step 1, not of 2"):
        world.client(actor=2).begin(2, tmp_path / "one")
    with pytest.raises(ServiceFailed, match="has not trained yet"):
        world.client(actor=3).begin(0, None)


def test_a_full_disk_is_the_actors_to_deal_with(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = world.client()
    client.begin(0, None)

    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(world.learner, "save", full)
        with pytest.raises(OSError, match="the critic has no room") as refused:
            client.save(0, tmp_path / "none")
    assert refused.value.errno == errno.ENOSPC
    client.save(0, tmp_path / "none")
    assert (tmp_path / "none").is_dir()


def test_a_broken_gradient_ends_the_run_with_its_reason(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client = world.client()
    client.begin(0, None)

    def broken(batch: Sequences, before: Any, returns: Any) -> None:
        raise TrainingBroken("step 0: the gradient's norm is nan")

    monkeypatch.setattr(world.learner, "train", broken)
    with pytest.raises(CriticFailed, match=r"^step 0: the gradient's norm is nan$"):
        client.train(0, PROMPTS, REPLIES, [0.0] * TOKENS, _returns(0))


def test_a_critic_that_dies_again_and_again_is_given_up(world: World) -> None:
    client = world.client()
    client.begin(0, None)
    _step(client, 0)
    world.served.stop()
    world.served.start({"/begin": lambda asked: {"at": None}, "/values": lambda asked: {"at": None}})
    with pytest.raises(CriticFailed, match="could not be brought to step 1 in 5 attempts"):
        client.values(1, PROMPTS, REPLIES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": -1}, "step: expected a whole number from 0, got -1"),
        ({"step": True}, "step: expected a whole number"),
        ({"sequences": {"tokens": "", "lengths": [], "starts": []}}, "at least one"),
        ({"sequences": {"tokens": "AAAA", "lengths": [2], "starts": [1]}}, "not packed numbers"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_was_expected(world: World, change: dict[str, Any], message: str) -> None:
    client = world.client()
    client.begin(0, None)
    asking = world.asking()
    with pytest.raises(ServiceFailed, match="status 400") as refused:
        asking.ask("critic", "/values", {"actor": 1, "step": 0, "sequences": {}, **change})
    assert message in refused.value.message
