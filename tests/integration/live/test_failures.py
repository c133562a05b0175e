"""Members that fail, with real processes: what a failure means, what is left of it, and that everything comes to an end."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import gangflow as gf
from tests.integration.live.cluster import Live, ended, incarnations, processes, state, until

TINY: dict[str, Any] = {"cpu": "100m", "mem": "16MiB"}
SLEEPER = gf.Job(["sleep", "1000"], resources=TINY, termination_grace="1s")
SOON = gf.Backoff(initial="100ms")


def _of_incarnation(live: Live, group: str, number: int) -> list[int]:
    """Processes that carry an incarnation of a group in their environment, grandchildren too."""
    wanted = {"XCE_GROUP": group, "XCE_INCARNATION": str(number)}
    return [each.pid for each in processes(live.home.path) if wanted.items() <= each.environment.items()]


def test_a_killed_server_leaves_no_process_and_the_next_one_finds_its_device_free(live: Live, tmp_path: Path) -> None:
    """Scenario 82: the main process is SIGKILLed; its children, one in a session of its own and one that ignores SIGTERM,
    go as well, and before the next incarnation starts: what they held is free for it."""
    server = f"""
    exec 9>{tmp_path}/device
    flock -n 9 || {{ echo somebody still holds the device >&2; exit 9; }}
    setsid sleep 1000 &
    (trap '' TERM; sleep 1000) &
    echo up; touch {tmp_path}/up-$XCE_INCARNATION
    exec sleep 1000
    """
    engine = gf.ReplicaSet(
        ["sh", "-c", server],
        replicas=1,
        resources=TINY,
        ready=gf.FileProbe(f"{tmp_path}/up-1", period="50ms", successes=1),
        on_failure=[gf.FailureRule("restart_member", max_restarts=1, backoff=SOON)],
    )
    run = live.submit("engines", {"trainer": SLEEPER, "engine": engine})
    slot = state(run, "RUNNING").slot("engine", 0)
    until(lambda: len(_of_incarnation(live, run.id, 1)) >= 4, "the server's children (and the trainer)")
    live.client.signal(run.id, "engine", 0, slot.incarnation, signal.SIGKILL)
    until(lambda: (tmp_path / "up-2").exists() or run.status().terminal, lambda: run.status())
    view = run.status()
    assert incarnations(view) == {"trainer": (1,), "engine": (2,)}, view
    (trainer,) = view.slot("trainer", 0).tasks
    assert _of_incarnation(live, run.id, 1) == [trainer.pid], "nothing of the killed server is left"


@pytest.mark.parametrize("code", [0, 1])
def test_a_rollout_that_ends_is_a_failure_never_the_end_of_a_stream(live: Live, code: int) -> None:
    """Scenario 51: a service does not finish by itself: its exit, with any code, fails the group when the rules say so."""
    rollout = gf.ReplicaSet(["sh", "-c", f"exit {code}"], replicas=1, resources=TINY, on_failure=[gf.FailureRule("fail_group")])
    run = live.submit("streams", {"trainer": SLEEPER, "rollout": rollout})
    view = ended(run)
    exit_ = view.slot("rollout", 0).exit
    assert exit_ is not None
    assert (view.state, view.cause, exit_.cause, exit_.code) == ("FAILED", "app_exit", "app_exit", code)
    assert view.message.startswith("rollout[0]")
    with pytest.raises(gf.GroupEnded, match=r"FAILED \(app_exit: rollout\[0\]"):
        run.wait()


def test_the_result_is_that_of_the_worst_primary_member(live: Live, tmp_path: Path) -> None:
    """Scenario 51: one job is DONE, another fails after it: the group FAILED."""
    good = gf.Job(["true"], resources=TINY)
    bad = gf.Job(["sh", "-c", f"while ! test -e {tmp_path}/go; do sleep 0.05; done; exit 3"], resources=TINY)
    run = live.submit("jobs", {"good": good, "bad": bad})
    until(lambda: run.status().slot("good", 0).state == "DONE", lambda: run.status())
    assert run.status().state in {"RUNNING", "STARTING"}
    (tmp_path / "go").touch()
    view = ended(run)
    assert (view.state, view.cause) == ("FAILED", "app_exit")
    assert view.message.startswith("bad[0]")


def test_killing_controller_and_agent_at_once_ends_in_a_terminal_state(live: Live) -> None:
    """Scenario 83: all of gangflow on the machine dies while a group runs: its members end, and so does the group, by rule."""
    failing = gf.Job(["sleep", "1000"], resources=TINY, on_failure=[gf.FailureRule("fail_group")])
    run = live.submit("headless", {"a": failing})
    state(run, "RUNNING")
    assert _of_incarnation(live, run.id, 1)
    controller = live.controller()
    os.kill(live.agent(), signal.SIGKILL)
    os.kill(controller, signal.SIGKILL)
    view = ended(run)
    assert (view.state, view.cause) == ("FAILED", "agent_lost")
    assert not _of_incarnation(live, run.id, 1)
    assert live.controller() != controller


def test_a_budget_that_is_spent_ends_the_group(live: Live) -> None:
    """Scenario 49: an engine that dies every time is started as often as its rule says, and not once more."""
    engine = gf.ReplicaSet(
        ["sh", "-c", "sleep 0.1; exit 1"],
        replicas=1,
        resources=TINY,
        on_failure=[gf.FailureRule("restart_member", max_restarts=2, backoff=SOON, then="fail_group")],
    )
    run = live.submit("crashing", {"trainer": SLEEPER, "engine": engine})
    view = ended(run)
    assert (view.state, view.cause) == ("FAILED", "app_exit")
    assert incarnations(view) == {"trainer": (1,), "engine": (3,)}
    died = [event.data["incarnation"] for event in live.events(run, "SlotExited") if event.data["member"] == "engine"]
    assert died == [1, 2, 3]
