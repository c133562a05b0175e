"""Which controller xcecli speaks to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gangflow.cli.reach import find
from gangflow.clusters import join_cluster
from gangflow.errors import Unreachable
from gangflow.home import Home
from gangflow.local import LocalCluster


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "controller.json").write_text(json.dumps({"url": "http://home", "pid": 1}))
    (tmp_path / "token").write_text("home-token\n")
    return tmp_path


ENVIRONMENT = {"XCE_URL": "http://member", "XCE_TOKEN": "member-token"}


def test_the_command_line_wins(home: Path) -> None:
    assert find("http://here", "t", home, ENVIRONMENT) == ("http://here", "t")
    assert find("http://here", "", None, ENVIRONMENT) == ("http://here", "member-token")


def test_a_home_that_is_named_wins_over_the_environments_url_but_not_over_its_token(home: Path) -> None:
    assert find("", "", home, ENVIRONMENT) == ("http://home", "member-token")
    assert find("", "", home, {"GANGFLOW_TOKEN": "alice", "XCE_TOKEN": "member"}) == ("http://home", "alice")
    assert find("", "mine", home, ENVIRONMENT) == ("http://home", "mine")
    assert find("", "", home, {}) == ("http://home", "home-token")


def test_a_joined_home_is_spoken_to_with_the_token_that_is_given(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for uses_ray in (False, True):
        if uses_ray:
            (home / "ray.json").write_text(json.dumps({"folder": "", "address": "nowhere:1"}))
        for name, token in (("XCE_TOKEN", "member"), ("GANGFLOW_TOKEN", "alice")):
            monkeypatch.setenv(name, token)
            with join_cluster(str(home)).client() as client:
                assert client._http.headers["authorization"] == f"Bearer {token}"
        monkeypatch.delenv("GANGFLOW_TOKEN")
        monkeypatch.delenv("XCE_TOKEN")
        with join_cluster(str(home)).client() as client:
            assert client._http.headers["authorization"] == "Bearer home-token"


def test_a_cluster_of_ones_own_is_its_starters_whatever_the_environment_says(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGFLOW_TOKEN", "alice")
    with LocalCluster(Home(home)).client() as client:
        assert client._http.headers["authorization"] == "Bearer home-token"


def test_the_environment_in_its_order() -> None:
    both = {**ENVIRONMENT, "GANGFLOW_URL": "http://user", "GANGFLOW_TOKEN": "user-token"}
    assert find("", "", None, both) == ("http://user", "user-token")
    assert find("", "", None, ENVIRONMENT) == ("http://member", "member-token")
    assert find("", "mine", None, ENVIRONMENT) == ("http://member", "mine")


def test_the_kept_cluster_is_the_default(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANGFLOW_HOME", str(home))
    assert find("", "", None, {}) == ("http://home", "home-token")


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="no controller has started"):
        find("", "", tmp_path, {})
