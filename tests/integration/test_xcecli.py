"""`xcecli`, `gangflow replay` and `gangflow compact` over a controller process, its agent and real members."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gangflow.cli import main as gangflow
from gangflow.cli import xcecli
from gangflow.home import Home
from gangflow.xce.rest.schema import GroupView
from tests.integration.test_serve import Served, until

GROUP = """
name: serving
members:
  main: {job: {command: [sleep, "1000"], resources: {cpu: 500m}, termination_grace: 1s}}
  rollout:
    replica_set:
      {command: [sleep, "1000"], replicas: 2, min_replicas: 1, max_replicas: 4, resources: {cpu: 500m}, termination_grace: 1s}
"""
JOB = "name: hello\njob: {command: [sh, -c, 'echo hello; sleep 1000'], resources: {cpu: 100m}, termination_grace: 1s}\n"
Said = Callable[..., str]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "home")
    made.start()
    yield made
    made.take_down()


@pytest.fixture
def xce(served: Served) -> Said:
    """`xcecli` on this home: what it prints (errors too), and how it ends."""

    def call(*words: str, exit_code: int = 0) -> str:
        result = CliRunner().invoke(xcecli.app, ["--home", str(served.home), *words])
        assert result.exit_code == exit_code, (words, result.output, result.exception)
        return result.output

    return call


def gf(*words: object) -> str:
    result = CliRunner().invoke(gangflow.app, [str(word) for word in words])
    assert result.exit_code == 0, (words, result.output, result.exception)
    return result.output


def test_an_operators_day(served: Served, xce: Said, tmp_path: Path) -> None:
    """Everything that an operator tells a group, its slots and its hosts; then the journal of all that replays, beside its
    controller and after it, and is compacted, and a new controller goes on with the members that ran all the time."""
    (tmp_path / "group.yaml").write_text(GROUP)
    (tmp_path / "job.yaml").write_text(JOB)
    assert xce("submit", str(tmp_path / "group.yaml")) == "Job <g1> is submitted.\n"
    assert xce("submit", str(tmp_path / "job.yaml")) == "Job <g2> is submitted.\n"

    def group(name: str = "serving") -> GroupView:
        with Home(served.home).client() as client:
            return client.group(name)

    def claim_is_ready() -> bool:
        with Home(served.home).client() as client:
            return client.claim("data").state == "READY"

    def reach(state: str, name: str = "serving") -> None:
        until(lambda: group(name).state == state, f"{name} {state}")

    reach("RUNNING")
    reach("RUNNING", "hello")
    assert xce("jobs", "-noheader", "-o", "jobid stat").split() == ["g2", "RUN"]

    assert "rollout 2→3" in xce("scale", "serving", "rollout=3")
    until(lambda: group().member("rollout").ready == 3, "three replicas")
    assert "g1.rollout[2]" in xce("slots", "-l", "serving.rollout[2]")
    xce("scale", "serving", "rollout=9", exit_code=1)
    assert "rollout 3→1" in xce("scale", "g1", "rollout=1")
    until(lambda: group().changes[-1].state == "DONE", "the change is done")
    assert xce("changes", "-noheader", "-o", "change state").split() == ["c1", "DONE", "c2", "DONE"]
    assert xce("members", "-noheader", "-o", "array_spec", "g1.rollout").strip() == "rollout[0]"

    before = group().slot("rollout", 0).incarnation
    xce("restart", "g1.rollout[0]")
    until(lambda: group().slot("rollout", 0).incarnation > before and group().slot("rollout", 0).state == "READY", "restarted")

    host = group().slot("main", 0).hosts[0]
    assert xce("close", host, "-C", "fan") == f"Close <{host}> ...... done\n"
    assert "closed_Adm" in xce("hosts", "-l", host)
    assert xce("open", host) == f"Open <{host}> ...... done\n"

    xce("suspend", "serving", "-C", "night")
    reach("SUSPENDED")
    assert "SUSPENDED" in xce("why", "serving")
    xce("resume", "g1")
    reach("RUNNING")
    assert "it is not suspended" in xce("resume", "g1", exit_code=10)
    xce("stop", "g1.rollout")
    until(lambda: group().stopped == ("rollout",), "rollout is stopped")
    assert "stopped" in xce("members", "-l", "g1.rollout")

    (tmp_path / "claim.yaml").write_text("name: data\n")
    xce("claim", "create", str(tmp_path / "claim.yaml"))
    until(claim_is_ready, "the claim is made")
    assert "Claim <data> standalone" in xce("claims", "-l", "data")
    xce("claim", "delete", "data")

    assert "g1" in xce("groups", "-noheader", "g1", "serving.rollout")
    assert json.loads(xce("owners", "-json"))["USERS"] >= 1
    assert "the same, byte for byte" in gf("replay", served.home, "--show", "serving")

    pid = group("hello").slot("main", 0).tasks[0].pid
    served.end()
    replayed = json.loads(gf("replay", served.home, "--json"))
    assert replayed["same"]
    assert "the state at seq" in gf("compact", served.home, "--keep", "60s")
    served.start()
    until(lambda: group("hello").slot("main", 0).state == "READY", "hello is known again")
    assert group("hello").slot("main", 0).tasks[0].pid == pid
    assert "the same, byte for byte" in gf("replay", served.home)
    assert "Job <hello> is being terminated" in xce("kill", "hello", "g1")
    reach("CANCELLED", "hello")
    reach("CANCELLED")
