"""What a group may say, and what is refused with the path, the value, what was expected, and the nearest name."""

from __future__ import annotations

from typing import Any

import pytest

from gangflow.errors import NotYetError, Problem, SpecError
from gangflow.specs import (
    Claim,
    CoStartGroup,
    FailureMatch,
    FailureRule,
    HttpProbe,
    Job,
    Pack,
    Placement,
    ReplicaSet,
    RLCoordinator,
    validate,
)
from gangflow.specs.document import plain


def group_with(**fields: Any) -> dict[str, Any]:
    """A valid document of two members, with the given keys of the group, or of a member as `actor` and `rollout`."""
    actor = {"command": ["train"], **fields.pop("actor", {})}
    rollout = {"command": ["serve"], "replicas": 2, "ports": ["http"], **fields.pop("rollout", {})}
    return {"name": "g", "members": {"actor": {"job": actor}, "rollout": {"replica_set": rollout}}, **fields}


def problems(document: dict[str, Any]) -> tuple[Problem, ...]:
    with pytest.raises(SpecError) as caught:
        validate(CoStartGroup, document)
    return caught.value.problems


def test_python_and_documents_mean_the_same() -> None:
    python = CoStartGroup(
        "g",
        members={
            "actor": Job(["python", "train.py"], tasks=2, resources={"gpus": 8}),
            "rollout": ReplicaSet(
                ["vllm"], replicas=4, min_replicas=2, ports=["http"], ready=HttpProbe("http", "/health"), ready_timeout="2m"
            ),
        },
        claims=[Claim("ckpt", provider="directory", retain=True)],
        failure=[FailureRule("restart_member", match=FailureMatch(member="rollout", cause="oom"), max_restarts=5)],
        placement=Placement(pack=Pack("switch", required=True)),
        coordinator=RLCoordinator(),
    )
    document = {
        "name": "g",
        "members": {
            "actor": {"job": {"command": ["python", "train.py"], "tasks": 2, "resources": {"gpus": 8}}},
            "rollout": {
                "replica_set": {
                    "command": ["vllm"],
                    "replicas": 4,
                    "min_replicas": 2,
                    "ports": ["http"],
                    "ready": {"http": {"port": "http", "path": "/health"}},
                    "ready_timeout": 120,
                }
            },
        },
        "claims": [{"name": "ckpt", "provider": "directory", "retain": True}],
        "failure": [{"match": {"member": "rollout", "cause": ["oom"]}, "action": "restart_member", "max_restarts": 5}],
        "placement": {"pack": {"level": "switch", "required": True}},
        "coordinator": {"kind": "rl"},
    }
    assert validate(CoStartGroup, document) == python


def test_specs_are_frozen() -> None:
    job = Job(["x"])
    with pytest.raises(ValueError, match="frozen"):
        job.tasks = 3  # type: ignore[misc]


