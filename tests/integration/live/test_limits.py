"""Runtime limits and plain jobs with real processes."""

from __future__ import annotations

import sys
from pathlib import Path

import gangflow as gf
from tests.integration.live.cluster import Live, ended, state, until

LISTENER = """
import pathlib, signal, sys, time
seen = pathlib.Path(sys.argv[1])
def note(number, _):
    with seen.open("a") as file:
        file.write(f"{signal.Signals(number).name}\\n")
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, note)
seen.touch()
while True:
    time.sleep(0.05)
"""


def test_a_limit_is_a_warning_then_term_then_kill(live: Live, tmp_path: Path) -> None:
    """The warning comes first, then the end after the grace; the cause is run_limit."""
    seen = tmp_path / "seen"
    stubborn = gf.Job(
        [sys.executable, "-c", LISTENER, str(seen)],
        resources={"cpu": "100m"},
        runtime_limit="4s",
        warning=gf.RunWarning("3s", "USR1"),
        termination_grace="1s",
    )
    run = live.run(gf.CoStartGroup.of_one("limited", stubborn))
    view = ended(run)
    assert (view.state, view.cause) == ("FAILED", "run_limit")
    assert seen.read_text().split() == ["SIGUSR1", "SIGTERM"]
    (slot,) = view.members[0].slots
    assert slot.exit is not None
    assert slot.exit.cause == "run_limit"
    assert slot.exit.signal == 9


def test_a_plain_job_runs_and_ends_as_a_group_of_one(live: Live) -> None:
    """Scenario 2: a document with `job` is a group whose member is called `main`."""
    run = live.run(gf.load("name: alone\njob:\n  command: [sh, -c, 'echo $XCE_MEMBER']\n  resources: {cpu: 100m}\n"))
    view = ended(run)
    assert (view.state, [member.name for member in view.members]) == ("SUCCEEDED", ["main"])
    until(lambda: "main" in live.client.log(run.id, "main", 0).text, "its log")


def test_a_rule_may_restart_what_ran_too_long(live: Live, tmp_path: Path) -> None:
    again = tmp_path / "again"
    script = f"test -e {again} && exit 0; touch {again}; exec sleep 1000"
    job = gf.Job(
        ["sh", "-c", script],
        resources={"cpu": "100m"},
        runtime_limit="1s",
        on_failure=[gf.FailureRule("restart_member", match=gf.FailureMatch(cause="run_limit"), max_restarts=1)],
    )
    run = live.run(gf.CoStartGroup.of_one("again", job))
    view = state(run, "SUCCEEDED")
    assert view.members[0].slots[0].incarnation == 2
