"""Cluster descriptions as facts about hosts."""

from __future__ import annotations

import pytest

from gangflow.errors import SpecError
from gangflow.specs import ClusterSpec, HostSpec
from gangflow.xce.inventory import Machine, host_facts, this_machine


def test_virtual_hosts_share_one_machine_without_a_remainder() -> None:
    cluster = ClusterSpec(hosts=[HostSpec("m", virtual_hosts=3, counters={"licence": 4}, gpu_model="a100", ports=8)])
    facts = host_facts(cluster, {"local": Machine(cpu=8_000, mem=1_000, gpus=5)})
    assert [fact.name for fact in facts] == ["m-0", "m-1", "m-2"]
    assert [dict(fact.counters) for fact in facts] == [
        {"cpu": 2_667, "mem": 334, "licence": 2},
        {"cpu": 2_667, "mem": 333, "licence": 1},
        {"cpu": 2_666, "mem": 333, "licence": 1},
    ]
    # Devices are whole, and each has one host.
    assert [(fact.gpu_first, fact.gpus) for fact in facts] == [(0, 2), (2, 2), (4, 1)]
    assert {fact.node for fact in facts} == {"local"}
    assert {fact.port_count for fact in facts} == {8}
    assert facts[0].attributes == (("gpu_model", "a100"),)


def test_a_range_spells_out_hosts_nodes_and_addresses() -> None:
    cluster = ClusterSpec(
        levels=["block", "switch"],
        hosts=[
            HostSpec(
                "a[0-1]",
                node="n[1-2]",
                address="10.0.0.[7-8]",
                cpu=2,
                mem="1GiB",
                gpus=1,
                domains={"switch": "s", "block": "b"},
            ),
            HostSpec("z", node="n2", cpu=1, mem=1, gpus=1, domains={"switch": "t", "block": "b"}),
        ],
    )
    facts = host_facts(cluster)
    assert [(fact.name, fact.node, fact.address, fact.path, fact.gpu_first) for fact in facts] == [
        ("a0", "n1", "10.0.0.7", ("b", "s"), 0),
        ("a1", "n2", "10.0.0.8", ("b", "s"), 0),
        ("z", "n2", "127.0.0.1", ("b", "t"), 1),
    ]


def test_what_nobody_measured_must_be_said() -> None:
    with pytest.raises(SpecError, match=r"hosts\[0\].cpu: expected a number: node far was not measured"):
        host_facts(ClusterSpec(hosts=[HostSpec("h", node="far", mem=1, gpus=0)]), {"local": Machine(1, 1)})


def test_two_hosts_of_one_machine_do_not_both_have_all_of_it() -> None:
    with pytest.raises(SpecError, match="several hosts"):
        host_facts(ClusterSpec(hosts=[HostSpec("h[0-1]")]), {"local": Machine(1_000, 1_000)})


def test_this_machine_has_something() -> None:
    machine = this_machine()
    assert machine.cpu >= 1_000
    assert machine.mem > 100
