"""Commands of several names: all are found before anything is done with any of them."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from gangflow.cli import lsf_columns, xcecli
from gangflow.xce.rest.schema import ClaimList
from tests.unit.cli.test_xcecli import FakeClient, Run, client_fixture, run_fixture  # noqa: F401 - fixtures


@pytest.mark.parametrize("command", ["suspend", "resume", "kill", "stop", "restart", "fail"])
@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("grpo rollout[1]", "grpo.rollout[1]"),
        ("grpo rollout 1", "grpo.rollout[1]"),
        ("grpo rollout", "grpo.rollout"),
        ("grpo g9", ""),
        ("grpo g2.rolout", ""),
    ],
)
def test_nothing_is_done_where_one_of_the_names_is_wrong(client: FakeClient, command: str, words: str, meant: str) -> None:
    result = CliRunner().invoke(xcecli.app, [command, *words.split()])
    text = result.output
    assert result.exit_code in (2, 10), text
    assert client.done == []
    assert not meant or f"did you mean {meant!r}?" in text


def test_hosts_are_named_in_ranges_and_all_at_once(run: Run, client: FakeClient) -> None:
    run("close", "h[0-1]")
    run("drain", "all")
    assert [entry[:3] for entry in client.done] == [
        ("close_host", host, drain) for drain in (False, True) for host in ("h0", "h1")
    ]
    client.done.clear()
    assert "Close <h[0-9]>: no host 'h2'" in run("close", "h0", "h[0-9]", exit_code=10)
    assert "Open <h[>" in run("open", "h0", "h[", exit_code=2)
    assert "Claim <gone>" in run("claim", "delete", "data", "gone", exit_code=10)
    assert client.done == []


@pytest.mark.parametrize(
    "command", ["groups", "jobs", "members", "slots", "hosts", "claims", "queue", "changes", "owners", "events"]
)
def test_help_names_the_fields(run: Run, command: str) -> None:
    table = getattr(lsf_columns, command.upper())
    words = run(command, "--help").replace(",", " ").split()
    assert set(table.fields) <= set(words)


def test_claims_that_are_gone_are_shown_when_they_are_asked_for(
    run: Run, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = client.claim("data").model_copy(update={"id": "old", "state": "GONE"})
    monkeypatch.setattr(client, "claims", lambda group, cursor: ClaimList(seq=9, claims=(gone,)))
    assert "No claims found" in run("claims")
    assert "old" in run("claims", "-a")


def test_changes_name_their_group(run: Run) -> None:
    assert run("changes", "-l").startswith("Job <g1>, Job Name <grpo>")
