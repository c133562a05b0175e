"""Clusters of real processes. After each, nothing of it may be left running: /proc is looked through for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.live.cluster import Live, OwnRoot


@pytest.fixture
def root() -> Iterator[OwnRoot]:
    """A folder for the homes of clusters that a test starts itself, through the command line for example."""
    made = OwnRoot()
    yield made
    made.close()


@pytest.fixture(scope="module")
def kept() -> Iterator[Live]:
    """One cluster for the tests of a module: two hosts with 2 CPUs and a GPU each."""
    made = OwnRoot()
    try:
        cluster = Live()
        yield cluster
        cluster.stop()
    finally:
        made.close()


@pytest.fixture
def live(kept: Live) -> Iterator[Live]:
    """The module's cluster; groups that a test leaves are torn down after it."""
    yield kept
    kept.clear()
