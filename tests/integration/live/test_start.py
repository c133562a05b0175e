"""Placement, barrier and start with real processes: all or nothing, and an end that says why."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest

import gangflow as gf
from gangflow.errors import SpecError
from tests.integration.live.cluster import Live, ended, processes, state, until

TINY: dict[str, Any] = {"cpu": "100m", "mem": "16MiB"}
SLEEPER = gf.Job(["sleep", "1000"], resources=TINY, termination_grace="1s")
FAIL = [gf.FailureRule("fail_group")]


def _touching(folder: Path, name: str) -> list[str]:
    """A command that leaves a file behind as soon as it runs."""
    return ["sh", "-c", f"touch {folder}/{name}; exec sleep 1000"]


def _used(live: Live) -> dict[str, int]:
    """What the cluster's groups hold now, over all hosts."""
    hosts = live.client.hosts().hosts
    return {name: sum(host.counters[name].used for host in hosts) for name in ("cpu", "mem")}


def _job(command: list[str], **more: Any) -> gf.Job:
    return gf.Job(command, resources=more.pop("resources", TINY), termination_grace="1s", **more)


def test_a_group_that_does_not_fit_starts_nothing_and_says_what_is_short(live: Live, tmp_path: Path) -> None:
    """Scenario 9: GPUs are free and CPU is short: it waits, none of it runs, and the reason names the resource."""
    first = live.submit("first", {"a": _job(["sleep", "1000"], resources={"cpu": "1500m"})})
    state(first, "RUNNING")
    wide = gf.Job(_touching(tmp_path, "wide"), tasks=2, resources={"cpu": "1500m", "gpus": 1}, termination_grace="1s")
    second = live.submit("second", {"a": wide, "b": _job(_touching(tmp_path, "b"))})
    until(lambda: second.status().reason, "a reason")
    view = second.status()
    assert view.reason is not None
    assert (view.state, view.reason.code, view.reason.blocker) == ("PENDING", "WAITING_CAPACITY", first.id)
    assert view.reason.shortfall == {"cpu": 3100 - 2500}, "what it asks for, less what is free"
    assert "cpu" in view.reason.text
    assert "0.6" in view.reason.text
    assert all(host.counters["gpus"].used == 0 for host in live.client.hosts().hosts)
    assert {slot.state for member in view.members for slot in member.slots} == {"PENDING"}
    assert not list(tmp_path.iterdir())
    first.cancel()
    state(second, "RUNNING")
    until(lambda: {path.name for path in tmp_path.iterdir()} == {"wide", "b"}, "both run")


def test_a_group_that_could_never_fit_is_refused(live: Live) -> None:
    """Scenario 9: no host has so many GPUs: refused at submission, with the path and what the largest host has."""
    with pytest.raises(SpecError) as refused:
        live.submit("huge", {"a": gf.Job(["true"], resources={"gpus": 4})})
    assert [problem.path for problem in refused.value.problems] == ["members.a.job"]
    assert "NEVER_FITS" in str(refused.value) or "gpus" in str(refused.value)
    assert "huge" not in {view.name for view in live.client.groups().groups}


def test_two_groups_that_each_fill_the_cluster_run_one_after_the_other(live: Live) -> None:
    """Scenarios 1 and 4: exactly one of them runs, the other holds nothing and names it as blocker."""
    whole = {
        "driver": gf.Job(["sleep", "1000"], resources={"cpu": 1, "gpus": 1}, termination_grace="1s"),
        "workers": gf.ReplicaSet(["sleep", "1000"], replicas=1, resources={"cpu": 1, "gpus": 1}, termination_grace="1s"),
    }
    one, two = live.submit("one", whole), live.submit("two", whole)
    state(one, "RUNNING")
    until(lambda: two.status().reason, "a reason")
    view = two.status()
    assert view.reason is not None
    assert (view.state, view.reason.code, view.reason.blocker) == ("PENDING", "WAITING_CAPACITY", one.id)
    assert view.reason.shortfall == {"gpus": 2000}
    held = {slot.group for host in live.client.hosts().hosts for slot in host.slots}
    assert held == {one.id}
    one.cancel()
    state(two, "RUNNING")
    assert one.status().state == "CANCELLED"


