"""What a task is started with: the whole environment of design 3.10."""

from __future__ import annotations

import json
from dataclasses import replace

from gangflow.xce.core.effects import Launch, Prepare
from gangflow.xce.core.plan import ClaimPlan
from gangflow.xce.core.state import Task
from tests.unit.xce.core.plans import hosts, job, plan, replicas
from tests.unit.xce.core.stage import Stage


def launches(stage: Stage) -> dict[tuple[str, int, int], Launch]:
    """(member, index, task) → launch."""
    return {(e.task.member, e.task.index, e.task.task): e.launch for e in stage.due(Prepare)}


def full_stage() -> Stage:
    stage = Stage(hosts(2, cpu=3_000))
    actor = job(tasks=2, ports=("rdzv", "http"), environment=(("LR", "0.1"), ("XCE_GROUP", "mine")), cwd="/data")
    stage.submit(
        plan(
            actor,
            replicas("log-probs", 2),
            environment=(("LR", "1"), ("SEED", "7")),
            claims=(ClaimPlan("ckpt"), ClaimPlan("kv-cache", scope="log-probs")),
        )
    )
    stage.claims_ready()
    return stage


def test_the_environment_names_everything() -> None:
    env = dict(launches(full_stage())["actor", 0, 1].environment)
    expected = {
        "LR": "0.1",
        "SEED": "7",
        "XCE_GROUP": "g1",
        "XCE_GROUP_NAME": "demo",
        "XCE_GROUP_EPOCH": "1",
        "XCE_MEMBER": "actor",
        "XCE_SLOT": "0",
        "XCE_SLOTS": "1",
        "XCE_TASK": "1",
        "XCE_TASKS": "2",
        "XCE_INCARNATION": "1",
        "XCE_HOSTS_ACTOR": "h0,h0",
        "XCE_ADDRS_ACTOR_RDZV": "10.0.0.0:20000,10.0.0.0:20002",
        "XCE_ADDRS_ACTOR_HTTP": "10.0.0.0:20001,10.0.0.0:20003",
        "XCE_HOSTS_LOG_PROBS": "h0,h1",
        "XCE_ADDRS_LOG_PROBS_HTTP": "10.0.0.0:20004,10.0.0.1:20100",
        "XCE_PORT_RDZV": "20002",
        "XCE_PORT_HTTP": "20003",
        "XCE_CLAIM_CKPT": "/claims/g1/ckpt",
        "MASTER_ADDR": "10.0.0.0",
        "MASTER_PORT": "20000",
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_RDZV_ENDPOINT": "10.0.0.0:20000",
        "LSB_JOBID": "1",
        "LSB_JOBNAME": "demo.actor[0]",
        "LSB_HOSTS": "h0 h0",
        "LSB_MCPU_HOSTS": "h0 2",
    }
    assert env == expected


def test_a_service_of_one_task_sees_its_own_claim_and_no_rendezvous() -> None:
    launch = launches(full_stage())["log-probs", 1, 0]
    env = dict(launch.environment)
    assert env["XCE_CLAIM_KV_CACHE"] == "/claims/g1/log-probs[1]/kv-cache"
    assert "MASTER_ADDR" not in env
    assert "CUDA_VISIBLE_DEVICES" not in env, "its host has no GPUs to hide"
    assert launch.ready is not None
    assert launch.ports == (("http", 20_100),)


def test_torchruns_own_variables_are_left_to_it() -> None:
    for launch in launches(full_stage()).values():
        assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE"} & set(dict(launch.environment))


def test_command_folder_and_grace_are_the_members() -> None:
    launch = launches(full_stage())["actor", 0, 0]
    assert (launch.argv, launch.cwd, launch.grace_ms) == (("run", "actor"), "/data", 10_000)


def test_gpus_are_named_and_other_peoples_are_hidden() -> None:
    facts = tuple(replace(one, gpus=4) for one in hosts(1))
    stage = Stage(facts)
    stage.submit(plan(job(), job("other")))
    group = stage.group()
    with_gpus = replace(group.slots["actor", 0].tasks[0], gpus=((1, 1_000), (3, 500)))
    slots = {**group.slots, ("actor", 0): replace(group.slots["actor", 0], tasks=(with_gpus,))}
    stage.state = replace(stage.state, groups={"g1": replace(group, slots=slots)})
    env = {key: dict(launch.environment) for key, launch in launches(stage).items()}
    assert env["actor", 0, 0]["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert env["other", 0, 0]["CUDA_VISIBLE_DEVICES"] == ""


def test_the_group_file_says_the_same_as_json() -> None:
    document = json.loads(launches(full_stage())["actor", 0, 1].group_file)
    assert document == {
        "group": "g1",
        "name": "demo",
        "epoch": 1,
        "member": "actor",
        "slot": 0,
        "slots": 1,
        "task": 1,
        "tasks": 2,
        "incarnation": 1,
        "host": "h0",
        "ports": {"rdzv": 20_002, "http": 20_003},
        "gpus": [],
        "claims": {"ckpt": "/claims/g1/ckpt"},
        "members": {
            "actor": {
                "kind": "job",
                "slots": [
                    {
                        "index": 0,
                        "incarnation": 1,
                        "hosts": ["h0", "h0"],
                        "addresses": {
                            "rdzv": ["10.0.0.0:20000", "10.0.0.0:20002"],
                            "http": ["10.0.0.0:20001", "10.0.0.0:20003"],
                        },
                    }
                ],
            },
            "log-probs": {
                "kind": "replica_set",
                "slots": [
                    {"index": 0, "incarnation": 1, "hosts": ["h0"], "addresses": {"http": ["10.0.0.0:20004"]}},
                    {"index": 1, "incarnation": 1, "hosts": ["h1"], "addresses": {"http": ["10.0.0.1:20100"]}},
                ],
            },
        },
    }


def test_a_restarted_slot_gets_its_new_incarnation() -> None:
    stage = full_stage()
    stage.bring_up()
    stage.exit("log-probs", 1)
    stage.wait(1_000)
    env = dict(launches(stage)["log-probs", 1, 0].environment)
    assert (env["XCE_INCARNATION"], env["XCE_GROUP_EPOCH"]) == ("2", "1")


def test_a_task_of_a_slot_that_has_no_place_is_not_in_the_picture() -> None:
    stage = Stage(hosts(1, cpu=2_000))
    stage.submit(plan(job(), replicas(count=2, least=1)))
    env = dict(launches(stage)["actor", 0, 0].environment)
    assert env["XCE_HOSTS_ROLLOUT"] == "h0"
    assert Task(0, "h0").ports == ()
