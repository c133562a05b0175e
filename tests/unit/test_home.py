"""Homes of clusters: where they are, whose process answers there, and which are found."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from gangflow.cli.keeping import take_down
from gangflow.errors import Unreachable
from gangflow.home import Home, default_home, homes, new_home, remember, root


@pytest.fixture(autouse=True)
def _own_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANGFLOW_ROOT", str(tmp_path / "root"))
    monkeypatch.delenv("GANGFLOW_HOME", raising=False)


def _used(home: Home, pid: int, started_ms: int | None = None) -> Home:
    """As a controller of that pid leaves it."""
    home.path.mkdir(parents=True, exist_ok=True)
    begun = time.time_ns() // 1_000_000 if started_ms is None else started_ms
    card = {"url": "http://127.0.0.1:1", "pid": pid, "cluster_id": "c", "started_ms": begun}
    (home.path / "controller.json").write_text(json.dumps(card))
    return home


def test_where_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert root() == tmp_path / "root"
    assert default_home().path == tmp_path / "root" / "default"
    monkeypatch.setenv("GANGFLOW_HOME", str(tmp_path / "mine"))
    assert default_home().path == tmp_path / "mine"
    monkeypatch.delenv("GANGFLOW_ROOT")
    assert root() == Path.home() / ".gangflow"


def test_a_new_home_is_private_and_never_the_same() -> None:
    made = [new_home("My Run/../x") for _ in range(20)]
    assert len({home.path for home in made}) == 20
    for home in made:
        assert home.path.parent == root() / "runs"
        assert "-my-run----x-" in home.path.name
        assert stat.S_IMODE(home.path.stat().st_mode) == 0o700


def test_only_homes_that_were_used_are_found_the_kept_one_first() -> None:
    unused = new_home("unused")
    older, newer = Home(root() / "runs" / "0101-000000-a-0000"), Home(root() / "runs" / "1231-000000-b-0000")
    for home in (older, newer, default_home()):
        _used(home, os.getpid())
    found = [home.path for home in homes()]
    assert found == [default_home().path, newer.path, older.path]
    assert unused.path not in found


def test_there_are_none_before_the_first() -> None:
    assert list(homes()) == []


def test_a_home_is_alive_while_its_controllers_process_is() -> None:
    home = _used(new_home("mine"), os.getpid())
    assert home.alive
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not _used(home, ended.pid).alive


def test_another_process_of_the_same_number_is_not_the_controller() -> None:
    """It began after the controller had said that it was up."""
    assert not _used(new_home("old"), os.getpid(), started_ms=1_000).alive


@pytest.mark.parametrize("card", ["", "[]", "{}", '{"pid": "x", "started_ms": 1}', '{"pid": 1'])
def test_a_torn_card_is_nobody(card: str) -> None:
    home = new_home("torn")
    (home.path / "controller.json").write_text(card)
    assert not home.alive


def test_what_is_not_there_is_said() -> None:
    home = new_home("empty")
    with pytest.raises(Unreachable, match=f"no controller has started in {home.path}"):
        _ = home.url
    with pytest.raises(Unreachable, match=f"no token in {home.path}"):
        _ = home.token
    _used(home, os.getpid())
    (home.path / "token").write_text("secret\n")
    assert (home.url, home.token) == ("http://127.0.0.1:1", "secret")


def test_an_agent_that_was_not_ended_in_order_is_left_behind() -> None:
    home = new_home("crashed")
    assert not home.left_behind
    (home.path / "nodes/local").mkdir(parents=True)
    assert not home.left_behind
    (home.path / "nodes/local/agent.sock").touch()
    assert home.left_behind


def test_a_home_elsewhere_is_found_once_it_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "elsewhere"
    place.mkdir()
    (place / "controller.json").write_text("{}")
    assert place not in [home.path for home in homes()]
    remember(Home(place))
    remember(Home(place))
    assert [home.path for home in homes()].count(place) == 1
    monkeypatch.setenv("GANGFLOW_HOME", str(place))
    assert [home.path for home in homes()].count(place) == 1
    (place / "controller.json").unlink()
    assert place not in [home.path for home in homes()]


def test_down_says_that_nothing_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "controller.json").write_text("{}")
    take_down(Console(width=200), tmp_path, every=False)
    assert "nothing runs in" in capsys.readouterr().out
    take_down(Console(width=200), None, every=True)
    assert "no cluster of this user runs" in capsys.readouterr().out