def test_an_executable_that_does_not_exist_starts_nothing(live: Live, tmp_path: Path) -> None:
    """Scenario 73: one member can never be prepared, so no member runs, and the end says which and why."""
    run = live.submit("missing", {"a": _job(_touching(tmp_path, "a")), "b": _job(["no-such-program"])})
    view = ended(run)
    assert (view.state, view.cause) == ("FAILED", "start_failed")
    assert "executable 'no-such-program' is not on the task's PATH" in view.message
    assert "b[0]" in view.message
    assert not live.events(run, "BarrierReleased")
    assert not list(tmp_path.iterdir())
    assert _used(live) == {"cpu": 0, "mem": 0}, "what was held is free again"


def test_a_try_that_cannot_be_prepared_is_void_and_the_next_one_starts(live: Live, tmp_path: Path) -> None:
    """Scenario 73: a stranger has the port of one member: nobody starts, the record says why; when it is free, all start."""
    service = gf.ReplicaSet(_touching(tmp_path, "b"), replicas=1, resources=TINY, ports=["http"], termination_grace="1s")
    before = live.submit("before", {"b": service})
    address = state(before, "RUNNING").slot("b", 0).addresses["http"][0]
    before.cancel()
    state(before, "CANCELLED")
    (tmp_path / "b").unlink(missing_ok=True)
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        quick = gf.Barrier(max_attempts=100, backoff=gf.Backoff(initial="100ms", max="200ms"))
        run = live.submit("taken", {"a": _job(_touching(tmp_path, "a")), "b": service}, barrier=quick)
        until(lambda: len(live.events(run, "TryVoided")) >= 2, "two void tries")
        assert not live.events(run, "BarrierReleased")
        assert not list(tmp_path.iterdir())
    voided = live.events(run, "TryVoided")
    assert all("b[0]" in event.data["message"] and "port 'http'" in event.data["message"] for event in voided)
    state(run, "RUNNING")
    until(lambda: {path.name for path in tmp_path.iterdir()} == {"a", "b"}, "both run")


def test_a_claim_that_fails_starts_nothing(live: Live, tmp_path: Path) -> None:
    """Scenario 73: the claim's folder cannot be made; no member runs, and the end names claim and error."""
    obstacle = tmp_path / "file"
    obstacle.touch()
    run = live.submit(
        "unclaimed",
        {"a": _job(_touching(tmp_path, "a"))},
        claims=[gf.Claim("ckpt", parameters={"path": str(obstacle)})],
        barrier=gf.Barrier(timeout="1s", max_attempts=2, backoff=gf.Backoff(initial="100ms")),
    )
    view = ended(run)
    assert (view.state, view.cause, live.events(run, "BarrierReleased")) == ("FAILED", "barrier_timeout", [])
    (voided,) = (event.data["message"] for event in live.events(run, "TryVoided"))
    for said in (voided, view.message):
        assert "claim ckpt" in said
        assert str(obstacle) in said
    assert list(tmp_path.iterdir()) == [obstacle]


def test_a_service_that_never_answers_is_named_with_its_address(live: Live) -> None:
    """Scenario 54: the end names the slot, the address that was tried and the last error; nothing is left running."""
    silent = gf.ReplicaSet(
        ["sleep", "1000"],
        replicas=1,
        resources=TINY,
        ports=["http"],
        ready=gf.HttpProbe("http", "/health", period="200ms", timeout="1s"),
        termination_grace="1s",
        on_failure=FAIL,
    )
    run = live.submit("deaf", {"trainer": SLEEPER, "engine": silent}, barrier=gf.Barrier(start_timeout="2s"))
    view = ended(run)
    assert (view.state, view.cause) == ("FAILED", "not_ready")
    assert re.search(
        r"engine\[0\] not ready .*tried http://127\.0\.0\.1:\d+/health on h[01]: .*refused", view.message.lower()
    ), view.message


def test_a_member_that_dies_at_once_shows_its_last_lines(live: Live) -> None:
    """Its last 20 lines of stderr are in the record, in the slot, and not in anybody else's."""
    talk = "for i in $(seq 30); do echo line $i >&2; done; exit 7"
    run = live.submit("dies", {"a": _job(["sh", "-c", talk]), "b": SLEEPER})
    view = ended(run)
    last = [f"line {i}" for i in range(11, 31)]
    assert (view.state, view.cause) == ("FAILED", "app_exit")
    exit_ = view.slot("a", 0).exit
    assert exit_ is not None
    assert (exit_.cause, exit_.code) == ("app_exit", 7)
    assert exit_.stderr_tail.split("\n")[:20] == last
    told = [event.data["exit"] for event in live.events(run, "SlotExited") if event.data["member"] == "a"]
    assert [each["stderr_tail"].split("\n")[:20] for each in told] == [last]
    assert not [each for each in processes(live.home.path) if each.environment.get("XCE_GROUP") == run.id]