def test_python_mistakes_are_told_where_they_are_made() -> None:
    with pytest.raises(SpecError) as caught:
        Job(["x"], taks=2)
    assert caught.value.problems == (Problem("taks", "2", caught.value.problems[0].expected, nearest="tasks"),)
    with pytest.raises(SpecError, match=r"members.a: expected exactly one of job, replica_set"):
        CoStartGroup("g", members={"a": 3})
    with pytest.raises(TypeError, match="positional"):
        Job(["x"], 2)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("document", "path", "value", "expected", "nearest"),
    [
        (group_with(name="My Group"), "name", "'My Group'", "a name", ""),
        (group_with(name="g\n"), "name", r"'g\n'", "a name", ""),
        (group_with(name="x" * 64), "name", None, "at most 63", ""),
        (group_with(barier={}), "barier", "{}", "a known key", "barrier"),
        (group_with(rollout={"replics": 3}), "members.rollout.replica_set.replics", "3", "a known key", "replicas"),
        (group_with(rollout={"replicas": "two"}), "members.rollout.replica_set.replicas", "'two'", "a whole number", ""),
        (group_with(rollout={"replicas": True}), "members.rollout.replica_set.replicas", "true", "a whole number", ""),
        (group_with(rollout={"min_replicas": 3}), "members.rollout.replica_set.min_replicas", "3", "at most `replicas`, 2", ""),
        (
            group_with(rollout={"max_replicas": 1}),
            "members.rollout.replica_set.max_replicas",
            "1",
            "at least `replicas`, 2",
            "",
        ),
        (group_with() | {"name": "g7"}, "name", "'g7'", "none of XCE's ids", ""),
        (group_with(rollout={"primary": True}), "members.rollout.replica_set.primary", "true", "never primary", ""),
        (group_with(rollout={"command": "serve"}), "members.rollout.replica_set.command", "'serve'", "a list of words", ""),
        (group_with(rollout={"command": []}), "members.rollout.replica_set.command", "[]", "at least 1", ""),
        (group_with(rollout={"command": ["a\0b"]}), "members.rollout.replica_set.command[0]", None, "without NUL", ""),
        (group_with(rollout={"ports": ["http", "http"]}), "members.rollout.replica_set.ports[1]", "'http'", "taken", ""),
        (
            group_with(rollout={"ready": {"http": {"port": "htp"}}}),
            "members.rollout.replica_set.ready.http.port",
            "'htp'",
            "one of the member's ports: http",
            "http",
        ),
        (
            group_with(rollout={"ready": {"htp": {"port": "http"}}}),
            "members.rollout.replica_set.ready",
            None,
            "exactly one of http, tcp, exec, file",
            "http",
        ),
        (
            group_with(rollout={"ready": {"http": {"port": "http", "path": "h"}}}),
            "members.rollout.replica_set.ready.http.path",
            "'h'",
            "/",
            "",
        ),
        (group_with(actor={"environment": {"XCE_SLOT": "1"}}), "members.actor.job.environment.XCE_SLOT", None, "XCE_", ""),
        (group_with(actor={"environment": {"A": True}}), "members.actor.job.environment.A", "true", "quote", ""),
        (group_with(actor={"tasks": 0}), "members.actor.job.tasks", "0", "at least 1", ""),
        (
            group_with(actor={"resources": {"cpu": 1, "counters": {"gpus": 2}}}),
            "members.actor.job.resources.counters.gpus",
            "2",
            "beside `counters`, as `gpus`",
            "",
        ),
        (group_with(actor={"resources": {"gpu": 1}}), "members.actor.job.resources.gpu", "1", "a known key", "gpus"),
        (group_with(actor={"resources": {"gpus": 1.5}}), "members.actor.job.resources.gpus", "1.5", "fraction below 1", ""),
        (group_with(actor={"resources": {"mem": "64G"}}), "members.actor.job.resources.mem", "'64G'", "64GiB", ""),
        (group_with(actor={"ready_timeout": "10 min"}), "members.actor.job.ready_timeout", "'10 min'", "a duration", ""),
        (
            group_with(failure=[{"action": "restart_membr"}]),
            "failure[0].action",
            "'restart_membr'",
            "one of tolerate, restart_member",
            "restart_member",
        ),
        (
            group_with(failure=[{"action": "tolerate", "match": {"member": "rolout"}}]),
            "failure[0].match.member",
            "'rolout'",
            "a member of the group: actor, rollout",
            "rollout",
        ),
        (
            group_with(failure=[{"action": "tolerate", "match": {"cause": ["host_losst"]}}]),
            "failure[0].match.cause[0]",
            "'host_losst'",
            "one of app_exit",
            "host_lost",
        ),
        (
            group_with(actor={"on_failure": [{"action": "fail_group", "match": {"member": "rollout"}}]}),
            "members.actor.job.on_failure[0].match.member",
            "'rollout'",
            "about actor only",
            "",
        ),
        (
            group_with(rollout={"on_failure": [{"action": "restart_member", "floor": 3}]}),
            "members.rollout.replica_set.on_failure[0].floor",
            "3",
            "at most `replicas`, 2",
            "",
        ),
        (
            group_with(rollout={"on_failure": [{"action": "restart_member", "match": {"slot": 2}}]}),
            "members.rollout.replica_set.on_failure[0].match.slot",
            "2",
            "less than 2",
            "",
        ),
        (
            group_with(actor={"on_failure": [{"action": "restart_member", "floor": 1}]}),
            "members.actor.job.on_failure[0].floor",
            "1",
            "job",
            "",
        ),
        (group_with(claims=[{"name": "a"}, {"name": "a"}]), "claims[1].name", "'a'", "taken", ""),
        (
            group_with(claims=[{"name": "a"}], rollout={"claims": [{"name": "a"}]}),
            "members.rollout.replica_set.claims[0].name",
            "'a'",
            "a claim of the group has this one",
            "",
        ),
        (group_with(coordinator={"actor": "actr"}), "coordinator.actor", "'actr'", "a job of the group: actor", "actor"),
        (group_with(coordinator={"rollout": "actor"}), "coordinator.rollout", "'actor'", "a replica set of the group", ""),
        (group_with(coordinator={"port": "htpp"}), "coordinator.port", "'htpp'", "a port of rollout: http", "http"),
        (group_with(coordinator={"min_rollouts": 3}), "coordinator.min_rollouts", "3", "at most the 2", ""),
        ({"name": "g", "members": {}}, "members", "{}", "at least 1", ""),
        ({"name": "g"}, "members", "", "required", ""),
        ({"name": "g", "members": {"a": {"jb": {}}}}, "members.a", None, "exactly one of job, replica_set", "job"),
        ({"name": "g", "members": {"A": {"job": {"command": ["x"]}}}}, "members.A", None, "a name", ""),
        (
            {"name": "g", "members": {"a": {"job": {"command": ["x"]}, "replica_set": {}}}},
            "members.a",
            None,
            "exactly one of",
            "",
        ),
    ],
)
def test_a_mistake_is_named(document: dict[str, Any], path: str, value: str | None, expected: str, nearest: str) -> None:
    (found,) = problems(document)
    assert found.path == path
    assert value is None or found.value == value
    assert expected in found.expected
    assert found.nearest == nearest


