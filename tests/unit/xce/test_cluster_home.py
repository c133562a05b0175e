"""The folder of a cluster: closed to others, and nothing else is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangflow.xce.cluster_home import ClusterHome


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("there", [[], ["journal.db", "token"]])
def test_a_home_that_was_open_to_others_is_closed(tmp_path: Path, there: list[str]) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    folder.chmod(0o755)
    for name in there:
        (folder / name).touch()
    ClusterHome(folder)
    assert mode(folder) == 0o700


def test_a_folder_with_other_things_in_it_keeps_its_mode(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "thesis.tex").touch()
    home = ClusterHome(folder)
    assert mode(folder) == 0o755
    home.token()
    assert mode(folder / "token") == 0o600
