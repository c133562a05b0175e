"""Configuration and group."""

import json

import pytest

from gangflow.errors import SpecError
from gangflow.recipes.grpo.build import CLAIM, PORT, WRONG_POLICY, build, cluster
from gangflow.recipes.grpo.config import PRESETS, VARIABLE, Config
from gangflow.recipes.grpo.learner import Hyperparameters
from gangflow.specs.document import dump, load
from gangflow.specs.group import CoStartGroup
from gangflow.specs.member import Job, ReplicaSet
from gangflow.specs.overrides import apply


@pytest.mark.parametrize("preset", PRESETS)
def test_the_group_of_every_preset_comes_back_from_yaml(preset: str) -> None:
    group = build(Config(**PRESETS[preset]))
    assert load(dump(group), CoStartGroup) == group


def test_the_group_is_the_one_of_the_readme() -> None:
    group = build(Config())
    assert list(group.members) == ["actor", "rollout", "reward", "ref"]
    actor, rollout = group.members["actor"], group.members["rollout"]
    assert isinstance(actor, Job)
    assert actor.primary
    assert isinstance(rollout, ReplicaSet)
    assert (rollout.replicas, rollout.least) == (2, 1)
    assert [claim.name for claim in group.claims] == [CLAIM]
    for name in ("rollout", "reward", "ref"):
        member = group.members[name]
        assert member.ports == (PORT,)
        assert member.ready is not None
    assert group.coordinator is not None
    assert group.coordinator.max_staleness == 0


def test_an_actor_that_must_not_go_on_is_not_restarted() -> None:
    first, second = build(Config()).members["actor"].on_failure
    assert first.action == "fail_group"
    assert first.match.exit_codes == (WRONG_POLICY,)
    assert second.action == "restart_member"
    assert second.match.cause == ()


def test_durations_keep_their_unit() -> None:
    group = build(Config(quorum_timeout="1500ms", hang_timeout="2m"))  # type: ignore[arg-type]
    assert group.coordinator is not None
    assert (group.coordinator.quorum_timeout, group.coordinator.hang_timeout) == (1_500, 120_000)
    assert group.members["rollout"].on_failure[0].backoff.initial == 200


def test_the_programs_get_what_the_configuration_says() -> None:
    config = Config(seed=7, steps=33, kl_weight=0.25, patience="90s")  # type: ignore[arg-type]
    given = Config.from_environment(build(config).environment)
    assert given.hyperparameters == config.hyperparameters
    assert (given.seed, given.steps, given.patience, given.split_seed) == (7, 33, 90_000, 0)
    assert "python" not in json.loads(build(config).environment[VARIABLE])


def test_the_defaults_of_the_configuration_are_the_learners() -> None:
    assert Config().hyperparameters == Hyperparameters()


@pytest.mark.parametrize("preset", PRESETS)
def test_the_group_fills_its_cluster(preset: str) -> None:
    config = Config(**PRESETS[preset])
    hosts = cluster(config).hosts[0]
    assert hosts.name == "h[0-3]"
    wanted = [member.resources for member in build(config).members.values() for _ in range(getattr(member, "replicas", 1))]
    assert sum(resources.gpus or 0 for resources in wanted if resources) == 4 * 1_000 * (hosts.gpus or 0)
    assert all(resources is not None and (resources.cpu or 0) <= (hosts.cpu or 0) for resources in wanted)


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"sed": 1}, "sed"),
        ({"steps": 0}, "steps"),
        ({"steps": "many"}, "steps"),
        ({"clip_high": 0.9}, "clip_high"),
        ({"min_rollouts": 3}, "min_rollouts"),
        ({"name": "Two Words"}, "name"),
    ],
)
def test_a_wrong_setting_is_told_by_its_name(wrong: dict[str, object], path: str) -> None:
    with pytest.raises(SpecError) as error:
        Config(**wrong)
    assert [problem.path for problem in error.value.problems] == [path]


def test_a_slip_names_the_nearest_setting() -> None:
    with pytest.raises(SpecError, match="did you mean 'samples'"):
        Config(sample=4)


def test_overrides_are_read_as_they_are_meant() -> None:
    config = apply(Config(**PRESETS["smoke"]), ["steps=7", "quorum_timeout=5s", "cpu=500m", "name=mine"])
    assert (config.steps, config.quorum_timeout, config.cpu, config.name) == (7, 5_000, 500, "mine")
    assert config.prompts == 16


@pytest.mark.parametrize("text", ["sampels=3", "steps", "steps=0", "steps.more=1", "rollouts=none", "min_rollouts=5"])
def test_a_wrong_override_is_a_spec_error(text: str) -> None:
    with pytest.raises(SpecError) as error:
        apply(Config(), [text])
    if text.startswith("sampels"):
        assert error.value.problems[0].nearest == "samples"


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().steps = 3  # type: ignore[misc]
