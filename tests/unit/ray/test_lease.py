"""How long silence is taken for life: read in one place, passed on to controller and agent."""

from __future__ import annotations

import pytest

from gangflow.errors import SpecError
from gangflow.ray.lease import Lease


def test_usual() -> None:
    lease = Lease.from_environment({})
    assert lease == Lease()
    assert (lease.for_controller.lease_ms, lease.for_controller.fence_ms) == (lease.lease_ms, lease.fence_ms)
    assert (lease.for_agent.lease_ms, lease.for_agent.fence_ms) == (lease.lease_ms, lease.fence_ms)
    assert lease.for_controller.kill_grace_ms == lease.kill_grace_ms


def test_from_the_environment() -> None:
    lease = Lease.from_environment({"GANGFLOW_LEASE_MS": "2000", "GANGFLOW_GRACE_MS": "500", "GANGFLOW_FENCE_MS": ""})
    assert (lease.lease_ms, lease.grace_ms, lease.fence_ms) == (2000, 500, Lease().fence_ms)


@pytest.mark.parametrize("lease_ms", [1_000, 15_000, 600_000])
def test_several_beats_go_into_a_lease(lease_ms: int) -> None:
    assert 0 < Lease(lease_ms).beat_s * 4 <= lease_ms / 1000


@pytest.mark.parametrize("text", ["15s", "-1", "0", "99", "1e4", "²"])
def test_nonsense_is_named(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        Lease.from_environment({"GANGFLOW_FENCE_MS": text})
    assert caught.value.problems[0].path == "GANGFLOW_FENCE_MS"
