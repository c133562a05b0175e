"""A cluster of one's own that came to nothing: what of its home stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangflow import clusters
from gangflow.errors import ClusterRefused, Conflict, GangflowError, SetupError, SpecError, Unreachable, UsageError
from gangflow.home import Home, new_home
from gangflow.specs.cluster import ClusterSpec, HostSpec


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the homes of runs."""
    monkeypatch.setenv("GANGFLOW_ROOT", str(tmp_path))
    return tmp_path / "runs"


class Started:
    """A cluster in a home, which must be there as long as it is not stopped."""

    def __init__(self, home: Home) -> None:
        self.name = str(home.path)
        self.stopped = False
        (home.path / "journal.db").write_text("")

    def stop(self) -> None:
        assert Path(self.name).is_dir()
        self.stopped = True


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (SpecError([]), False),
        (Conflict("the name is taken"), False),
        (Unreachable("nobody answers"), True),
        (SetupError("the coordinator did not start"), True),
        (KeyboardInterrupt(), True),
    ],
)
def test_a_refused_group_leaves_no_home_and_any_other_error_leaves_its_logs(
    runs: Path, error: BaseException, stays: bool
) -> None:
    cluster = Started(new_home("mine"))
    clusters.abandon(cluster, error)  # type: ignore[arg-type]
    assert cluster.stopped
    assert bool(list(runs.iterdir())) == stays


def test_a_home_that_is_no_runs_is_never_removed(runs: Path, tmp_path: Path) -> None:
    kept = Home(tmp_path / "kept")
    kept.path.mkdir()
    clusters.abandon(Started(kept), SpecError([]))  # type: ignore[arg-type]
    assert kept.path.is_dir()


def test_an_unknown_runtime_is_refused_before_there_is_a_home(runs: Path) -> None:
    with pytest.raises(UsageError, match="one of ray, local"):
        clusters.own_cluster("mine", None, runtime="slurm")
    assert not runs.exists()


@pytest.mark.parametrize(
    ("error", "stays"),
    [(SpecError([]), False), (ClusterRefused("hosts[0].gpus: …"), False), (SetupError("no controller"), True)],
)
def test_a_cluster_that_is_refused_leaves_no_home(
    runs: Path, monkeypatch: pytest.MonkeyPatch, error: GangflowError, stays: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("gangflow.local.LocalCluster.start", refuse)
    with pytest.raises(type(error)):
        clusters.own_cluster("mine", None, runtime="local")
    assert bool(list(runs.iterdir())) == stays


def test_a_description_that_the_controller_refuses_is_no_setup_that_failed(runs: Path) -> None:
    """With a real controller, which ends with the exit code of a wrong spec."""
    several = ClusterSpec(hosts=[HostSpec(name="h[0-1]", cpu=2, mem=1_024)])
    with pytest.raises(ClusterRefused, match=r"^hosts\[0\].gpus: .*\(got null\)$"):
        clusters.own_cluster("mine", several, runtime="local")
    assert list(runs.iterdir()) == []
