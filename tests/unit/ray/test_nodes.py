"""Ray's nodes as ours: names and measures that stay, hosts of a description, nodes that are away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gangflow.errors import SpecError
from gangflow.ray.nodes import NodeNames, describe
from gangflow.specs.cluster import ClusterSpec, HostSpec


def listed(ray_id: str, host: str = "big", *, alive: bool = True, memory: int = 8, **more: Any) -> dict[str, Any]:
    """A node as `ray.nodes()` has it; memory in GiB."""
    address = more.pop("address", "10.0.0.1")
    resources = {"CPU": more.pop("cpus", 4.0), "memory": memory * 2.0**30, "GPU": more.pop("gpus", 0.0)}
    return {
        "NodeID": ray_id, "Alive": alive, "NodeManagerHostname": host, "NodeManagerAddress": address,
        "NodeName": more.pop("name", address), "Resources": resources,
    }  # fmt: skip


@pytest.fixture
def names(tmp_path: Path) -> NodeNames:
    return NodeNames(tmp_path / "nodes.json")


def test_a_node_is_called_as_its_host_unless_somebody_named_it(names: NodeNames) -> None:
    found = names.live([listed("a", "Big.Host"), listed("b", name="the first")], "b")
    assert [(node.name, node.is_head) for node in found] == [("big-host", False), ("the-first", True)]


def test_names_stay_when_nodes_come_and_go(names: NodeNames, tmp_path: Path) -> None:
    """Two nodes of one machine: whichever dies, the other keeps its name; so does a restarted controller."""
    assert [node.name for node in names.live([listed("bbb1"), listed("ccc2")], "bbb1")] == ["big", "big-ccc2"]
    for known in (names, NodeNames(tmp_path / "nodes.json")):
        assert [node.name for node in known.live([listed("bbb1", alive=False), listed("ccc2")], "ccc2")] == ["big-ccc2"]
    # One that sorts before them takes no name from them; the dead one's is free.
    assert [node.name for node in names.live([listed("aaa0"), listed("ccc2")], "ccc2")] == ["big", "big-ccc2"]
    assert [node.name for node in names.live([listed("aaa0"), listed("ab"), listed("ccc2")], "ccc2")] == [
        "big", "big-ab", "big-ccc2",
    ]  # fmt: skip


def test_a_machine_is_what_it_was_when_its_ray_starts_again(names: NodeNames, tmp_path: Path) -> None:
    """Ray's memory is what was free at its start: the agent that runs on serves the hosts that it was started for."""
    (before,) = names.live([listed("a", memory=8)], "a")
    (after,) = NodeNames(tmp_path / "nodes.json").live([listed("a", alive=False), listed("b", memory=7)], "b")
    assert (after.name, after.machine) == (before.name, before.machine)
    (grown,) = names.live([listed("c", memory=7, gpus=2.0)], "c")
    assert (grown.machine.mem, grown.machine.gpus) == (7 * 1024, 2)


def test_a_damaged_file_is_no_file(tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    for text in ("", "[]", '{"names": 1, "machines": {}}'):
        file.write_text(text)
        assert [node.name for node in NodeNames(file).live([listed("a")], "a")] == ["big"]


def test_without_a_description_each_node_is_a_host(names: NodeNames) -> None:
    nodes = names.live([listed("a", "one", address="10.0.0.1"), listed("b", "two", address="10.0.0.2", gpus=1.0)], "a")
    hosts = describe(None, nodes)
    assert {ray_id: [(host.name, host.node, host.address, host.gpus) for host in found] for ray_id, found in hosts.items()} == {
        "a": [("one", "one", "10.0.0.1", 0)],
        "b": [("two", "two", "10.0.0.2", 1)],
    }
    (alone,) = describe(None, nodes[:1], loopback=True)["a"]
    assert alone.address == "127.0.0.1"


def test_a_description_names_nodes_by_name_address_or_local(names: NodeNames) -> None:
    nodes = names.live([listed("a", "one", address="10.0.0.1"), listed("b", "two", address="10.0.0.2")], "b")
    spec = ClusterSpec(
        hosts=[
            HostSpec("x", node="one", cpu=1, mem="1GiB", gpus=0),
            HostSpec("y", node="10.0.0.1", cpu=2, mem="1GiB", gpus=0),
            HostSpec("z", node="local"),
        ]
    )
    hosts = describe(spec, nodes)
    assert [(host.name, host.node) for host in hosts["a"]] == [("x", "one"), ("y", "one")]
    assert [(host.name, host.node, dict(host.counters)["cpu"]) for host in hosts["b"]] == [("z", "two", 4000)]
    both = ClusterSpec(hosts=[HostSpec("x", node="one"), HostSpec("y", node="10.0.0.1")])
    with pytest.raises(SpecError, match="has several hosts"):
        describe(both, nodes)


def test_a_node_that_is_away_is_no_error_one_that_never_was_is(names: NodeNames) -> None:
    nodes = names.live([listed("a", "n0"), listed("b", "n1")], "a")
    spec = ClusterSpec(hosts=[HostSpec("h[0-1]", node="n0", cpu=1, mem="1GiB", gpus=0), HostSpec("g", node="n1")])
    assert set(describe(spec, nodes)) == {"a", "b"}
    left = names.live([listed("a", "n0"), listed("b", "n1", alive=False)], "a")
    assert set(describe(spec, left, names.known)) == {"a"}
    with pytest.raises(SpecError) as caught:
        describe(ClusterSpec(hosts=[HostSpec("g", node="tow")]), nodes, names.known)
    assert caught.value.problems[0].path == "hosts.0.node"
    ranged = ClusterSpec(hosts=[HostSpec("h[0-1]", node="n[0-1]")])
    assert [host.name for host in describe(ranged, left, names.known)["a"]] == ["h0"]
