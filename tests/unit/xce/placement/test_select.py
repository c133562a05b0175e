"""Select expressions over attributes, domains and counters."""

from __future__ import annotations

import numpy as np
import pytest

from gangflow.xce.placement import Scheduler
from gangflow.xce.placement.select import Selection
from gangflow.xce.placement.snapshot import ClusterView
from tests.unit.xce.placement.worlds import adopt, ask, cluster, host, hosts_of, slots, term

HOSTS = cluster(
    host("a", "s0", cpu=8, gpus=2, gpu_model="A100", LN="true", os="debian", cuda="12.4"),
    host("b", "s1", cpu=16, gpu_model="H100", LN="false", os="debian", cuda="13"),
    host("c", "s1", cpu=4, rank="7"),
    levels=("switch",),
)


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("", "abc"),
        ("gpu_model==A100", "a"),
        ("A100==gpu_model", "a"),
        ("gpu_model=='H100'", "b"),
        ("gpu_model!=A100", "bc"),
        ("type==any", "abc"),
        ("LN", "a"),
        ("!LN", "bc"),
        ("LN&&type==any", "a"),
        ("rank", "c"),
        ("rank>6.5", "c"),
        ("cuda>=12.4", "ab"),
        ("cuda>12.4", "b"),
        ("cpu>=8", "ab"),
        ("ncpus==4", "c"),
        ("mem>=65536", "abc"),
        ("mem/1024==64", "abc"),
        ("cpu*2>16", "b"),
        ("cpu-4<=0", "c"),
        ("cpu+rank>10", "c"),
        ("gpus>0", "a"),
        ("ngpus_physical==2", "a"),
        ("switch==s1", "bc"),
        ("hname==b||hname==c", "bc"),
        ("!(os==debian)", "c"),
        ("os==debian&&!(gpu_model==A100)||rank==7", "bc"),
        ("unheard", ""),
        ("unheard==of", ""),
        ("1/0>0", ""),
    ],
)
def test_what_an_expression_chooses(text: str, chosen: str) -> None:
    view = ClusterView(HOSTS.hosts, HOSTS.levels)
    mask = Selection(view, text).mask(slice(None), view.capacity, view.gpu_capacity)
    assert "".join(np.array(view.topology.names)[mask]) == chosen


def test_a_free_amount_is_read_as_it_is_now() -> None:
    state = cluster(host("a", cpu=8), host("b", cpu=8))
    scheduler = Scheduler()
    wanted = slots("m", 1, term(cpu=1, select="cpu>=8"))
    (first,) = scheduler.decide(state, [ask("g1", wanted)])
    state = adopt(state, [first])
    (second,) = scheduler.decide(state, [ask("g2", wanted)])
    assert hosts_of(first) == ["a"]
    assert hosts_of(second) == ["b"]


def test_names_that_no_host_has_are_known_as_such() -> None:
    view = ClusterView(HOSTS.hosts, HOSTS.levels)
    assert Selection(view, "unheard==of||LN").unknown == ("unheard",)
    assert Selection(view, "gpu_model==X||type==any").unknown == ()