def test_all_mistakes_are_told_at_once() -> None:
    document = group_with(name="N", rollout={"replicas": -1, "comand": []}, actor={"tasks": "x"})
    assert {p.path for p in problems(document)} == {
        "name",
        "members.actor.job.tasks",
        "members.rollout.replica_set.comand",
        "members.rollout.replica_set.replicas",
    }


def test_two_members_never_share_an_address_variable() -> None:
    members = {
        "a": {"replica_set": {"command": ["x"], "ports": ["b-c"]}},
        "a-b": {"replica_set": {"command": ["x"], "ports": ["c"]}},
    }
    (found,) = problems({"name": "g", "members": members})
    assert found.path == "members.a-b.replica_set.ports[0]"
    assert "member a has the same address variable" in found.expected


def test_two_slot_claims_are_never_made_as_the_same_folder() -> None:
    members = {
        "c": {"job": {"command": ["x"], "claims": [{"name": "a-b"}]}},
        "b-c": {"job": {"command": ["x"], "claims": [{"name": "a"}]}},
    }
    (found,) = problems({"name": "g", "members": members})
    assert found.path == "members.b-c.job.claims[0].name"


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (group_with(placement={"mode": "accumulate"}), "placement.mode"),
        (group_with(placement={"timeout": "10m"}), "placement.timeout"),
        (group_with(placement={"group": "pg"}), "placement.group"),
        (group_with(placement={"spread": {"level": "switch"}}), "placement.spread"),
        (group_with(placement={"near": "actor"}), "placement.near"),
        (group_with(max_preemptions=1), "max_preemptions"),
        (group_with(coordinator={"kind": "serving"}), "coordinator.kind"),
        *((group_with(actor={key: "x"}), f"members.actor.job.{key}") for key in ("spread", "near", "preemptible")),
        (group_with(actor={"resreq": "span[stripe]"}), "members.actor.job.resreq"),
        (group_with(actor={"resreq": "{a}||{b}"}), "members.actor.job.resreq"),
    ],
)
def test_what_is_not_enforced_is_refused_as_such(document: dict[str, Any], path: str) -> None:
    with pytest.raises(NotYetError) as caught:
        validate(CoStartGroup, document)
    assert [problem.path for problem in caught.value.problems] == [path]
    assert caught.value.code == "not_enforced"


