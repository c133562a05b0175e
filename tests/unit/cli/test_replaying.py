"""`gangflow replay`: what it prints, and how it ends."""

from __future__ import annotations

import json
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gangflow.cli import main as command
from gangflow.errors import JournalCorrupt, OtherVersion, ReplayDiverged, SpecError, UsageError
from gangflow.xce.core import events as ev
from gangflow.xce.journal.record import Batch
from gangflow.xce.journal.sqlite import SqliteJournal
from tests.property.kept import altered
from tests.unit.xce.journal.test_replay import of_version, story, where

Run = Callable[..., str]


def write(path: Path, batches: Sequence[Batch]) -> Path:
    """A journal of these batches, closed."""
    journal = SqliteJournal(path, cluster_id="test-cluster")
    for batch in batches:
        journal.append(batch)
    journal.close()
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "home" / "journal.db", story())


@pytest.fixture
def run() -> Run:
    def call(*words: object, raises: type[Exception] | None = None) -> str:
        result = CliRunner().invoke(command.app, ["replay", *map(str, words)])
        assert type(result.exception) is (raises or type(None)), result.output
        return result.output

    return call


def test_the_same_is_said_with_its_digest(run: Run, file: Path) -> None:
    events = sum(len(batch.events) for batch in story())
    for place in (file, file.parent):
        text = run(place)
        assert f"replayed {len(story())} batches with {events} events, seq 1 to {events}" in text
        assert "the same, byte for byte" in text
        assert f"the chain of digests holds up to seq {events}" in text


def test_a_group_is_shown_as_it_was(run: Run, file: Path) -> None:
    number, _ = where(story(), ev.BarrierReleased)
    early = run(file, "--until", story()[number].last_seq, "--show", "demo")
    assert "State <STARTING>" in early
    assert "Execution hosts: " in early
    assert "HOST_NAME" in early
    late = run(file, "--show", "g1")
    assert "State <SUCCEEDED>" in late
    assert "HOST_NAME" not in late, "it stands nowhere any more"


def test_a_group_that_is_not_there_is_answered_with_those_that_are(run: Run, file: Path) -> None:
    result = CliRunner().invoke(command.app, ["replay", str(file), "--show", "nobody"])
    assert isinstance(result.exception, SpecError)
    assert "g1 (demo)" in str(result.exception)


def test_all_of_it_as_json(run: Run, file: Path) -> None:
    found = json.loads(run(file, "--json", "--show", "g1"))
    assert (found["same"], found["divergence"], found["batches"]) == (True, None, len(story()))
    assert found["group"]["state"] == "SUCCEEDED"


def changed(path: Path) -> Path:
    number, position = where(story(), ev.BarrierReleased)
    return write(path, altered(story(), number, position, until_ms=5))


def test_the_first_divergence_is_explained(run: Run, tmp_path: Path) -> None:
    text = run(changed(tmp_path / "j.db"), raises=ReplayDiverged)
    number, position = where(story(), ev.BarrierReleased)
    seq = story()[number].first_seq + position
    assert "DIVERGED in the batch of seq" in text
    assert "about group g1:" in text
    assert f"The first event that differs is seq {seq}" in text
    assert "until_ms: the journal has 5, the replay 1" in text
    assert type(story()[number].inputs[0]).__name__ in text
    lines = [line.split()[:3] for line in text.splitlines() if "BarrierReleased" in line]
    assert [line[0] for line in lines] == ["-", "+"]


def test_the_divergence_as_json_has_both_sides(run: Run, tmp_path: Path) -> None:
    found = json.loads(run(changed(tmp_path / "j.db"), "--json", raises=ReplayDiverged))["divergence"]
    assert found["about"] == "group g1"
    assert found["differences"][0]["path"] == "until_ms"
    assert len(found["recorded"]) == len(found["replayed"])


