"""Cluster descriptions: levels, domains, ranges of hosts."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_core import PydanticCustomError

from gangflow.errors import NotYetError, SpecError
from gangflow.specs import ClusterSpec, validate
from gangflow.specs.hostrange import expand_range


def cluster_with(**host: Any) -> dict[str, Any]:
    return {"name": "c", "levels": ["switch"], "hosts": [{"name": "h", "domains": {"switch": "s0"}, **host}]}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("h", ["h"]),
        ("h[0-3]", ["h0", "h1", "h2", "h3"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("r[1,3-4]n[0-1]", ["r1n0", "r1n1", "r3n0", "r3n1", "r4n0", "r4n1"]),
        ("Rack-1.node", ["Rack-1.node"]),
    ],
)
def test_a_range_is_its_names(text: str, names: list[str]) -> None:
    assert list(expand_range(text, 100)) == names


@pytest.mark.parametrize(
    "text",
    ["", "h[", "h[]", "h[3-1]", "h[0-100]", "h[a-b]", "-h", "h h", "h[0-9][0-9][0-9]", "é", "h_1", "x" * 64, "h[1-2-3]", "h\n"],
)
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(PydanticCustomError):
        expand_range(text, 100)


@pytest.mark.parametrize(
    ("document", "path", "expected", "nearest"),
    [
        (cluster_with(domains={"swich": "s0"}), "hosts[0].domains.swich", "a level of the cluster: switch", "switch"),
        (cluster_with(domains={"switch": "a b"}), "hosts[0].domains.switch", "a label", ""),
        (cluster_with(counters={"cpu": 3}), "hosts[0].counters.cpu", "a meaning of its own", ""),
        (cluster_with(counters={"lic": 3}, attributes={"lic": "x"}), "hosts[0].counters.lic", "a meaning of its own", ""),
        (cluster_with(attributes={"gpu_model": "x"}), "hosts[0].attributes.gpu_model", "a meaning of its own", ""),
        (cluster_with(gpus=-1), "hosts[0].gpus", "at least 0", ""),
        (cluster_with(gpu=1), "hosts[0].gpu", "a known key", "gpus"),
        (cluster_with(name="h[0-3]", node="n[0-1]"), "hosts[0].node", "a range of as many as the name's: 4", ""),
        (cluster_with(virtual_hosts=0), "hosts[0].virtual_hosts", "at least 1", ""),
        ({**cluster_with(), "reserve_per": "tsk"}, "reserve_per", "one of task, host", "task"),
        ({**cluster_with(), "levels": ["switch", "switch"]}, "levels[1]", "taken", ""),
        ({"hosts": []}, "hosts", "at least 1", ""),
        ({"hosts": [{"name": "h[0-3]"}, {"name": "h2"}]}, "hosts[1].name", "taken", ""),
    ],
)
def test_a_mistake_is_named(document: dict[str, Any], path: str, expected: str, nearest: str) -> None:
    with pytest.raises(SpecError) as caught:
        validate(ClusterSpec, document)
    problem = caught.value.problems[0]
    assert (problem.path, problem.nearest) == (path, nearest)
    assert expected in problem.expected


def test_a_host_stands_in_a_domain_of_every_level() -> None:
    with pytest.raises(SpecError, match=r"hosts\[0\].domains: expected a domain for the level block"):
        validate(ClusterSpec, {**cluster_with(), "levels": ["block", "switch"]})


def test_what_is_not_enforced_is_refused_as_such() -> None:
    with pytest.raises(NotYetError, match="fair share"):
        validate(ClusterSpec, {**cluster_with(), "fair_share": {}})
