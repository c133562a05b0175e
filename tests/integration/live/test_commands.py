"""`gangflow` as people run it: a process of its own, its output and its exit code, and what it leaves behind (nothing)."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gangflow.home import Home
from tests.integration.live.cluster import DEADLINE_S, OwnRoot, processes, until

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "example"
# The interpreter's folder first, as in an activated environment: the example's command is `python`.
ENVIRONMENT = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "160"}
SPEC = """
name: {name}
members:
  a:
    job:
      command: [sh, -c, "echo started; while ! test -e go; do sleep 0.05; done; echo over"]
      resources: {{cpu: 100m, mem: 16MiB}}
      termination_grace: 1s
"""


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "gangflow.cli.main", *words]


def gangflow(*words: str, exits: int = 0, cwd: Path | None = None) -> str:
    """Run a command to its end; what it printed. Fails when its exit code is another one."""
    ended = subprocess.run(
        _command(*words),
        cwd=cwd,
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == exits, ended.stdout
    return ended.stdout


@contextmanager
def started(*words: str, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on; it must have ended when the block does."""
    environment = {**os.environ, **ENVIRONMENT}
    process = subprocess.Popen(
        _command(*words), cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
        process.wait(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.communicate()


def _read_until(process: subprocess.Popen[str], text: str) -> str:
    """What it prints, up to the line that has `text` in it."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if text in line:
            return "".join(said)
    raise AssertionError(f"{text!r} was never said:\n{''.join(said)}")


@pytest.fixture
def folder(root: OwnRoot, tmp_path: Path) -> Path:
    """A folder with a spec in it, and a root for homes."""
    (tmp_path / "my.yaml").write_text(SPEC.format(name="tiny"))
    return tmp_path


def _home(root: OwnRoot) -> Home:
    (path,) = (root.path / "runs").iterdir()
    return Home(path)


def _members(root: OwnRoot) -> list[str]:
    """Processes that run as somebody's member."""
    return [each.command for each in processes(root.path) if "XCE_MEMBER" in each.environment]


def _shells(root: OwnRoot) -> list[int]:
    """The main processes of `SPEC`'s members."""
    return [each.pid for each in processes(root.path) if "XCE_MEMBER" in each.environment and each.command.startswith("sh -c")]


def _nothing_is_left(root: OwnRoot) -> None:
    until(lambda: not processes(root.path), lambda: [each.command for each in processes(root.path)])


def test_the_readmes_second_example(root: OwnRoot) -> None:
    """A user's own script of at most 30 lines, with a spec of two members, no recipe; one of them is killed on the way."""
    assert len((EXAMPLE / "train.py").read_text().splitlines()) <= 30
    words = ("run", "my.yaml", "--runtime", "local", "--fault", "worker[0]@step=50:kill")
    said = gangflow(*words, cwd=EXAMPLE)
    assert "line SUCCEEDED" in said
    assert "fault: kill worker[0] at step 50" in said
    (log,) = (root.path / "runs").glob("*/nodes/*/tasks/*/trainer-0/1/0/stdout")
    assert log.read_text() == "y = 3.00 x + 1.00\n"


def test_detach_look_attach(root: OwnRoot, folder: Path) -> None:
    """A run that is let go of goes on; `status`, `logs` and `attach` find it by its name, and `attach` ends with its result."""
    assert "no cluster of this user runs on this machine" in gangflow("status")
    said = gangflow("run", "my.yaml", "--runtime", "local", "--detach", cwd=folder)
    assert "detached: `gangflow attach tiny`" in said
    until(lambda: _members(root), "the member runs on")
    assert re.search(r"1 group\n.*tiny \(g1\) (RUNNING|STARTING)", gangflow("status"))
    assert re.search(r"a\[0\] +(READY|RUNNING|STARTING)", gangflow("status", "tiny"))
    with started("logs", "tiny", "a", "-f") as follower, started("attach", "tiny") as watcher:
        _read_until(follower, "started")
        _read_until(watcher, "barrier released")
        (folder / "go").touch()
        _read_until(follower, "over")
        assert "tiny SUCCEEDED" in _read_until(watcher, "tiny SUCCEEDED")
    assert (follower.returncode, watcher.returncode) == (0, 0)
    assert gangflow("logs", "g1", "a[0]", "--address", str(_home(root).path)) == "started\nover\n"
    assert "SUCCEEDED" in gangflow("status")
    assert "STOPPING → SUCCEEDED\ntiny SUCCEEDED" in gangflow("attach", "tiny"), "what is over is told again"
    assert "no live group 'tony'" in gangflow("attach", "tony", exits=10)
    assert "has no slot b[0]" in gangflow("logs", "g1", "b", "--address", str(_home(root).path), exits=10)
    assert f"down: {_home(root).path}" in gangflow("down", "--all")
    assert "no cluster of this user runs on this machine" in gangflow("status")


def test_cancel_leaves_nothing_of_the_group(root: OwnRoot, folder: Path) -> None:
    gangflow("run", "my.yaml", "--runtime", "local", "--detach", cwd=folder)
    until(lambda: _members(root), "the member runs")
    with started("attach", "tiny") as watcher:
        _read_until(watcher, "barrier released")
        assert gangflow("cancel", "tiny").startswith("tiny (g1) CANCELLED\n")
        assert not _members(root)
    assert watcher.returncode == 3
    gangflow("down", "--all")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_end_from_outside_without_a_terminal_cancels(root: OwnRoot, folder: Path, number: signal.Signals) -> None:
    """Nobody can be asked whether to detach: the group is cancelled and the run's own cluster stopped."""
    with started("run", "my.yaml", "--runtime", "local", cwd=folder) as run:
        _read_until(run, "barrier released")
        run.send_signal(number)
        run.wait(timeout=DEADLINE_S)
    _nothing_is_left(root)
    assert run.returncode == {signal.SIGINT: 3, signal.SIGTERM: 143}[number]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_end_from_outside_while_the_cluster_starts_leaves_nothing(
    root: OwnRoot, folder: Path, number: signal.Signals
) -> None:
    with started("run", "my.yaml", "--runtime", "local", cwd=folder) as run:
        until(lambda: [each for each in processes(root.path) if each.module.startswith("-m gangflow.xce.serve")], "it starts")
        run.send_signal(number)
        run.wait(timeout=DEADLINE_S)
    _nothing_is_left(root)
    assert run.returncode in {130, 128 + number}


@pytest.mark.parametrize(("answer", "code"), [("d", 0), ("c", 3)])
def test_ctrl_c_at_a_terminal_asks(root: OwnRoot, folder: Path, answer: str, code: int) -> None:
    """Detach: the run goes on in its cluster. Cancel: nothing of either is left."""
    terminal, inner = pty.openpty()
    try:
        environment = {**os.environ, **ENVIRONMENT, "TERM": "xterm"}
        words = _command("run", "my.yaml", "--runtime", "local")
        run = subprocess.Popen(words, cwd=folder, env=environment, stdin=inner, stdout=inner, start_new_session=True)
        os.close(inner)
        _seen(terminal, b"barrier released")
        until(lambda: _members(root), "the member runs")
        run.send_signal(signal.SIGINT)
        _seen(terminal, b"cancel it?")
        os.write(terminal, answer.encode() + b"\n")
        _seen(terminal, b"detached: `gangflow attach tiny`" if answer == "d" else b"tiny CANCELLED")
        assert run.wait(timeout=DEADLINE_S) == code
    finally:
        os.close(terminal)
    if answer == "d":
        assert _members(root)
        gangflow("down", "--all")
    _nothing_is_left(root)


def _seen(terminal: int, wanted: bytes) -> None:
    """Read what a terminal shows, styles left out, until it shows that."""
    shown = b""
    end = time.monotonic() + DEADLINE_S
    while wanted not in re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", shown):
        ready, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        assert ready, shown
        shown += os.read(terminal, 65_536)


def test_a_killed_command_leaves_a_run_that_down_finds(root: OwnRoot, folder: Path) -> None:
    """SIGKILL of `gangflow run` touches nothing that it started; `down --all` ends it."""
    with started("run", "my.yaml", "--runtime", "local", cwd=folder) as run:
        _read_until(run, "barrier released")
        until(lambda: _members(root), "the member runs")
        run.kill()
    assert _members(root)
    gangflow("status", "tiny")
    gangflow("down", "--all")
    _nothing_is_left(root)


def test_members_without_a_controller_are_found(root: OwnRoot, folder: Path) -> None:
    """Supervisor and controller are killed: the members run on, `status` says so, `up` goes on with them, `down` ends them."""
    gangflow("run", "my.yaml", "--runtime", "local", "--detach", cwd=folder)
    home = _home(root)
    (member,) = until(lambda: _shells(root), "the member runs")
    for each in [each for each in processes(home.path) if "gangflow.xce.serve" in each.command]:
        os.kill(each.pid, signal.SIGKILL)
    until(lambda: not home.alive, "no controller")
    assert f"{home.path}: its controller is gone, and members may run on" in gangflow("status")
    gangflow("up", "--home", str(home.path), "--runtime", "local")
    assert re.search(r"a\[0\] +(READY|RUNNING) +\S+ +1 ", gangflow("status", "tiny")), "the same incarnation"
    assert _shells(root) == [member]
    for each in [each for each in processes(home.path) if "gangflow.xce.serve" in each.command]:
        os.kill(each.pid, signal.SIGKILL)
    until(lambda: not home.alive, "no controller")
    assert f"down: {home.path}" in gangflow("down", "--all")
    _nothing_is_left(root)


def test_a_member_that_dies_at_once_shows_its_last_lines(root: OwnRoot, folder: Path) -> None:
    """Its last 20 lines of stderr are shown once, with its exit; the exit code says FAILED."""
    loud = "for i in $(seq 30); do echo line-$i >&2; done; exit 7"
    text = SPEC.format(name="dies").replace("echo started; while ! test -e go; do sleep 0.05; done; echo over", loud)
    (folder / "dies.yaml").write_text(text)
    said = gangflow("run", "dies.yaml", "--runtime", "local", cwd=folder, exits=1)
    assert "a[0] #1 died: app_exit, code 7" in said
    assert "dies FAILED (app_exit: a[0]" in said
    tail = "\n".join(f"line-{i}" for i in range(11, 31))
    assert said.count(tail) == 1, said
    assert "line-10\n" not in said


def test_a_fault_at_a_slot_that_is_not_there_leaves_nothing(root: OwnRoot, folder: Path) -> None:
    said = gangflow("run", "my.yaml", "--runtime", "local", "--fault", "a[7]@step=1:kill", cwd=folder, exits=2)
    assert "expected one of a[0] (got a[7])" in said
    _nothing_is_left(root)


def test_a_cluster_that_is_kept(root: OwnRoot, folder: Path) -> None:
    """`up`, a run on it by its address, and `down`: the run's end leaves the cluster up."""
    home = root.path / "default"
    assert f"run groups on it with --address {home}" in gangflow("up", "--runtime", "local")
    assert "runs in" in gangflow("up", "--runtime", "local", exits=9)
    (folder / "go").touch()
    assert "tiny SUCCEEDED" in gangflow("run", "my.yaml", "--address", str(home), cwd=folder)
    assert Home(home).alive
    assert "tiny (g1) SUCCEEDED" in gangflow("status")
    assert f"down: {home}" in gangflow("down")
    assert not Home(home).alive
    gangflow("up", "--runtime", "local")
    assert "tiny (g1) SUCCEEDED" in gangflow("status"), "its journal stays"
    gangflow("down")


def test_down_while_a_recipe_trains(root: OwnRoot) -> None:
    """A whole RL run, coordinator included, is gone after `down --all`."""
    gangflow("run", "grpo", "preset=smoke", "steps=5000", "--runtime", "local", "--detach")
    until(lambda: [each for each in processes(root.path) if "coordinators.run" in each.command], "a coordinator")
    until(lambda: len(_members(root)) >= 5, "members")
    gangflow("down", "--all")
    _nothing_is_left(root)


def test_two_runs_at_once_do_not_meet(root: OwnRoot) -> None:
    """The same recipe twice at the same time on one machine: each in a cluster of its own, each with the result that one run
    has for itself."""
    words = ("run", "grpo", "preset=smoke", "steps=12", "--runtime", "local")
    with started(*words) as one, started(*words) as two:
        said = [_read_until(each, "grpo SUCCEEDED") for each in (one, two)]
    assert (one.returncode, two.returncode) == (0, 0)
    assert all("g1" in text for text in said), "each is the first group of its cluster"
    homes = list((root.path / "runs").iterdir())
    assert len({Home(home).url for home in homes}) == 2
    results = [json.loads((home / "claims/g1/ckpt/result.json").read_text()) for home in homes]
    assert len(results) == 2
    assert results[0]["policy"] == results[1]["policy"]
    for result in results:
        assert (result["steps"], result["samples"]["lost"], result["samples"]["duplicates"]) == (12, 0, 0)
        assert result["samples"]["committed"] == 12 * 16 * 8
