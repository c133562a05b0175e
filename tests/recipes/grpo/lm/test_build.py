"""Configuration and group of GRPO on a language model."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from gangflow.errors import Problem, SpecError
from gangflow.recipes.grpo.lm.build import CKPT, PORT, WRONG_POLICY, Config, build, cluster
from gangflow.recipes.grpo.lm.config import VARIABLE
from gangflow.recipes.grpo.lm.presets import PRESETS
from gangflow.recipes.services.rules import TORCHRUN
from gangflow.specs.member import Job, ReplicaSet

SHA = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


def _problem(**settings: Any) -> Problem:
    with pytest.raises(SpecError) as refused:
        Config(**settings)
    (problem,) = refused.value.problems
    return problem


def test_the_group_has_an_actor_two_plain_engines_a_verifier_and_a_reference() -> None:
    group = build(Config())
    assert list(group.members) == ["actor", "rollout", "reward", "ref"]
    actor, rollout = group.members["actor"], group.members["rollout"]
    assert isinstance(actor, Job)
    assert actor.primary
    assert actor.command[1:] == ("-m", "gangflow.recipes.grpo.lm.actor")
    assert isinstance(rollout, ReplicaSet)
    assert (rollout.replicas, rollout.least, rollout.ports) == (2, 1, (PORT,))
    assert "--enable-scale-out" in rollout.command
    assert [claim.name for claim in group.claims] == [CKPT, "model"]
    assert group.coordinator is not None
    assert (group.coordinator.engine, group.coordinator.pause, group.coordinator.max_staleness) == ("vllm", "wait", 0)


def test_nobody_asks_a_reference_without_a_kl_term_or_with_trl() -> None:
    assert "ref" not in build(Config(kl_weight=0)).members
    group = build(Config(trainer="trl"))
    assert "ref" not in group.members
    assert group.members["actor"].command[-1] == "gangflow.recipes.grpo.lm.trl_actor"


def test_several_ranks_are_started_by_torchrun_and_meet_where_xce_says() -> None:
    here = build(Config(actor_procs=2)).members["actor"]
    assert here.command[1:5] == ("-m", TORCHRUN, "--standalone", "--nproc-per-node=2")
    assert here.tasks is None
    apart = build(Config(actor_tasks=2)).members["actor"]
    assert apart.command[1:4] == ("-m", TORCHRUN, "--nproc-per-node=1")
    assert (apart.tasks, apart.ports) == (2, ("rendezvous",))


def test_a_model_without_a_checksum_is_read_in_place_and_one_with_it_is_copied_to_who_reads_it() -> None:
    plain = build(Config(model="/nfs/m"))
    (model,) = [claim for claim in plain.claims if claim.name == "model"]
    assert (model.provider, model.parameters["folder"]) == ("command", "/nfs/m")
    assert not any(member.claims for member in plain.members.values())
    copied = build(Config(model="/nfs/m", model_sha256=SHA))
    assert [claim.name for claim in copied.claims] == [CKPT]
    readers = {name: member.claims[0] for name, member in copied.members.items() if member.claims}
    assert set(readers) == {"actor", "rollout", "ref"}
    assert {(claim.name, claim.provider, claim.parameters["sha256"]) for claim in readers.values()} == {("model", "model", SHA)}


def test_an_actor_that_must_not_go_on_is_not_restarted() -> None:
    first, second = build(Config()).members["actor"].on_failure
    assert (first.action, first.match.exit_codes) == ("fail_group", (WRONG_POLICY,))
    assert second.action == "restart_member"


def test_too_few_rollouts_are_the_coordinators_to_judge_and_the_floor_is_behind_it() -> None:
    (rule,) = build(Config(min_rollouts=2, quorum_timeout="90s")).members["rollout"].on_failure
    assert (rule.floor, rule.floor_grace, rule.then) == (2, 120_000, "tolerate")


@pytest.mark.parametrize("preset", PRESETS)
def test_the_programs_get_what_the_configuration_says(preset: str) -> None:
    config = Config(**PRESETS[preset])
    text = build(config).environment[VARIABLE]
    given = Config.from_environment({VARIABLE: text})
    unsaid = set(Config.model_fields) - set(json.loads(text))
    assert {"python", "name", "vllm"} <= unsaid
    assert given.model_dump(exclude=unsaid) == config.model_dump(exclude=unsaid)


def test_the_machine_of_the_tiny_model_has_room_for_the_group_and_its_largest_size() -> None:
    spec = cluster(Config(max_rollouts=4))
    assert spec is not None
    assert spec.hosts[0].name == "h[0-4]"
    assert cluster(Config(**PRESETS["8b-1-host"])) is None


def test_a_temperature_samples_what_the_trainer_corrects_for() -> None:
    assert "--logprobs-mode" not in build(Config()).members["rollout"].command
    assert "processed_logprobs" in build(Config(temperature=0.7)).members["rollout"].command


IDLE = "the actor may wait that long"


AWAY = "a server that failed is away that long"


@pytest.mark.parametrize(
    ("settings", "path", "expected"),
    [
        ({"min_rollouts": 3}, "min_rollouts", "at most `rollouts`, 2"),
        ({"learning_rate": 1e-5}, "min_learning_rate", "at most `learning_rate`, 1e-05"),
        ({"request_timeout": "2m"}, "request_timeout", "less than `hang_timeout`, 120 s: an actor that waits is silent"),
        ({"no_progress_timeout": "4m", "patience": "2m"}, "no_progress_timeout", f"more than `quorum_timeout`, 240 s: {IDLE}"),
        ({"device": "gpu", "patience": "4m"}, "patience", f"at least `start_timeout`, 300 s: {AWAY}"),
        ({"patience": "10m"}, "no_progress_timeout", f"more than `patience`, 600 s: {IDLE}"),
        ({"max_rollouts": 1}, "max_rollouts", "at least `rollouts`, 2"),
        ({"pause": "keep"}, "pause", "wait or abort with `max_staleness` 0: what goes on over a push mixes two versions"),
        ({"max_model_len": 70}, "max_model_len", "at least `max_prompt_tokens` + `max_tokens`, 76"),
        ({"model": "qwen"}, "model", "`tiny`, or an absolute path: the hosts read it, not this process"),
        ({"model_sha256": SHA}, "model_sha256", "none for the model `tiny`, which is made on the spot"),
        ({"ref_model": "qwen"}, "ref_model", "an absolute path, or nothing for the first policy"),
        ({"actor_procs": 3}, "prompts", "`prompts` × `samples` divisible by the 3 ranks of the actor"),
        ({"tensor_parallel": 2}, "tensor_parallel", "1 with `device` cpu"),
        ({"device": "gpu", "tensor_parallel": 12}, "tensor_parallel", "at most `gpus_per_host`, 8, or a multiple: whole hosts"),
        ({"device": "gpu", "ref_gpus": 9}, "ref_gpus", "at most `gpus_per_host`, 8"),
        ({"trainer": "trl", "max_staleness": 1}, "max_staleness", "0 with TRL, which samples and trains in turn"),
        ({"trainer": "trl", "ref_model": "/m"}, "ref_model", "none with TRL, whose reference is the first policy"),
        ({"trainer": "trl", "keep_checkpoints": 1}, "keep_checkpoints", "2 at least with TRL, which removes before it saved"),
        ({"trainer": "trl", "minibatches": 3}, "minibatches", "with TRL, `prompts` × `samples` divisible by 1 × 3"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], path: str, expected: str) -> None:
    problem = _problem(**settings)
    assert (problem.path, problem.expected) == (path, expected)


def test_a_smallest_learning_rate_matters_where_the_rate_falls() -> None:
    assert Config(schedule="constant", learning_rate=1e-5).min_learning_rate > 1e-5


def test_an_unknown_setting_names_the_nearest() -> None:
    assert _problem(max_token=3).nearest == "max_tokens"


def test_the_variant_imports_no_torch() -> None:
    code = "import sys, gangflow.recipes.grpo.lm.build as b; b.build(b.Config()); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
