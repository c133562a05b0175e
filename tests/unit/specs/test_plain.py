"""Plain jobs and replica sets: groups of one, whose author never sees the group's form."""

from __future__ import annotations

from typing import Any

import pytest

from gangflow.errors import SpecError
from gangflow.specs import CoStartGroup, FailureMatch, FailureRule, Job, ReplicaSet, dump, load, validate
from gangflow.specs.document import plain
from gangflow.specs.overrides import apply


def test_a_job_alone_is_a_group_of_one() -> None:
    """Scenario 2."""
    group = load("name: train\njob: {command: [python, train.py], tasks: 2}\nenvironment: {A: '1'}\n")
    job = Job(["python", "train.py"], tasks=2)
    assert group == CoStartGroup.of_one("train", job, environment={"A": "1"})
    assert group.plain
    assert group.members == {"main": job}
    assert not CoStartGroup("g", {"main": job}).plain


def test_it_renders_as_it_was_written() -> None:
    text = "name: serve\nreplica_set:\n  command: [serve]\n  replicas: 2\n"
    group = load(text)
    assert dump(group) == text
    assert plain(group)["replica_set"] == {"command": ["serve"], "replicas": 2}
    assert load(dump(group)) == group


def test_a_changed_copy_renders_its_changed_member() -> None:
    """What the SDK does before it submits."""
    group = CoStartGroup.of_one("train", Job(["x"]))
    changed = group.model_copy(update={"members": {"main": group.members["main"].model_copy(update={"cwd": "/w"})}})
    assert plain(changed) == {"name": "train", "job": {"command": ["x"], "cwd": "/w"}}


@pytest.mark.parametrize(
    ("document", "path", "expected", "nearest"),
    [
        ({"job": {"comand": ["x"], "command": ["x"]}}, "job.comand", "a known key", "command"),
        ({"job": {"command": []}}, "job.command", "at least 1", ""),
        ({"job": {"command": [""]}}, "job.command[0]", "a program", ""),
        ({"job": {"command": ["x"], "ready": {"tcp": {"port": "p"}}}}, "job.ready.tcp.port", "it has none", ""),
        ({"job": {"command": ["x"], "replicas": 2}}, "job.replicas", "a known key", ""),
        ({"replica_set": {"command": ["x"], "min_replicas": 2}}, "replica_set.min_replicas", "at most `replicas`, 1", ""),
        (
            {"job": {"command": ["x"], "on_failure": [{"action": "restart_member", "floor": 1}]}},
            "job.on_failure[0].floor",
            "is a job",
            "",
        ),
        ({"jobs": {"command": ["x"]}}, "jobs", "a known key", "job"),
        ({"command": ["x"]}, "command", "into `job` or `replica_set`", ""),
        ({"job": {"command": ["x"]}, "members": {"a": {"job": {"command": ["x"]}}}}, "job", "beside `members`", ""),
        ({"job": {"command": ["x"]}, "replica_set": {"command": ["x"]}}, "replica_set", "beside `job`", ""),
        ({}, "members", "a plain `job` or `replica_set`", ""),
        ({"job": {"command": ["x"]}, "claims": [{"name": "a"}, {"name": "a"}]}, "claims[1].name", "taken", ""),
    ],
)
def test_a_mistake_is_named_by_the_authors_own_path(document: dict[str, Any], path: str, expected: str, nearest: str) -> None:
    with pytest.raises(SpecError) as caught:
        validate(CoStartGroup, {"name": "train", **document})
    problem = caught.value.problems[0]
    assert (problem.path, problem.nearest) == (path, nearest)
    assert expected in problem.expected
    assert not any("main" in problem.path for problem in caught.value.problems)


def test_its_own_fields_make_it_again() -> None:
    group = CoStartGroup.of_one("train", Job(["x"]))
    assert CoStartGroup(**{**dict(group), "priority": 60}).members == group.members
    with pytest.raises(SpecError, match="it has none"):
        CoStartGroup(**{**dict(group), "coordinator": {"kind": "rl"}})


def test_overrides_reach_it_by_its_own_path() -> None:
    group = CoStartGroup.of_one("train", Job(["x"]))
    assert apply(group, ["job.tasks=3", "job.command=[y]"]).members["main"] == Job(["y"], tasks=3)
    with pytest.raises(SpecError, match=r"job.taks.*did you mean 'tasks'"):
        apply(group, ["job.taks=3"])


def test_the_groups_keys_hold_for_it() -> None:
    rule = FailureRule("restart_member", match=FailureMatch(member="main", cause="oom"), max_restarts=1)
    group = CoStartGroup.of_one("serve", ReplicaSet(["x"], replicas=2), failure=[rule], priority=70)
    assert load(dump(group)) == group
    with pytest.raises(SpecError, match="a member of the group: main"):
        CoStartGroup.of_one("t", Job(["x"]), failure=[FailureRule("tolerate", match={"member": "other"})])
