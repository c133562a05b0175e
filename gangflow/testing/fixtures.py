"""For pytest, where it is wanted: `pytest_plugins = ["gangflow.testing.fixtures"]` in a conftest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gangflow.testing.cluster import FakeCluster, cluster


@pytest.fixture
def gangflow_cluster() -> Iterator[FakeCluster]:
    """Four hosts, h0 to h3, with 8 CPUs, 32 GiB, 8 GPUs and 32 ports each; see `gangflow.testing.cluster` for others."""
    with cluster() as made:
        yield made
