"""Commands of several names: all are found before anything is done with any of them."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from gangflow.cli import xcecli
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
