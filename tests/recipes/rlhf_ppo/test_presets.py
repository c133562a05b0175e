"""What each preset renders is kept, and each one for real machines fills the machine that it is for."""

from __future__ import annotations

from collections import Counter

import pytest

import gangflow.testing
from gangflow.recipes.lm.machines import machine
from gangflow.recipes.rlhf_ppo.build import Config, build, cluster
from gangflow.recipes.rlhf_ppo.presets import MACHINES, PRESETS
from gangflow.specs.document import dump, load
from gangflow.specs.group import CoStartGroup
from gangflow.testing import FakeCluster
from gangflow.xce.core.state import Task
from tests.recipes.rlhf_ppo.rendering import FOLDER, text_of

GPU_BYTES = 80e9
PARAMETERS = {"/models/1b": 1.2e9, "/models/8b": 8e9, "/models/70b": 70e9}
TRAINED, SERVED = 16, 2
"""Bytes per parameter: weights, gradients and two moments in float32; weights in bfloat16."""


def _placed(made: FakeCluster) -> dict[tuple[str, int], tuple[Task, ...]]:
    return made.do(lambda: {key: slot.tasks for key, slot in next(iter(made.xce.state.groups.values())).slots.items()})


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_renders_as_it_was_kept(preset: str) -> None:
    again = "python -m tests.recipes.rlhf_ppo.rendering writes it anew"
    assert text_of(preset) == (FOLDER / f"{preset}.yaml").read_text(), again


def test_nothing_is_kept_of_a_preset_that_is_gone() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(PRESETS)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_comes_back_from_its_yaml(preset: str) -> None:
    group = build(Config(**PRESETS[preset]))
    assert load(dump(group), CoStartGroup) == group


def test_every_preset_for_gpus_has_its_machine() -> None:
    assert set(MACHINES) == {name for name, changes in PRESETS.items() if Config(**changes).device == "gpu"}


@pytest.mark.parametrize("preset", MACHINES)
def test_a_preset_fills_its_machine(preset: str) -> None:
    config, spec = Config(**PRESETS[preset]), machine(MACHINES[preset])
    assert cluster(config) is None
    with gangflow.testing.cluster(spec) as made:
        made.launch(build(config))
        assert made.group().state == "RUNNING"
        placed = _placed(made)
    used = Counter(task.host for tasks in placed.values() for task in tasks for _ in task.gpus)
    assert used == {host.name: 8 for host in spec.hosts}
    engines = [tasks for (member, _), tasks in placed.items() if member == "rollout"]
    assert len(engines) == config.rollouts
    assert all(len({task.host for task in tasks}) == 1 for tasks in engines)
    assert all(sum(len(task.gpus) for task in tasks) == config.tensor_parallel for tasks in engines)


@pytest.mark.parametrize("preset", MACHINES)
def test_what_is_trained_and_what_is_served_fits_its_gpus(preset: str) -> None:
    config = Config(**PRESETS[preset])
    policy = PARAMETERS[config.model]
    critic = PARAMETERS[config.critic_model or config.model]
    judge = PARAMETERS[config.reward_base or config.model]
    assert policy * TRAINED / config.ranks < 0.8 * GPU_BYTES
    assert critic * TRAINED / config.critic_procs < 0.8 * GPU_BYTES
    assert judge * TRAINED / config.reward_procs < 0.8 * GPU_BYTES
    assert policy * SERVED / config.tensor_parallel < 0.8 * GPU_BYTES
    assert policy * SERVED / config.ref_gpus < 0.8 * GPU_BYTES


@pytest.mark.parametrize("preset", [name for name in PRESETS if name not in MACHINES])
def test_a_preset_for_this_machine_fits_its_virtual_hosts(preset: str) -> None:
    config = Config(**PRESETS[preset])
    spec = cluster(config)
    assert spec is not None
    with gangflow.testing.cluster(spec) as made:
        made.launch(build(config))
        assert made.group().state == "RUNNING"
