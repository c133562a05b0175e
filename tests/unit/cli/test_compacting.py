"""`gangflow compact`: what it is told, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gangflow.cli import compacting
from gangflow.cli import main as command
from gangflow.errors import JournalLocked, UsageError
from gangflow.xce.journal.sqlite import SqliteJournal
from tests.unit.cli.test_replaying import write
from tests.unit.xce.journal.test_replay import story

Run = Callable[..., str]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write(tmp_path / "home" / "journal.db", story())
    return tmp_path / "home"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """At a time one hour after the story's end."""
    now_ms = story()[-1].now_ms + 3_600_000
    monkeypatch.setattr(compacting.time, "time", lambda: now_ms / 1000)

    def call(*words: object, raises: type[Exception] | None = None) -> str:
        result = CliRunner().invoke(command.app, ["compact", *map(str, words)])
        assert type(result.exception) is (raises or type(None)), result.output
        return str(result.exception) if raises else result.output

    return call


def test_what_is_old_enough_goes_and_it_says_so(run: Run, home: Path) -> None:
    end = story()[-1].last_seq
    text = run(home, "--keep", "30m")
    assert f"{len(story())} → 0 records" in text
    assert f"events up to seq {end} are not kept any more" in text
    assert f"a replay begins after seq {end}" in text


def test_by_default_a_week_is_kept(run: Run, home: Path) -> None:
    text = run(home / "journal.db")
    assert f"{len(story())} → {len(story())} records" in text
    assert "not kept any more" not in text


def test_the_description_of_the_cluster_says_how_long(run: Run, home: Path) -> None:
    (home / "cluster.yaml").write_text("hosts: [{name: h0}]\njournal: {keep: 30m}\n")
    assert f"{len(story())} → 0 records" in run(home)


def test_the_size_counts_too(run: Run, home: Path) -> None:
    journal = SqliteJournal(home / "journal.db")
    seq = journal.seq
    batch = story()[1]
    long = "x" * 2_000_000
    from gangflow.xce.core.events import ValueWritten

    journal.append(batch.__class__(seq + 1, 2, story()[-1].now_ms, (), (ValueWritten("g1", "k", long, 1),)))
    journal.close()
    assert f"{len(story()) + 1} → 0 records" in run(home, "--keep-size", "1MiB")


def test_a_running_controller_is_left_alone(run: Run, home: Path) -> None:
    held = SqliteJournal(home / "journal.db")
    result = CliRunner().invoke(command.app, ["compact", str(home)])
    held.close()
    assert isinstance(result.exception, JournalLocked)
    assert "gangflow down" in result.exception.advice


@pytest.mark.parametrize(
    ("words", "named"),
    [(["--keep", "soon"], "--keep: expected a duration"), (["--keep-size", "1.5KB"], "--keep-size: expected memory")],
)
def test_what_is_no_duration_or_size_is_named(run: Run, home: Path, words: list[str], named: str) -> None:
    assert named in run(home, *words, raises=UsageError)
