"""A Ray head of one's own: tried again, noted before it starts, forgotten with everything of it when it does not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from gangflow.errors import SetupError
from gangflow.home import Home
from gangflow.ray import head
from gangflow.ray.head import MARK, RayHead, head_alive, read_head, start_head, stop_head, without_ray


class FakeRay:
    """Stands where `ray start` is called: fails some times, and leaves a process behind each time, as Ray does."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.left: list[subprocess.Popen[bytes]] = []
        self.seen: list[dict[str, Any]] = []

    def run(self, command: Sequence[str], *, env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        folder = Path(next(word for word in command if word.startswith("--temp-dir=")).removeprefix("--temp-dir="))
        self.seen.append({"env": env, "noted": [read_head(file.parent) for file in folder.parents[1].glob("home/ray.json")]})
        # Its name is what counts: `gcs_server` is the process without which there is no Ray.
        self.left.append(subprocess.Popen(["gcs_server", "1000"], executable=shutil.which("sleep"), env=env))
        if len(self.left) <= self.failures:
            return subprocess.CompletedProcess(command, 1, "", "some lines\nError: the raylet did not come up\n")
        folder.mkdir()
        (folder / "ray_current_cluster").write_text("10.0.0.1:6379\n")
        return subprocess.CompletedProcess(command, 0, "", "")

    @property
    def alive(self) -> list[bool]:
        return [process.poll() is None for process in self.left]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(head.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(head._start.retry, "sleep", lambda _: None)  # type: ignore[attr-defined]
    (tmp_path / "home").mkdir()
    yield tmp_path / "home"
    stop_head(tmp_path / "home")


def faked(monkeypatch: pytest.MonkeyPatch, failures: int) -> FakeRay:
    fake = FakeRay(failures)
    monkeypatch.setattr(head.subprocess, "run", fake.run)
    return fake


def test_two_failed_starts_are_tried_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = faked(monkeypatch, failures=2)
    started = start_head(home)
    assert fake.alive == [False, False, True], "what a failed try left is ended"
    assert read_head(home) == started
    assert started.address == "10.0.0.1:6379"
    assert head_alive(started)
    assert all(seen["noted"] == [RayHead(started.folder, "")] for seen in fake.seen), "it could be found while it started"
    first = fake.seen[0]["env"]["PATH"].split(":")[0]
    assert first == str(Path(sys.executable).parent)

    stop_head(home)
    assert fake.alive == [False, False, False]
    assert not Path(started.folder).exists()
    assert read_head(home) is None
    assert not head_alive(started)


def test_a_third_failure_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = faked(monkeypatch, failures=3)
    with pytest.raises(SetupError, match="the raylet did not come up"):
        start_head(home)
    assert fake.alive == [False] * 3
    assert not Home(home).uses_ray
    assert not list(home.parent.glob("gf-ray-*"))


def test_an_interrupted_start_leaves_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRay(failures=0)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        fake.run(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(head.subprocess, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start_head(home)
    assert fake.alive == [False]
    assert not Home(home).uses_ray
    assert not list(home.parent.glob("gf-ray-*"))


def test_what_an_earlier_one_left_is_ended(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = faked(monkeypatch, failures=0)
    first = start_head(home)
    second = start_head(home)
    assert first.folder != second.folder
    assert fake.alive == [False, True]
    assert not Path(first.folder).exists()
    stop_head(home)
    assert fake.alive == [False, False]


def test_somebody_elses_ray_is_never_ended(home: Path) -> None:
    """It has no folder of ours, hence no processes; only the note goes."""
    head.note_head(home, RayHead("", "10.0.0.1:6379"))
    joined = read_head(home)
    assert joined is not None
    assert joined.environment == {}
    assert head_alive(joined)
    with subprocess.Popen(["sleep", "1000"], env={MARK: ""}) as other:
        stop_head(home)
        assert other.poll() is None
        other.kill()
    assert read_head(home) is None


def test_a_damaged_note_is_no_note(home: Path) -> None:
    for text in ("", "[]", json.dumps({"folder": "x"})):
        (home / "ray.json").write_text(text)
        assert read_head(home) is None


def test_members_start_from_an_environment_without_ray() -> None:
    rays = RayHead("/somewhere", "10.0.0.1:6379").environment
    given = {**rays, "HOME": "/h", "RAY_JOB_ID": "1", "PYTHONPATH": "/site", "GANGFLOW_DASHBOARD_HOME": "/h"}
    assert without_ray({**given, "PYTHONPATH_BEFORE_RAY": ""}) == {"HOME": "/h"}
    assert without_ray({**given, "PYTHONPATH_BEFORE_RAY": "/mine"}) == {"HOME": "/h", "PYTHONPATH": "/mine"}


def test_an_agent_of_ray_that_lost_its_mark_ends_with_its_ray(tmp_path: Path) -> None:
    """Ray's agents write their title over their environment; members, which are no processes of Ray's, are left alone."""
    folder = str(tmp_path / "gf-ray-x")
    Path(folder).mkdir()
    script = "env -i bash -c 'exec -a ray::DashboardAgent sleep 1000' & echo $!; env -i sleep 1000 & echo $!; wait"
    raylet = subprocess.Popen(
        ["bash", "-c", script], env={MARK: folder, "PATH": "/usr/bin:/bin"}, stdout=subprocess.PIPE, text=True
    )
    assert raylet.stdout is not None
    agent, member = (psutil.Process(int(raylet.stdout.readline())) for _ in range(2))
    try:
        deadline = time.monotonic() + 10
        while agent.cmdline()[:1] != ["ray::DashboardAgent"]:
            assert time.monotonic() < deadline
        head._end_processes(folder)
        assert not psutil.pid_exists(raylet.pid)
        assert not agent.is_running() or agent.status() == psutil.STATUS_ZOMBIE
        assert member.is_running()
    finally:
        member.kill()
        raylet.kill()
        raylet.wait(10)
        raylet.stdout.close()