def test_secrets_are_not_in_an_explanation(run: Run, tmp_path: Path) -> None:
    from dataclasses import replace

    from gangflow.xce.core import inputs as inp

    number, position = where(story(), ev.GroupSubmitted)
    event = story()[number].events[position]
    assert isinstance(event, ev.GroupSubmitted)
    secret = replace(event.plan, environment=(("API_KEY", "hunter2"),))
    batches = altered(story(), number, position, plan=replace(secret, priority=7))
    inputs = tuple(replace(one, plan=secret) if isinstance(one, inp.SubmitGroup) else one for one in batches[number].inputs)
    batches[number] = replace(batches[number], inputs=inputs)
    file = write(tmp_path / "j.db", batches)
    for words in ((file,), (file, "--json")):
        text = run(*words, raises=ReplayDiverged)
        assert "priority" in text
        assert "hunter2" not in text


def test_another_version_is_said_and_forced(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path / "j.db", of_version("0.0.9", 0, 5))
    run(file, raises=OtherVersion)
    assert "decided by gangflow 0.0.9, 0.1.0: the same" in run(file, "--force")


def test_a_broken_chain_is_not_replayed_past(run: Run, file: Path) -> None:
    db = sqlite3.connect(file)
    with db:
        db.execute("UPDATE batches SET record = replace(record, 'g1', 'g2') WHERE first_seq = ?", (story()[4].first_seq,))
    db.close()
    run(file, raises=JournalCorrupt)


def test_what_is_before_a_damaged_last_record_is_shown(run: Run, file: Path) -> None:
    db = sqlite3.connect(file)
    with db:
        db.execute("UPDATE batches SET digest = zeroblob(32) WHERE first_seq = ?", (story()[-1].first_seq,))
    db.close()
    run(file, raises=JournalCorrupt)
    assert f"replayed {len(story()) - 1} batches" in run(file, "--until", story()[-2].last_seq)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["/nowhere/journal.db"], "the home of a cluster"),
        (["--until", "100000"], "where the journal ends"),
        (["--from", "100000"], "where the journal ends"),
        (["--from", "9", "--until", "3"], "not before --from 9"),
    ],
)
def test_what_cannot_be_meant_is_refused(file: Path, words: list[str], named: str) -> None:
    place = [] if words[0].startswith("/") else [str(file)]
    result = CliRunner().invoke(command.app, ["replay", *place, *words])
    assert isinstance(result.exception, SpecError)
    assert named in str(result.exception)


def test_an_empty_folder_or_another_file_is_no_journal(run: Run, tmp_path: Path) -> None:
    from gangflow.errors import JournalError

    run(tmp_path, raises=UsageError)
    (tmp_path / "text").write_text("this is not a database, " * 100)
    run(tmp_path / "text", raises=JournalCorrupt)
    sqlite3.connect(tmp_path / "empty.db").close()
    (tmp_path / "empty.db").touch()
    run(tmp_path / "empty.db", raises=JournalError)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[SqliteJournal]:
    """A journal whose controller is there."""
    journal = SqliteJournal(tmp_path / "journal.db", cluster_id="test-cluster")
    yield journal
    journal.close()


def test_a_journal_that_is_in_use_is_read_beside_its_controller(run: Run, held: SqliteJournal) -> None:
    """From another process too, and neither side waits for the other or loses anything."""
    for batch in story()[:6]:
        held.append(batch)
    assert "replayed 6 batches" in run(held.path)
    code = f"import sys; sys.argv[1:] = ['replay', {str(held.path)!r}]; from gangflow.cli.main import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    for batch in story()[6:]:
        held.append(batch)
    assert f"replayed {len(story())} batches" in run(held.path)
    assert list(held.batches())[-1].first_seq == story()[-1].first_seq


def test_reading_leaves_the_file_as_it_is(run: Run, file: Path) -> None:
    before = (file.read_bytes(), stat.S_IMODE(file.stat().st_mode))
    run(file)
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == before
    SqliteJournal(file).close()


def test_the_exit_codes_are_distinct(tmp_path: Path) -> None:
    codes = {error.exit_code for error in (ReplayDiverged, OtherVersion, JournalCorrupt, SpecError)}
    assert codes == {11, 12, 7, 2}
