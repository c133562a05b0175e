"""Configuration and group of RLHF with PPO. All of this runs without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from gangflow.errors import Problem, SpecError
from gangflow.recipes.lm import wire
from gangflow.recipes.rlhf_ppo.build import CKPT, PORT, WRONG_POLICY, Config, build
from gangflow.recipes.rlhf_ppo.config import VARIABLE
from gangflow.recipes.services.packing import pack_floats
from gangflow.recipes.services.rules import TORCHRUN, WRONG_INPUT
from gangflow.specs.member import Job, ReplicaSet
from gangflow.specs.overrides import apply

SHA = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


def _problem(**settings: Any) -> Problem:
    with pytest.raises(SpecError) as refused:
        Config(**settings)
    (problem,) = refused.value.problems
    return problem


def test_the_group_is_the_one_of_the_readme() -> None:
    group = build(Config())
    assert list(group.members) == ["actor", "critic", "rollout", "reward", "ref"]
    actor = group.members["actor"]
    assert isinstance(actor, Job)
    assert actor.primary
    for name in ("critic", "rollout", "reward", "ref"):
        member = group.members[name]
        assert isinstance(member, ReplicaSet)
        assert member.ports == (PORT,)
        assert member.ready is not None
    rollout = group.members["rollout"]
    assert isinstance(rollout, ReplicaSet)
    assert (rollout.replicas, rollout.least) == (2, 1)
    assert "--enable-scale-out" in rollout.command
    assert [claim.name for claim in group.claims] == [CKPT, "model"]
    assert group.claims[1].parameters["make"] == "gangflow.recipes.rlhf_ppo.clerk"
    assert group.coordinator is not None
    assert (group.coordinator.engine, group.coordinator.max_staleness) == ("vllm", 0)


def test_there_is_time_to_train_the_reward_model() -> None:
    group = build(Config(start_timeout="5m", reward_timeout="2h"))  # type: ignore[arg-type]
    assert group.members["reward"].ready_timeout == 125 * 60_000
    assert group.barrier.start_timeout == 125 * 60_000
    assert group.members["critic"].ready_timeout == 5 * 60_000


def test_what_must_not_go_on_is_not_restarted_and_everything_else_is() -> None:
    group = build(Config(max_restarts=3))
    first, second = group.members["actor"].on_failure
    assert (first.action, first.match.exit_codes) == ("fail_group", (WRONG_POLICY,))
    assert (second.action, second.max_restarts) == ("restart_member", 3)
    for name in ("critic", "reward", "ref"):
        *before, rule = group.members[name].on_failure
        assert [(each.action, each.match.exit_codes) for each in before] == (
            [("fail_group", (WRONG_INPUT,))] if name == "reward" else []
        )
        assert (rule.action, rule.max_restarts, rule.then) == ("restart_member", 3, "fail_group")
        assert group.members[name].live is not None


def test_several_ranks_are_started_by_torchrun() -> None:
    group = build(Config(actor_tasks=2, critic_procs=2, reward_procs=4))
    actor = group.members["actor"]
    assert actor.command[1:] == ("-m", TORCHRUN, "--nproc-per-node=1", "-m", "gangflow.recipes.rlhf_ppo.actor")
    assert (actor.tasks, actor.ports) == (2, ("rendezvous",))
    critic = group.members["critic"]
    assert critic.command[1:5] == ("-m", TORCHRUN, "--standalone", "--nproc-per-node=2")
    assert group.members["reward"].command[4] == "--nproc-per-node=4"


def test_on_gpus_each_rank_has_one() -> None:
    group = build(Config(device="gpu", actor_procs=4, critic_procs=2, reward_procs=2, ref_gpus=1, tensor_parallel=2))
    wanted = {name: member.resources.gpus for name, member in group.members.items() if member.resources}
    assert wanted == {"actor": 4_000, "critic": 2_000, "rollout": 2_000, "reward": 2_000, "ref": 1_000}


def test_a_model_with_a_checksum_is_copied_to_who_reads_it() -> None:
    group = build(Config(model="/nfs/m", model_sha256=SHA))
    assert [claim.name for claim in group.claims] == [CKPT]
    assert all(member.claims[0].parameters == {"source": "/nfs/m", "sha256": SHA} for member in group.members.values())
    plain = build(Config(model="/nfs/m"))
    assert plain.claims[1].parameters["folder"] == "/nfs/m"
    assert not any(member.claims for member in plain.members.values())


def test_the_programs_get_what_the_configuration_says() -> None:
    config = Config(seed=7, steps=33, kl_weight=0.25, patience="90s", unfinished_score=None)  # type: ignore[arg-type]
    given = Config.from_environment(build(config).environment)
    assert (given.seed, given.steps, given.kl_weight, given.patience, given.unfinished_score) == (7, 33, 0.25, 90_000, None)
    assert "python" not in json.loads(build(config).environment[VARIABLE])
    # The reference is a program of other recipes, too: these are the names by which it asks.
    assert {"device", "dtype", "micro_batch"} <= set(json.loads(build(config).environment[VARIABLE]))


AWAY = "a server that failed is away that long"


@pytest.mark.parametrize(
    ("settings", "path", "expected"),
    [
        ({"min_rollouts": 3}, "min_rollouts", "at most `rollouts`, 2"),
        ({"max_rollouts": 1}, "max_rollouts", "at least `rollouts`, 2"),
        ({"max_model_len": 80}, "max_model_len", "at least `max_prompt_tokens` + `max_tokens`, 92"),
        ({"model": "clerks"}, "model", "`clerk`, or an absolute path"),
        ({"model_sha256": SHA}, "model_sha256", "none for the model `clerk`"),
        ({"critic_model": "m"}, "critic_model", "an absolute path, or nothing"),
        ({"reward_model": "/m", "reward_base": "/n"}, "reward_base", "none beside `reward_model`"),
        ({"data": "countr"}, "data", "`counter`, or the absolute path"),
        ({"actor_procs": 3}, "prompts", "divisible by the 3 ranks"),
        ({"prompts": 1, "samples": 1}, "prompts", "two replies a step at least"),
        ({"tensor_parallel": 2}, "tensor_parallel", "1 with `device` cpu"),
        ({"device": "gpu", "critic_procs": 16}, "critic_procs", "at most `gpus_per_host`, 8"),
        ({"device": "gpu", "tensor_parallel": 12}, "tensor_parallel", "at most `gpus_per_host`, 8, or a multiple"),
        ({"clip": 1.5}, "clip", "less than 1"),
        ({"split_seed": 1}, "split_seed", "0 with the model `clerk`"),
        ({"schedule": "linear", "min_learning_rate": 1.0}, "min_learning_rate", "at most `learning_rate`, 0.0002"),
        ({"request_timeout": "2m"}, "request_timeout", "less than `hang_timeout`, 120 s"),
        ({"no_progress_timeout": "4m", "patience": "2m"}, "no_progress_timeout", "more than `quorum_timeout`, 240 s"),
        ({"device": "gpu", "patience": "4m"}, "patience", f"at least `start_timeout`, 300 s: {AWAY}"),
        ({"kl_weight": 0}, "kl_weight", "more than 0 with a `kl_target`"),
        ({"prompts": 5_000}, "kl_horizon", "more than 0.2 × `prompts` × `samples`, 2000"),
        ({"prompts": 500_000, "kl_target": 0}, "prompts", "less in a step"),
        ({"sed": 1}, "sed", ""),
    ],
)
def test_a_wrong_setting_is_told_with_what_was_expected(settings: dict[str, Any], path: str, expected: str) -> None:
    problem = _problem(**settings)
    assert problem.path == path
    assert expected in problem.expected


def test_a_smallest_learning_rate_matters_where_the_rate_falls() -> None:
    assert Config(schedule="constant", min_learning_rate=1.0).min_learning_rate == 1.0


def test_the_largest_update_of_a_critic_is_not_larger_than_is_foreseen() -> None:
    config = Config(prompts=16, max_prompt_tokens=50, max_tokens=70)
    tokens, numbers = [2**31 - 1] * 50, pack_floats([1.0] * 70 * config.batch)
    sequences = wire.sequences([tokens] * config.batch, [[1] * 70] * config.batch)
    asked = {"step": 10**6, "sequences": sequences, "values": numbers, "returns": numbers, "actor": 1_000}
    assert 0.9 * config.update_bytes < len(json.dumps(asked)) <= config.update_bytes


def test_a_slip_names_the_nearest() -> None:
    assert _problem(model="clrk").nearest == "clerk"
    assert _problem(data="countr").nearest == "counter"
    assert _problem(sed=1).nearest == "seed"


def test_overrides_are_read_as_they_are_meant() -> None:
    config = apply(Config(), ["steps=7", "unfinished_score=null", "quorum_timeout=5s", "actor_cpu=500m"])
    assert (config.steps, config.unfinished_score, config.quorum_timeout, config.actor_cpu) == (7, None, 5_000, 500)


def test_no_torch_is_imported_for_a_group() -> None:
    code = (
        "import sys; from gangflow.recipes.rlhf_ppo.build import build, cluster, Config; build(Config()); cluster(Config()); "
        "sys.exit(bool({'torch', 'transformers', 'vllm'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
