"""`gangflow`: every error is one message, its remedy and its exit code; what is not there is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gangflow import errors
from gangflow.cli import main as command
from gangflow.cli import running
from gangflow.errors import GangflowError, Problem

RAISED: dict[type[GangflowError], tuple[GangflowError, int]] = {
    type(error): (error, code)
    for error, code in (
        (errors.GangflowError("a plain one"), 1),
        (errors.SpecError([Problem("steps", "'x'", "a number")]), 2),
        (errors.UsageError([Problem("-o", "'x'", "a column")]), 2),
        (errors.NotYetError([Problem("owner", "'x'", "later")]), 2),
        (errors.XceError("refused"), 10),
        (errors.NotFound("no group"), 10),
        (errors.Superseded("not the newest"), 10),
        (errors.Fenced("a newer one"), 10),
        (errors.Conflict("taken"), 10),
        (errors.Gone("too old"), 10),
        (errors.Unauthorized("who are you"), 10),
        (errors.Unreachable("nobody answers"), 4),
        (errors.JournalError("no journal"), 5),
        (errors.JournalFull("disk full"), 5),
        (errors.JournalLocked("held"), 6),
        (errors.JournalCorrupt("broken at 7"), 7),
        (errors.JournalRegressed("older"), 8),
        (errors.ReplayDiverged("at seq 7"), 11),
        (errors.OtherVersion("decided by another"), 12),
        (errors.SetupError("no Ray"), 9),
        (errors.ClusterRefused("hosts[0].gpus: expected a number"), 2),
        (errors.GroupEnded("group 'x' ended FAILED (app_exit)", group="g1", state="FAILED", cause="app_exit"), 1),
        (errors.NoQuorum("too few"), 1),
        (errors.ChangeFailed("change c1 of g1 failed"), 1),
    )
}
Said = tuple[int, str, str]


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[GangflowError], Said]:
    """Run `main` with a command that raises; exit code, stdout, stderr."""

    def call(error: GangflowError) -> Said:
        def app() -> None:
            raise error

        monkeypatch.setattr(command, "app", app)
        with pytest.raises(SystemExit) as end:
            command.main()
        out, err = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, out, err

    return call


@pytest.mark.parametrize("kind", RAISED, ids=lambda kind: kind.__name__)
def test_every_error_has_its_exit_code_message_and_remedy(
    fails: Callable[[GangflowError], Said], kind: type[GangflowError]
) -> None:
    error, expected = RAISED[kind]
    code, out, err = fails(error)
    said = out + err
    assert code == expected
    assert error.message in said
    assert "Traceback" not in said
    if error.advice and kind is not errors.GroupEnded:
        assert f"→ {error.advice}" in said


def test_no_error_is_left_out() -> None:
    defined = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GangflowError)}
    assert defined == set(RAISED)


def test_the_exit_codes_are_those_of_the_documentation() -> None:
    table = (Path(__file__).resolve().parents[3] / "docs/operations.md").read_text()
    documented = {
        name.strip(" `"): int(cells[1])
        for cells in (line.split("|") for line in table.splitlines())
        if len(cells) > 3 and cells[1].strip().isdigit() and int(cells[1]) < 128  # those above are HTTP's
        for name in cells[2].split(",")
    }
    known = {kind.code: kind.exit_code for kind in RAISED}
    assert {code: documented.get(code) for code in known} == known


def test_a_cancelled_group_has_a_code_of_its_own(fails: Callable[[GangflowError], Said]) -> None:
    code, out, _ = fails(errors.GroupEnded("group 'x' ended CANCELLED", group="g1", state="CANCELLED", cause="user"))
    assert (code, out.strip()) == (3, "group 'x' ended CANCELLED")
    assert running.EXIT_OF_STATE == {"SUCCEEDED": 0, "FAILED": 1, "CANCELLED": 3}


def test_brackets_in_a_message_are_text(fails: Callable[[GangflowError], Said]) -> None:
    assert "rollout[0] and [/red]" in fails(errors.NotFound("rollout[0] and [/red]"))[2]


@pytest.mark.parametrize("name", ["plan", "simulate", "init"])
def test_what_is_not_part_of_this_version_is_refused_by_name(name: str) -> None:
    result = CliRunner().invoke(command.app, [name, "something", "--seed", "3"])
    assert result.exit_code == 2
    assert f"gangflow {name}: " in result.output
    assert "not part of this version" in result.output


def test_render_prints_what_would_be_submitted(tmp_path: Path) -> None:
    rendered = CliRunner().invoke(command.app, ["render", "grpo", "preset=smoke", "steps=7"]).output
    file = tmp_path / "rendered.yaml"
    file.write_text(rendered)
    assert CliRunner().invoke(command.app, ["render", str(file)]).output == rendered
    assert '"steps":7' in rendered


def test_a_wrong_spec_ends_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "open_cluster", lambda *_: pytest.fail("a cluster was opened"))
    result = CliRunner().invoke(command.app, ["run", "grpo", "steps=none"])
    assert isinstance(result.exception, errors.SpecError)


def test_help_names_every_command() -> None:
    text = CliRunner().invoke(command.app, ["--help"]).output
    for name in ("run", "demo", "render", "recipes", "status", "logs", "attach", "cancel", "up", "down"):
        assert f" {name} " in text


def test_gangflow_starts_without_the_heavy_libraries() -> None:
    import subprocess
    import sys

    heavy = ("fastapi", "httpx", "ray", "numpy", "opentelemetry", "pydantic")
    code = f"import sys, gangflow.cli.main; sys.exit(', '.join(name for name in {heavy} if name in sys.modules) or 0)"
    ended = subprocess.run([sys.executable, "-c", code], check=False, timeout=60, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_only_documents_are_to_be_checked_by_render() -> None:
    problem = Problem("-o", "'x'", "a column")
    assert "gangflow render" in errors.SpecError([problem]).advice
    assert errors.UsageError([problem]).advice == ""
