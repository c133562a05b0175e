"""Every preset for real machines fills the machine that it is for, as the production core places it; where one GPU is missing,
something waits and says why."""

from __future__ import annotations

from collections import Counter

import pytest

import gangflow.testing
from gangflow.recipes.grpo.lm.build import Config, build, cluster
from gangflow.recipes.grpo.lm.presets import MACHINES, PRESETS
from gangflow.recipes.lm.machines import machine
from gangflow.specs.cluster import ClusterSpec
from gangflow.testing import FakeCluster
from gangflow.xce.core.state import Task

Placed = dict[tuple[str, int], tuple[Task, ...]]


def _placed(cluster: FakeCluster) -> Placed:
    return cluster.do(lambda: {key: slot.tasks for key, slot in next(iter(cluster.xce.state.groups.values())).slots.items()})


def _gpus(placed: Placed) -> Counter[str]:
    """Whole GPUs in use, by host."""
    return Counter(task.host for tasks in placed.values() for task in tasks for _ in task.gpus)


def _without_a_gpu(spec: ClusterSpec) -> ClusterSpec:
    *others, last = spec.hosts
    return spec.model_copy(update={"hosts": (*others, last.model_copy(update={"gpus": last.gpus - 1}))})


def _domains(spec: ClusterSpec, level: str) -> dict[str, str]:
    return {host.name: host.domains[level] for host in spec.hosts}


def test_every_preset_for_gpus_has_its_machine() -> None:
    assert set(MACHINES) == {name for name, changes in PRESETS.items() if Config(**changes).device == "gpu"}


@pytest.mark.parametrize("preset", MACHINES)
def test_what_a_gpu_holds_fits_into_80_gb(preset: str) -> None:
    """Weights, gradients and Adam's moments in float32 over the ranks, with room for activations; weights in bfloat16 over an
    engine's and a reference's GPUs, with room for keys and values."""
    config = Config(**PRESETS[preset])
    parameters = {"/models/8b": 8.2, "/models/70b": 70.6}[config.model]
    assert config.sharding == "full"
    assert 16 * parameters / config.ranks <= 40
    assert 2 * parameters / config.tensor_parallel <= 80 * config.gpu_memory_utilization / 2
    assert 2 * parameters / config.ref_gpus <= 80 / 2


@pytest.mark.parametrize("preset", MACHINES)
def test_a_preset_fills_its_machine(preset: str) -> None:
    config, spec = Config(**PRESETS[preset]), machine(*MACHINES[preset])
    assert cluster(config) is None
    with gangflow.testing.cluster(spec) as made:
        made.launch(build(config))
        assert made.group().state == "RUNNING"
        placed = _placed(made)
    assert _gpus(placed) == {host.name: host.gpus for host in spec.hosts}
    nvlink = _domains(spec, "nvlink")
    engines = [tasks for (member, _), tasks in placed.items() if member == "rollout"]
    assert len(engines) == config.rollouts
    for tasks in engines:
        assert sum(len(task.gpus) for task in tasks) == config.tensor_parallel
        assert len({nvlink[task.host] for task in tasks}) == 1
    (actor,) = [tasks for (member, _), tasks in placed.items() if member == "actor"]
    assert [len(task.gpus) for task in actor] == [config.actor_procs] * config.actor_tasks
    assert len({task.host for task in actor}) == config.actor_tasks


def test_all_judges_that_are_asked_for_fit_into_the_virtual_hosts() -> None:
    config = Config(reward_replicas=8, ref_replicas=4)
    spec = cluster(config)
    assert spec is not None
    with gangflow.testing.cluster(spec) as made:
        made.launch(build(config))
        assert made.group().state == "RUNNING"


@pytest.mark.parametrize("preset", MACHINES)
def test_with_one_gpu_less_the_last_rollout_waits_and_says_for_what(preset: str) -> None:
    config = Config(**PRESETS[preset])
    assert config.min_rollouts < config.rollouts
    with gangflow.testing.cluster(_without_a_gpu(machine(*MACHINES[preset]))) as made:
        made.launch(build(config))
        assert made.group().state == "RUNNING"
        (waiting,) = [slot for member in made.group().members for slot in member.slots if slot.state != "READY"]
    assert (waiting.member, waiting.index, waiting.state) == ("rollout", config.rollouts - 1, "PENDING")
    assert waiting.reason is not None
    assert (waiting.reason.code, waiting.reason.shortfall) == ("WAITING_CAPACITY", {"gpus": 1_000})
    assert waiting.reason.text.startswith("gpus: 1 missing")


@pytest.mark.parametrize("preset", MACHINES)
def test_with_one_gpu_less_nothing_starts_where_all_rollouts_are_required(preset: str) -> None:
    changes = PRESETS[preset]
    config = Config(**{**changes, "min_rollouts": changes["rollouts"]})
    with gangflow.testing.cluster(_without_a_gpu(machine(*MACHINES[preset]))) as made:
        made.launch(build(config))
        view = made.group()
        assert view.state == "PENDING"
        assert not _gpus(_placed(made))
    assert view.reason is not None
    assert (view.reason.code, view.reason.shortfall) == ("WAITING_CAPACITY", {"gpus": 1_000})


def test_an_engine_over_two_hosts_never_straddles_a_domain() -> None:
    """Scenario 10. Domains of 3 hosts with 4 GPUs each: an engine of 8 GPUs fits once, and the third host joins no other."""
    spec = machine(9, 4, 3)
    nvlink = _domains(spec, "nvlink")
    changes = {**PRESETS["70b-nvl72"], "kl_weight": 0, "actor_tasks": 3, "pack_actor": None, "prompts": 96, "min_rollouts": 3}
    with gangflow.testing.cluster(spec) as made:
        made.launch(build(Config(**changes)))
        assert made.group().state == "RUNNING"
        placed = _placed(made)
    engines = [tasks for (member, _), tasks in placed.items() if member == "rollout"]
    assert [len(tasks) for tasks in engines] == [2, 2, 2]
    assert all(nvlink[one.host] == nvlink[other.host] for one, other in engines)
    assert len({nvlink[one.host] for one, _ in engines}) == 3
    # 8 of 9 hosts are free for 4 engines of 2: enough of them, but no domain has room for a second engine.
    with gangflow.testing.cluster(spec) as made:
        made.launch(build(Config(**{**changes, "actor_tasks": 1, "rollouts": 4, "min_rollouts": 4})))
        view = made.group()
        assert view.state == "PENDING"
    assert view.reason is not None
    assert "nvlink" in view.reason.text
