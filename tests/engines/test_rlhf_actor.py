"""The actor of RLHF with PPO, in a cluster for tests: rollouts are a function, reward, reference and critic real services.

The same seed is the same run, to the bit: so a run in which somebody was killed must end with the policy, the critic and the
weight of the KL penalty of a run in which nobody was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gangflow.errors import Problem as SpecProblem
from gangflow.errors import SpecError
from gangflow.member.failures import PolicyMismatch
from gangflow.recipes.lm import model as models
from gangflow.recipes.lm import reference
from gangflow.recipes.lm.drawing import NothingSampled
from gangflow.recipes.lm.problems import BadPrompt, Problem
from gangflow.recipes.lm.ranks import Team
from gangflow.recipes.rlhf_ppo import actor
from gangflow.recipes.rlhf_ppo.actor import Trainer
from gangflow.recipes.rlhf_ppo.alone import sample
from gangflow.recipes.rlhf_ppo.config import Config
from gangflow.recipes.rlhf_ppo.critic import Critic
from gangflow.recipes.rlhf_ppo.policy import PolicyLearner
from gangflow.recipes.rlhf_ppo.preferences import RewardModel
from gangflow.recipes.rlhf_ppo.reward import Scorer
from gangflow.recipes.rlhf_ppo.scalar import Scalar
from gangflow.recipes.rlhf_ppo.steps import Sampler
from gangflow.recipes.rlhf_ppo.texts import Texts
from gangflow.recipes.rlhf_ppo.values import ValueLearner
from gangflow.recipes.services.asking import ServiceFailed
from gangflow.recipes.services.rules import WRONG_POLICY
from gangflow.recipes.services.serving import Answer
from gangflow.testing import Ask, FakeContext, RolloutFailed
from tests.engines.broken import broken
from tests.engines.rlhf_parts import Service, make_model, same, settings

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

ALONE = Team()
CONFIG = settings(steps=5, max_tokens=6, kl_target=0.5, kl_horizon=20.0, learning_rate=2e-3)


class Killed(BaseException):
    """What stands for a SIGKILL of the actor in its own thread: nothing catches it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("rlhf") / "model", warm_steps=5)


