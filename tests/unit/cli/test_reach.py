"""Which controller xcecli speaks to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gangflow.cli.reach import find
from gangflow.errors import Unreachable


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "controller.json").write_text(json.dumps({"url": "http://home", "pid": 1}))
    (tmp_path / "token").write_text("home-token\n")
    return tmp_path


ENVIRONMENT = {"XCE_URL": "http://member", "XCE_TOKEN": "member-token"}


def test_the_command_line_wins(home: Path) -> None:
    assert find("http://here", "t", home, ENVIRONMENT) == ("http://here", "t")
    assert find("http://here", "", None, ENVIRONMENT) == ("http://here", "member-token")


def test_a_home_that_is_named_wins_over_the_environment(home: Path) -> None:
    assert find("", "", home, ENVIRONMENT) == ("http://home", "home-token")


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
