"""Leases: a verdict once, at the edge, and never because the controller itself was away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangflow.xce.controller.liveness import Leases
from gangflow.xce.core.inputs import HostGone
from gangflow.xce.core.state import Host, HostFacts, HostState

START, GRACE, LEASE, FENCED = 1_000_000, 15_000, 3_000, 23_000
HOSTS = {
    "h1": Host(HostFacts("h1", node="n1"), boot="b1"),
    "h2": Host(HostFacts("h2", node="n1"), boot="b1"),
    "h3": Host(HostFacts("h3", node="n2"), boot="b2"),
}


@pytest.fixture
def leases() -> Leases:
    return Leases(LEASE, FENCED, GRACE, START)


def test_silence_over_the_lease_is_a_verdict_for_every_host_of_the_node(leases: Leases) -> None:
    late = START + GRACE + LEASE
    leases.renew("n2", "b2", late - 1)
    assert leases.verdicts(HOSTS, late) == [HostGone("h1", FENCED), HostGone("h2", FENCED)]


def test_a_verdict_is_given_once(leases: Leases) -> None:
    late = START + GRACE + LEASE
    assert len(leases.verdicts(HOSTS, late)) == 3
    assert leases.verdicts(HOSTS, late + 50_000) == []


def test_after_a_start_nobody_has_been_silent_yet(leases: Leases) -> None:
    """Scenario 84: a controller that was away, however long, condemns nobody on coming back."""
    assert leases.unknown_until_ms == START + GRACE
    assert leases.verdicts(HOSTS, START + GRACE + LEASE - 1) == []


def test_a_renewal_counts_from_when_it_came(leases: Leases) -> None:
    for at in range(START, START + 60_000, LEASE - 1):
        for node in ("n1", "n2"):
            leases.renew(node, "b", at)
        assert leases.verdicts(HOSTS, at + LEASE - 1) == []


def test_a_node_that_came_back_can_be_condemned_again(leases: Leases) -> None:
    late = START + GRACE + LEASE
    assert len(leases.verdicts(HOSTS, late)) == 3
    for node in ("n1", "n2"):
        leases.renew(node, "b", late)
    assert leases.verdicts(HOSTS, late + 1) == []
    assert len(leases.verdicts(HOSTS, late + 1 + LEASE)) == 3


@pytest.mark.parametrize("state", [HostState.LOST, HostState.FENCED])
def test_who_had_a_verdict_gets_no_other(leases: Leases, state: HostState) -> None:
    hosts = {name: replace(host, state=state) for name, host in HOSTS.items()}
    assert leases.verdicts(hosts, START + 10**9) == []


@pytest.mark.parametrize("state", [HostState.UP, HostState.CLOSED, HostState.UNKNOWN])
def test_every_other_state_is_judged(leases: Leases, state: HostState) -> None:
    hosts = {name: replace(host, state=state) for name, host in HOSTS.items()}
    assert len(leases.verdicts(hosts, START + 10**9)) == 3


def test_without_a_lease_silence_means_nothing() -> None:
    assert Leases(0, FENCED, GRACE, START).verdicts(HOSTS, START + 10**9) == []