@dataclass
class World:
    """The members around the actor."""

    folder: Path
    config: Config = CONFIG
    services: dict[str, Service] = field(default_factory=dict)
    policies: dict[str, Any] = field(default_factory=dict)
    critic: ValueLearner | None = None
    made: int = 0
    unanswered: Callable[[Ask], None] = lambda ask: None
    drift: float = 0.0

    def __post_init__(self) -> None:
        self.context = FakeContext(self.answer, claims=("ckpt", "model"))
        home = Path(self.context.claims["model"])
        for file in self.folder.iterdir():
            (home / file.name).write_bytes(file.read_bytes())
        for member in ("critic", "reward", "ref"):
            self.services[member] = Service({})
            self.restart(member)

    def restart(self, member: str) -> None:
        """With nothing in its memory."""
        self.services[member].stop()
        self.services[member].start(getattr(self, f"_{member}")())

    def answer(self, ask: Ask) -> dict[str, Any]:
        """What a vLLM server says: drawn by the weights that it serves, the prompt's seed and the sample's index."""
        self.unanswered(ask)
        self.made += 1
        assert ask.weights is not None
        path = next(head.path for head in self.context.published if head.weights == ask.weights)
        if path not in self.policies:
            self.policies[path] = models.load(path)
        seed = (ask.prompt["seed"] + int(ask.sample_id.rpartition("/")[2])) % 2**63
        prompts = [ask.prompt["token_ids"]]
        tokens, logprobs = sample(
            self.policies[path], prompts, longest=ask.params["max_tokens"], stop=ask.params["stop_token_ids"][0], seed=seed
        )
        return {
            "token_ids": tokens[0],
            "logprobs": [value + self.drift for value in logprobs[0]],
            "finish_reason": "stop",
            "versions": [[ask.weights.version, 0, len(tokens[0])]],
        }

    def trainer(self, context: FakeContext | None = None) -> Trainer:
        """One life of the actor."""
        context = context or self.context
        policy = PolicyLearner.start(context.claims["model"], self.config, ALONE)
        return Trainer(self.config, context, ALONE, policy, models.tokenizer_of(self.folder))

    def run(self, trainer: Trainer) -> dict[str, Any]:
        try:
            return trainer.run()
        finally:
            trainer.close()

    def metrics(self) -> list[dict[str, Any]]:
        lines = (Path(self.context.claims["ckpt"]) / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        for served in self.services.values():
            served.stop()
        self.context.close()

    def _critic(self) -> dict[str, Answer]:
        self.critic = ValueLearner.start(self.folder, self.config, ALONE)
        return Critic(self.critic, ALONE).answers()

    def _reward(self) -> dict[str, Answer]:
        model = RewardModel(Scalar.load(self.folder, fresh_head=3), self.config, ALONE)
        report = {"trained": True, "accuracy": 0.9, "accuracy_before": 0.5, "held_out_pairs": 32}
        return Scorer(model, ALONE, "f" * 64, report).answers()

    def _ref(self) -> dict[str, Answer]:
        served = reference.judge(models.load(self.folder), models.fingerprint(self.folder), micro_batch=5)
        return {"/logprobs": served}


@pytest.fixture
def worlds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    with ExitStack() as kept:
        here: dict[int, World] = {}

        def make(**changes: Any) -> World:
            made = World(folder, CONFIG.model_copy(update=changes))
            kept.callback(made.close)
            here[id(made.context.cluster)] = made
            return made

        def urls(trainer: Trainer, member: str) -> list[str]:
            context = trainer.context
            assert isinstance(context, FakeContext)
            return here[id(context.cluster)].services[member].urls

        monkeypatch.setattr(Trainer, "_urls", urls)
        yield make


@dataclass(frozen=True)
class End:
    """What a run must end with."""

    policy: dict[str, Any]
    critic: dict[str, Any]
    kl_weight: float


def _end(world: World, trainer: Trainer) -> End:
    assert world.critic is not None
    assert world.critic.step == trainer.policy.step == world.config.steps
    return End(trainer.policy.model.state_dict(), world.critic.model.state_dict(), trainer.kl.weight)


@pytest.fixture(scope="module")
def unbroken(folder: Path) -> End:
    """Of a run in which nothing happened."""
    with pytest.MonkeyPatch.context() as patch:
        world = World(folder)
        patch.setattr(Trainer, "_urls", lambda trainer, member: world.services[member].urls)
        trainer = world.trainer()
        world.run(trainer)
        end = _end(world, trainer)
        world.close()
    return end


def _check(end: End, unbroken: End) -> None:
    assert same(end.policy, unbroken.policy)
    assert same(end.critic, unbroken.critic)
    assert end.kl_weight == unbroken.kl_weight


def test_a_run_ends_with_its_result_and_a_line_for_each_step(worlds: Callable[..., World], unbroken: End) -> None:
    world = worlds()
    trainer = world.trainer()
    result = world.run(trainer)
    _check(_end(world, trainer), unbroken)
    assert (result["steps"], result["resumed_at"], result["held_out"]) == (5, 0, 5)
    assert result["samples"] == {
        **dict.fromkeys(("redispatched", "lost", "duplicates", "late", "stale", "skipped"), 0),
        "committed": 5 * 12,
    }
    assert result["reward_model"]["accuracy"] == 0.9
    lines = world.metrics()
    assert [line["step"] for line in lines] == list(range(6))
    assert [line["step"] for line in lines if "held_out_reward" in line] == [0, 2, 4, 5]
    assert all(line["drift"] < 1e-4 for line in lines[1:])
    assert lines[1]["kl"] == pytest.approx(0.0, abs=1e-4)
    assert len({line["kl_weight"] for line in lines[1:]}) == 5
    assert [head.weights.version for head in world.context.published] == list(range(6))
    assert [saved.step for saved in world.context.saved] == [-1, 1, 3, 4]
    newest = Path(world.context.saved[-1].path)
    assert (newest / "critic").is_dir()
    # A probe of each version goes with it, for the coordinator to check engines by.
    assert all(head.probe is not None and 20 <= len(head.probe.tokens) <= 48 for head in world.context.published)


@pytest.mark.parametrize("moment", ["generating", "training", "saving", "publishing"])
def test_a_killed_actor_goes_on_with_the_critic_from_their_checkpoint(
    worlds: Callable[..., World], unbroken: End, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In step 3, or while the checkpoint after it is saved: the newest is the one after step 2."""
    world = worlds()
    trainer = world.trainer()

    def kill_at(step: int) -> Callable[..., Any]:
        def killed(*arguments: Any) -> Any:
            if trainer.policy.step == step:
                raise Killed
            return original(*arguments)

        return killed

    with monkeypatch.context() as patch:
        place, name, step = {
            "generating": (trainer.sampler, "sample", 3),
            "training": (trainer.policy, "train", 3),
            "saving": (trainer.critic, "save", 4),
            "publishing": (trainer.publisher, "publish", 3),
        }[moment]
        original = getattr(place, name)
        patch.setattr(place, name, kill_at(step))
        with pytest.raises(Killed):
            world.run(trainer)
    with world.context.restarted() as again:
        second = world.trainer(again)
        assert second.resumed_at == 2
        result = world.run(second)
        _check(_end(world, second), unbroken)
        assert result["incarnation"] == 2
        # What the run began with is what its first life measured before the first step.
        assert result["first_held_out_reward"] == world.metrics()[0]["held_out_reward"]
        assert again.rollouts.counters.duplicates == 0


def test_a_killed_critic_is_brought_to_the_actors_step(
    worlds: Callable[..., World], unbroken: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds()
    trainer = world.trainer()
    original = trainer.policy.train

    def train(*arguments: Any) -> Any:
        if trainer.policy.step == 3:  # one step after the checkpoint
            world.restart("critic")
        return original(*arguments)

    monkeypatch.setattr(trainer.policy, "train", train)
    result = world.run(trainer)
    _check(_end(world, trainer), unbroken)
    assert result["critic_brought"] >= 1
    assert result["critic_differing"] == 0


@pytest.mark.parametrize("member", ["reward", "ref", "critic"])
def test_a_service_that_is_away_is_waited_for(worlds: Callable[..., World], unbroken: End, member: str) -> None:
    world = worlds()
    trainer = world.trainer()
    original, gone = trainer._waiting, []

    def waiting(reason: str) -> None:
        gone.append(reason)
        if len(gone) == 3:
            world.restart(member)
        original(reason)

    trainer._waiting = waiting  # type: ignore[method-assign]
    for asking in (trainer.asking, trainer.judges._asking):
        asking._waiting = waiting
    away: list[str] = []

    def leave(ask: Ask) -> None:
        if ask.sample_id.split("/")[1] == "2" and not away:
            away.append(member)
            world.services[member].stop()

    world.unanswered = leave
    world.run(trainer)
    assert away
    assert len(gone) >= 3
    _check(_end(world, trainer), unbroken)


def test_a_service_that_stays_away_ends_the_run_and_nothing_is_learned_from_it(worlds: Callable[..., World]) -> None:
    world = worlds(patience=500)
    trainer = world.trainer()
    world.unanswered = lambda ask: world.services["reward"].stop()
    with pytest.raises(ServiceFailed, match=r"reward did not answer for 0\.5 s"):
        world.run(trainer)
    assert trainer.policy.step == 0
    assert world.critic is not None
    assert world.critic.step == 0


def test_a_prompt_that_fails_is_left_out_and_never_scored(worlds: Callable[..., World]) -> None:
    world = worlds(steps=1)

    def fail(ask: Ask) -> None:
        if ask.sample_id.split("/")[1:3] == ["0", "2"]:
            raise RolloutFailed("data", "a bad prompt")

    world.unanswered = fail
    trainer = world.trainer()
    result = world.run(trainer)
    assert (result["samples"]["committed"], result["samples"]["skipped"]) == (10, 2)
    (line,) = [line for line in world.metrics() if line["step"] == 1]
    assert sum(made["samples"] for made in line["rollouts"].values()) == 10


def _wrong_reference(world: World, folder: Path) -> None:
    served = reference.judge(models.load(folder), "e" * 64, micro_batch=5)
    world.services["ref"].stop()
    world.services["ref"].start({"/logprobs": served})


def _wrong_reward(world: World, folder: Path) -> None:
    model = RewardModel(Scalar.load(folder, fresh_head=4), world.config, ALONE)
    world.services["reward"].stop()
    world.services["reward"].start(Scorer(model, ALONE, "e" * 64, {}).answers())


def _drift(world: World, folder: Path) -> None:
    world.drift = 0.01


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (_wrong_reference, "ref serves the policy eeeeeeeeeeee"),
        (_wrong_reward, "reward serves the model eeeeeeeeeeee, this run's is ffffffffffff"),
        (_drift, "log-probabilities differ by 0.0"),
    ],
)
def test_what_is_not_what_it_should_be_fails_the_group(
    worlds: Callable[..., World], folder: Path, wrong: Callable[[World, Path], None], message: str
) -> None:
    world = worlds()
    trainer = world.trainer()
    trainer._meet_reward()
    trainer._publish()
    wrong(world, folder)
    with pytest.raises(PolicyMismatch) as failed:
        trainer._step()
    trainer.close()
    assert message in failed.value.message
    assert trainer.policy.step == 0
    told = json.loads(world.context.client.kv_get(world.context.group, "trainer/failure").value or "")
    assert told["class"] == "policy"
    assert message in told["message"]


def test_a_resumed_run_meets_the_reward_model_that_it_had(worlds: Callable[..., World], folder: Path) -> None:
    world = worlds(steps=2)
    world.run(world.trainer())
    _wrong_reward(world, folder)
    with world.context.restarted() as again:
        second = world.trainer(again)
        assert second.resumed_at == 2
        with pytest.raises(PolicyMismatch, match="reward serves the model eeeeeeeeeeee"):
            world.run(second)


def test_too_long_a_prompt_is_said_at_the_start(worlds: Callable[..., World]) -> None:
    world = worlds(max_prompt_tokens=13)
    with pytest.raises(ValueError, match=r"expected 1 to `max_prompt_tokens`, 13"):
        world.trainer()


torch.set_num_threads(1)


def test_a_broken_gradient_ends_the_program_with_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    broken(actor, PolicyLearner, monkeypatch, folder)
    assert actor.main() == 1
    assert capsys.readouterr().err.startswith("training_broken: step 7: the gradient's norm is nan (a lower `learning_rate`")


@pytest.mark.parametrize("error", [BadPrompt("prompt 3: 0 tokens"), SpecError([SpecProblem("data", "x", "a file")])])
def test_what_a_restart_would_meet_again_ends_the_actor_for_good(
    error: Exception, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    def lead(*_: Any) -> None:
        raise error

    broken(actor, PolicyLearner, monkeypatch, folder)
    monkeypatch.setattr(actor, "lead", lead)
    assert actor.main() == WRONG_POLICY


def test_a_rollout_has_request_timeout_for_a_request(folder: Path) -> None:
    """Not `patience`, which is for who does not answer at all: an engine that hangs would be noticed as much later."""
    limits: list[float] = []

    def generate(*_: Any, timeout_s: float, **__: Any) -> list[Any]:
        limits.append(timeout_s)
        return [SimpleNamespace(skipped="too long")]

    context: Any = SimpleNamespace(rollouts=SimpleNamespace(generate=generate))
    unused: Any = None
    config = settings(request_timeout="7s", patience="90s")
    texts = Texts(models.tokenizer_of(folder))
    sampler = Sampler(config, context, unused, unused, texts, [texts.end], [], None)
    with pytest.raises(NothingSampled, match="step 3: all 1 prompts were skipped; the last: too long"):
        sampler.replies([Problem(0, "one", "", "one")], 1, 0, 3)
    assert limits == [7.0]
