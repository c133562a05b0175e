"""One cluster in a Ray of our own for all of these tests, and a look at what is left when they are over."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gangflow.home import HOME_VARIABLE, ROOT_VARIABLE, Home
from gangflow.ray.runtime import RayCluster
from gangflow.specs.cluster import ClusterSpec, HostSpec
from gangflow.xce.rest.client import Client
from tests.integration.ray.world import MARK, Kept, processes, shown, until


@pytest.fixture(scope="session")
def root() -> Iterator[Path]:
    """A root of homes, short enough for sockets. When it ends, nothing that was started below it may run, or be left behind."""
    mark = secrets.token_hex(8)
    folder = Path(tempfile.mkdtemp(prefix="gfr-", dir="/tmp"))
    before = dict(os.environ)
    # Folders that Ray and the tests make for themselves, too.
    os.environ |= {MARK: mark, ROOT_VARIABLE: str(folder / "root"), "TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ.pop(HOME_VARIABLE, None)
    cached, tempfile.tempdir = tempfile.tempdir, None
    try:
        yield folder
        try:
            until(lambda: not processes(MARK, mark), "the end of every process")
        except AssertionError:
            left = processes(MARK, mark)
            pytest.fail(f"left running:\n{shown(left)}")
        assert not list(folder.glob("gf-ray-*")), "a folder of Ray's was left behind"
    finally:
        for process in processes(MARK, mark):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        tempfile.tempdir = cached
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def place(root: Path) -> Path:
    """A folder of the test's own, with a short path."""
    return Path(tempfile.mkdtemp(prefix="t", dir=root))


@pytest.fixture(scope="session")
def kept(root: Path) -> Iterator[Kept]:
    """The shared cluster: two virtual hosts in a Ray of our own, without its dashboard."""
    home = Home(root / "kept")
    home.path.mkdir()
    cluster = RayCluster.start(home, ClusterSpec(hosts=[HostSpec("h", virtual_hosts=2, cpu=4, mem="4GiB", gpus=0)]))
    try:
        yield Kept(home)
    finally:
        cluster.stop()
        assert not (home.path / "ray.json").exists()


@pytest.fixture
def client(kept: Kept) -> Iterator[Client]:
    """Of the shared cluster."""
    with kept.client as client:
        yield client
