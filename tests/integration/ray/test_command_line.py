"""`gangflow run`, `up`, `attach`, `cancel`, `down` with Ray: what is started is found again and ended, however it was left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from gangflow.errors import JournalLocked
from gangflow.home import Home
from gangflow.xce.cluster_home import ClusterHome
from gangflow.xce.journal.sqlite import SqliteJournal
from gangflow.xce.rest.client import Client
from tests.integration.ray.world import Kept, Program, gangflow, group, incarnations, processes, shown, state, until

pytestmark = pytest.mark.ray
OWN = "GANGFLOW_TEST_OWN"
"""A second mark, of one test's processes among those of the session."""


def written(folder: Path, name: str, **more: object) -> str:
    """A group's file, whose members run until `done` is there."""
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(group(name, folder / "done", **more)))
    return str(file)


def test_attach_and_cancel(kept: Kept, client: Client, place: Path) -> None:
    """A detached run is watched by name at the cluster's home, and cancelled; nothing of it is left."""
    file = written(place, "left-alone")
    said = gangflow("run", file, "--address", str(kept.path), "--detach")
    assert "gangflow attach left-alone" in said
    view = state(client, "left-alone", "RUNNING")
    watching = Program.start("attach", "left-alone", "--address", str(kept.path))
    watching.line("RUNNING")
    assert "CANCELLED" in gangflow("cancel", "left-alone", "--address", str(kept.path))
    code, said = watching.end()
    assert (code, "CANCELLED" in said) == (3, True), said
    pids = [pid for _, some in incarnations(view).values() for pid in some]
    assert pids
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_two_clusters_and_a_killed_run(kept: Kept, client: Client, place: Path) -> None:
    """Two clusters at once do not meet; one whose `gangflow run` was killed with SIGKILL is found and ended by `down --all`."""
    root = {"GANGFLOW_ROOT": str(place / "root"), OWN: place.name}
    client.submit(group("same-name", place / "done-here"))
    run = Program.start("run", written(place, "same-name"), **root)
    home = Path(re.search(r"is submitted to (\S+)", run.line("is submitted to"))[1])  # type: ignore[index]
    own = Kept(Home(home))
    with own.client as there:
        mine, other = state(client, "same-name", "RUNNING"), state(there, "same-name", "RUNNING")
        assert {group.name for group in there.groups().groups} == {"same-name"}
    assert own.folder != kept.folder
    ports = [re.search(r":(\d+)$", cluster.home.url)[1] for cluster in (own, kept)]  # type: ignore[index]
    assert len(set(ports)) == 2
    pools = [json.loads(file.read_text()) for cluster in (own, kept) for file in (cluster.path / "nodes").glob("*/ports.json")]
    firsts = [first for pool in pools for first in pool.values()]
    assert len(set(firsts)) == len(firsts) >= 3

    run.process.kill()
    run.end()
    assert all(psutil.pid_exists(pid) for _, pids in incarnations(other).values() for pid in pids), "members outlive the CLI"
    assert str(home) in gangflow("status", **root)
    assert f"down: {home}" in gangflow("down", "--all", **root)
    left = processes(OWN, place.name)
    assert not left, shown(left)
    assert not (home / "ray.json").exists()
    assert "no cluster" in gangflow("status", **root)

    assert incarnations(client.group(mine.id)) == incarnations(mine), "the other cluster's group was not touched"
    (place / "done-here").touch()
    state(client, mine.id, "SUCCEEDED")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ended_while_ray_starts(place: Path, number: int) -> None:
    """SIGINT in the middle of Ray's start leaves nothing; after SIGKILL `down --all` knows what to end."""
    root = {"GANGFLOW_ROOT": str(place / "root"), OWN: place.name}
    run = Program.start("run", written(place, "too-early"), **root)
    until(lambda: processes(OWN, place.name, "gcs_server"), "Ray's first process")
    code, said = run.end(number)
    assert code != 0, said
    if number == signal.SIGKILL:
        gangflow("down", "--all", **root)
    until(lambda: not processes(OWN, place.name), "the end of every process")
    assert not list((place / "root").rglob("ray.json"))


def test_a_locked_journal_is_said(place: Path) -> None:
    """`up` on a journal that another controller holds: its own exit code, its remedy, and nothing left running."""
    home = ClusterHome(place / "home")
    held = SqliteJournal(home.journal)
    try:
        said = gangflow("up", "--home", str(home.path), "--no-dashboard", expect=JournalLocked.exit_code, **{OWN: place.name})
    finally:
        held.close()
    assert f"{home.journal} is in use by process {os.getpid()}" in said
    assert JournalLocked.remedy in said.replace("\n", " ")
    left = processes(OWN, place.name)
    assert not left, shown(left)
    assert not (home.path / "ray.json").exists()


def test_up_again_after_everything_of_ray_died(place: Path) -> None:
    """Scenario 83: Ray's head and the controller die together; `up` on the same home takes over what runs, `down` ends it."""
    home = str(place / "home")
    # Long enough for a new start: without anybody to govern them, members end after their lease.
    marked = {OWN: place.name, "GANGFLOW_LEASE_MS": "90000"}
    gangflow("up", "--home", home, "--no-dashboard", **marked)
    cluster = Kept(Home(Path(home)))
    with cluster.client as client:
        view = state(client, client.submit(group("survivor", place / "done")).id, "RUNNING")
    folder = cluster.folder
    for process in processes("GANGFLOW_RAY", folder):
        process.kill()
    until(lambda: not cluster.home.alive, "the controller's end")

    gangflow("up", "--home", home, "--no-dashboard", **marked)
    assert cluster.folder != folder
    assert not Path(folder).exists(), "the dead one's folder is removed"
    with cluster.client as client:
        assert incarnations(client.group(view.id)) == incarnations(view)
        (place / "done").touch()
        state(client, view.id, "SUCCEEDED")
    gangflow("down", "--home", home, **marked)
    left = processes(OWN, place.name)
    assert not left, shown(left)
    assert not cluster.home.uses_ray


SCRIPT = """
import sys
import ray
import gangflow as gf

ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=80_000_000, log_to_driver=False)
add = ray.remote(num_cpus=1)(lambda a, b: a + b)
assert ray.get(add.remote(1, 2)) == 3
mine = ray.get_runtime_context().gcs_address
group = gf.CoStartGroup("inside", members={"m": gf.Job(["true"], resources={"cpu": "100m"})})
with gf.launch(group, address=sys.argv[1]) as run:
    assert run.wait().state == "SUCCEEDED"
    run.cluster._connected()  # as for a coordinator
assert ray.get_runtime_context().gcs_address == mine
assert ray.get(add.remote(3, 4)) == 7
ray.shutdown()
print("both")
"""


def test_a_script_that_uses_ray_itself(kept: Kept, place: Path) -> None:
    """Our cluster is spoken to by a process of its own: the caller stays in the Ray that it chose."""
    token = place / "auth"
    token.write_text("0" * 64)
    environment = {**os.environ, "RAY_AUTH_TOKEN_PATH": str(token), "RAY_TMPDIR": str(place)}
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, str(kept.path)],
        env=environment, capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.strip().endswith("both")
