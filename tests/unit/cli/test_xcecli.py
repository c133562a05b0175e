"""The command line over a client that answers from a state."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from gangflow.cli import xcecli
from gangflow.errors import NotFound
from gangflow.xce.rest.explain import why_view
from gangflow.xce.rest.host_views import host_views
from gangflow.xce.rest.messages import EventView, HealthView
from gangflow.xce.rest.schema import ClaimList, GroupList, GroupView, HostList, QueueView, WhyView
from gangflow.xce.rest.views import claim_view, group_view, queue_items
from tests.unit.xce.rest.fake import pending, running, state_of

STATE = state_of(running(), pending("g2", "other"), pending("g3", "third"))
Run = Callable[..., str]


class FakeClient:
    def __init__(self) -> None:
        self.watched: list[tuple[Any, ...]] = []

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None: ...

    def group(self, name: str) -> GroupView:
        for group in STATE.groups.values():
            if name in (group.id, group.plan.name):
                return group_view(STATE, group, 9)
        raise NotFound(f"no group {name!r}")

    def groups(self, states: list[str], cursor: str) -> GroupList:
        ids = list(STATE.groups)
        start = ids.index(cursor) + 1 if cursor else 0
        found = [self.group(name) for name in ids[start : start + 2]]
        return GroupList(seq=9, groups=tuple(found), next=ids[start + 1] if start + 2 < len(ids) else None)

    def hosts(self, cursor: str) -> HostList:
        return HostList(seq=9, hosts=host_views(STATE))

    def claims(self, group: str, cursor: str) -> ClaimList:
        return ClaimList(seq=9, claims=() if group else tuple(claim_view(STATE, claim) for claim in STATE.claims.values()))

    def queue(self, cursor: str) -> QueueView:
        return QueueView(seq=9, groups=queue_items(STATE.groups.values()))

    def why(self, group: str, level: int) -> WhyView:
        return why_view(STATE, STATE.groups[self.group(group).id], 9, level)

    def healthz(self) -> HealthView:
        return HealthView(seq=9, horizon=3, status="ok", cluster_id="c", term=1, version="0")

    def events(self, after: int, group: str, until: int | None) -> Iterator[EventView]:
        self.watched.append((after, group, until))
        yield EventView(seq=4, at_ms=1, type="GroupChanged", group="g1", data={"group": "g1", "state": "RUNNING"})


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    fake = FakeClient()
    monkeypatch.setattr(xcecli, "_client", lambda _context: fake)
    return fake


@pytest.fixture
def run(client: FakeClient) -> Run:
    def call(*words: str, exit_code: int = 0) -> str:
        result = CliRunner().invoke(xcecli.app, list(words))
        assert result.exit_code == exit_code, result.output
        return result.output

    return call


def test_groups_come_from_every_page(run: Run) -> None:
    assert [line.split()[0] for line in run("groups").splitlines()] == ["JOBID", "g1", "g2", "g3"]
    assert [line.split()[0] for line in run("groups", "-noheader", "other").splitlines()] == ["g2"]
    assert "Job <g1>, Job Name <grpo>" in run("groups", "-l", "grpo")


def test_single_dash_words_are_options(run: Run) -> None:
    assert json.loads(run("groups", "-json", "-o", "jobid stat", "g1"))["RECORDS"] == [{"JOBID": "g1", "STAT": "RUN"}]
    assert len(json.loads(run("hosts", "-json"))["RECORDS"]) == 2


def test_members_and_their_slots(run: Run) -> None:
    assert run("members", "-noheader", "grpo").split()[1] == "actor"
    assert "rollout[1]" in run("members", "-l", "grpo")


def test_hosts_and_claims_and_queue(run: Run) -> None:
    assert run("hosts", "-noheader", "h1").split()[0] == "h1"
    assert "STATUS ok" in run("hosts", "-l", "h0")
    assert "ckpt" in run("claims")
    assert "No claims found" in run("claims", "g2")
    assert "Claim <ckpt> of the group" in run("claims", "-l")
    assert [line.split()[1] for line in run("queue", "-noheader").splitlines()] == ["g2", "g3"]


@pytest.mark.parametrize(("flag", "hosts"), [("-p1", False), ("-p0", True), ("-p2", True), ("-p3", True)])
def test_why_has_the_levels_of_bjobs(run: Run, flag: str, hosts: bool) -> None:
    text = run("why", "g2", flag)
    assert text.startswith("JOBID")
    assert "WAITING_CAPACITY: 8 CPU short;" in text
    assert ("host" in text.split("Place in the queue")[1]) is hosts
    assert json.loads(run("why", "g2", flag, "-json"))["level"] == int(flag[2])


def test_two_levels_exclude_each_other(run: Run) -> None:
    assert "exclude each other" in run("why", "g2", "-p0", "-p3", exit_code=2)


def test_events_end_where_the_journal_ends_unless_followed(run: Run, client: FakeClient) -> None:
    assert "GroupChanged" in run("events")
    assert json.loads(run("events", "-json", "g1", "--after", "7"))["seq"] == 4
    run("events", "-f")
    assert client.watched == [(3, "", 9), (7, "g1", 9), (3, "", None)]


def test_what_is_not_part_of_this_version_is_refused(run: Run) -> None:
    run("plan", "file.yaml", exit_code=2)


def test_errors_are_one_message_and_an_exit_code(client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("sys.argv", ["xcecli", "hosts", "h9"])
    with pytest.raises(SystemExit) as end:
        xcecli.main()
    assert end.value.code == 10
    assert capsys.readouterr().err.strip() == "no host h9"


def test_xcecli_starts_without_the_servers_libraries() -> None:
    import subprocess
    import sys

    heavy = ("fastapi", "httpx", "ray", "numpy")
    code = f"import sys, gangflow.cli.xcecli; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