def test_a_mistake_beside_something_not_enforced_is_a_mistake() -> None:
    with pytest.raises(SpecError) as caught:
        validate(CoStartGroup, group_with(preemptible=True, prioritee=3))
    assert not isinstance(caught.value, NotYetError)
    assert len(caught.value.problems) == 2


def test_minimum_and_maximum_follow_the_replicas() -> None:
    service = ReplicaSet(["x"], replicas=4)
    assert (service.least, service.most) == (4, 4)
    assert (ReplicaSet(["x"], replicas=0).least, ReplicaSet(["x"], replicas=0).most) == (0, 1)
    bounded = ReplicaSet(["x"], replicas=4, min_replicas=1, max_replicas=8)
    assert (bounded.least, bounded.most) == (1, 8)


def test_tasks_and_resreq_agree() -> None:
    assert Job(["x"], tasks=3, resreq="1*{span[hosts=1]}+2*{a}").tasks == 3
    assert Job(["x"], tasks=3, resreq="select[a]").tasks == 3
    with pytest.raises(SpecError, match=r"tasks: expected 3, the sum of the resreq's counts \(got 2\)"):
        Job(["x"], tasks=2, resreq="1*{a}+2*{b}")
    with pytest.raises(SpecError, match="a count before the last term"):
        Job(["x"], tasks=2, resreq="1*{a}+{b}")
    with pytest.raises(SpecError, match="either `resreq` or `resources`"):
        Job(["x"], resreq="select[a]", resources={"cpu": 1})


def test_a_resreq_s_fault_has_the_path_and_the_column() -> None:
    (found,) = problems(group_with(actor={"resreq": "rusge[mem=4]"}))
    assert found.path == "members.actor.job.resreq"
    assert found.expected.startswith("column 1: a section")
    assert found.nearest == "rusage"


def test_rules_whose_budget_means_nothing_are_refused() -> None:
    for fields in (
        {"action": "tolerate", "max_restarts": 3},
        {"action": "fail_group", "floor": 1},
        {"action": "fail_group", "count_machine_losses": True},
        {"action": "fail_group", "window": "2h"},
        {"action": "fail_group", "window": "1h"},
        {"action": "fail_group", "backoff": {"initial": "2s"}},
        {"action": "fail_group", "then": "fail_group"},
        {"action": "tolerate", "window": "1h"},
        {"action": "tolerate", "backoff": {}},
        {"action": "tolerate", "then": "restart_group", "count_machine_losses": True},
        {"action": "tolerate", "then": "tolerate"},
        {"action": "restart_member", "then": "tolerate"},
        {"action": "restart_group", "then": "restart_group"},
        {"action": "restart_member", "match": {"exit_codes": [3]}},
        {"action": "restart_member", "match": {"cause": ["app_exit"], "exit_codes": [256]}},
        {"action": "restart_member", "backoff": {"initial": "2m", "max": "1m"}},
        {"action": "restart_member", "max_restarts": -1},
    ):
        with pytest.raises(SpecError):
            validate(FailureRule, fields)


def test_rules_whose_budget_means_something_are_taken() -> None:
    for fields in (
        {"action": "tolerate", "then": "restart_group", "max_restarts": 2, "window": "10m", "backoff": {"initial": "2s"}},
        {"action": "tolerate", "floor": 1, "floor_grace": "5s", "then": "fail_group"},
        {"action": "restart_member", "floor_grace": "5s", "then": "fail_group"},
        {"action": "restart_member", "max_elapsed": "1h", "then": "tolerate"},
        {"action": "restart_role", "window": "10m", "backoff": {}},
        {"action": "fail_group", "match": {"cause": ["oom"]}},
    ):
        rule = validate(FailureRule, fields)
        assert validate(FailureRule, plain(rule)) == rule
