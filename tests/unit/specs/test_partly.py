"""Everything that is wrong with a document is told at once: what does not go together, too, beside fields that are wrong."""

from __future__ import annotations

import pytest

from gangflow.errors import SpecError
from gangflow.specs.document import load


def told(text: str) -> list[tuple[int, str]]:
    with pytest.raises(SpecError) as caught:
        load(text)
    return [(problem.line, problem.path) for problem in caught.value.problems]


SERVICE = """name: g
members:
  a:
    replica_set:
      command: [x]
      replicas: 3
      min_replicas: 5
      runtime_limit: 1m
      warning: {before: 5m}
      resources: {cpu: RIGHT}
PRIORITY
failure:
  - {match: {member: b}, action: tolerate}
"""


def service(cpu: str = "1", priority: str = "priority: 1") -> str:
    return SERVICE.replace("RIGHT", cpu).replace("PRIORITY", priority)


AT = "members.a.replica_set"
BOUNDS = [(7, f"{AT}.min_replicas"), (9, f"{AT}.warning.before")]


def test_two_checks_of_one_member_are_told_together() -> None:
    assert told(service())[:2] == BOUNDS


def test_what_does_not_go_together_is_told_beside_a_wrong_field() -> None:
    rule = (13, "failure[0].match.member")
    assert told(service(cpu="lots")) == [*BOUNDS, (10, f"{AT}.resources.cpu"), rule]
    assert told(service(priority="priority: high")) == [*BOUNDS, (11, "priority"), rule]


def test_what_needs_a_wrong_field_is_not_told() -> None:
    text = service().replace("replicas: 3", "replicas: many", 1).replace("runtime_limit: 1m", "runtime_limit: long")
    assert told(text) == [(6, f"{AT}.replicas"), (8, f"{AT}.runtime_limit"), (13, "failure[0].match.member")]
    text = "name: g\nmembers: {a: {job: {}}}\nfailure: [{match: {member: a, slot: 4}, action: tolerate}]\n"
    assert told(text) == [(2, "members.a.job.command"), (3, "failure[0].match.slot")]
    assert told("name: g\nmembers: {a: {jop: {}}}\nfailure: [{match: {member: b}}]\n")[0] == (2, "members.a")


def test_a_plain_one_has_its_own_paths() -> None:
    text = "name: g1\npriority: high\njob: {command: [x], ports: [p, p]}\n"
    assert told(text) == [(1, "name"), (2, "priority"), (3, "job.ports[1]")]
    assert told("name: x\npriority: high\n") == [(1, "members"), (2, "priority")]
    both = "name: x\npriority: high\njob: {command: [x]}\nreplica_set: {command: [x]}\n"
    assert told(both) == [(2, "priority"), (4, "replica_set")]
    assert told("name: x\npriority: high\nmembers: []\njob: 1\n")
    assert told("priority: high\nowner: {}\n")
