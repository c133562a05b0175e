"""The world that the tests of faults share: started once, on a small disk of its own where that is possible."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gangflow.recipes.grpo.lm.build import cluster
from tests.engines.fault_world import World, config, quick_command
from tests.integration.live.cluster import Live, OwnRoot

DISK_MIB = 192


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of so few MiB for root; for others the folder itself, which cannot be filled."""
    folder.mkdir()
    mounted = os.geteuid() == 0
    if mounted:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "gangflow-test", str(folder)]
        mounted = subprocess.run(mount, check=False, capture_output=True, timeout=30).returncode == 0
    try:
        yield folder
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True, timeout=30)


@contextmanager
def broken_world(model: Path, folder: Path, **more: Any) -> Iterator[World]:
    """The group, with both rollouts serving. At the end nothing of it may be left: no process, wherever it hides."""
    root = OwnRoot()
    orders = folder / "orders"
    orders.mkdir()
    try:
        with small_disk(folder / "disk") as disk:
            chosen = config(model, quick_command(folder), **more)
            live = Live(cluster(chosen), name="faults")
            try:
                world = World(live, chosen, orders, disk)
                world.whole()
                yield world
            finally:
                live.clear()
                live.stop()
    finally:
        root.close()
