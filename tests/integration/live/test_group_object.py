"""The group object with real processes: suspended, scaled, moved off hosts that are drained, bounded by runtime limits; claims
that groups have in turn; plain jobs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gangflow as gf
from gangflow.xce.rest.schema import GroupView, SlotView
from tests.integration.live.cluster import Live, Process, ended, incarnations, processes, state, until

TINY: dict[str, Any] = {"cpu": "100m", "mem": "16MiB"}
SLEEPER = gf.Job(["sleep", "1000"], resources=TINY, termination_grace="1s")
SOON = gf.Backoff(initial="100ms")


def service(count: int, least: int = 1, most: int | None = None, script: str = "exec sleep 1000", **more: Any) -> gf.ReplicaSet:
    """A replica set of shells."""
    fields: dict[str, Any] = {"resources": TINY, "termination_grace": "1s", **more}
    return gf.ReplicaSet(["sh", "-c", script], replicas=count, min_replicas=least, max_replicas=most or max(count, 4), **fields)


def of_group(live: Live, group: str, member: str = "") -> list[Process]:
    """Processes of a group (or of one member) that run."""
    wanted = {"XCE_GROUP": group, **({"XCE_MEMBER": member} if member else {})}
    return [each for each in processes(live.home.path) if wanted.items() <= each.environment.items()]


def in_use(live: Live) -> dict[str, int]:
    """Milli-CPU in use on each host."""
    return {host.name: host.counters["cpu"].used for host in live.client.hosts().hosts}


def ready(view: GroupView, member: str) -> list[SlotView]:
    """The slots of a member that serve and are in its target."""
    slots = next(each for each in view.members if each.name == member).slots
    return [slot for slot in slots if slot.state == "READY" and not slot.out]


def once(run: gf.Run, condition: Callable[[GroupView], bool]) -> GroupView:
    """The group as soon as something is true of it."""

    def look() -> GroupView | None:
        view = run.status()
        return view if condition(view) else None

    found = until(look, lambda: run.status())
    assert found is not None
    return found


@pytest.fixture
def opened(live: Live) -> Iterator[Live]:
    """A cluster whose hosts are open again after the test."""
    yield live
    for host in live.client.hosts().hosts:
        live.client.open_host(host.name)


def test_suspended_it_runs_nothing_and_holds_nothing_and_resumed_it_runs_again(live: Live) -> None:
    """Scenario 11: what it had is free for others from the moment it is SUSPENDED."""
    first = live.submit("first", {"train": SLEEPER, "serve": service(2, resources={"cpu": 1, "mem": "16MiB"})})
    submitted = state(first, "RUNNING").submitted_ms
    assert len(of_group(live, first.id)) == 3
    first.suspend("somebody needs it more")
    view = state(first, "SUSPENDED")
    assert of_group(live, first.id) == []
    assert view.lsf == "PSUSP"
    assert in_use(live) == {"h0": 0, "h1": 0}
    other = live.submit("other", {"whole": gf.Job(["sleep", "1000"], tasks=4, resources={"cpu": 1}, termination_grace="1s")})
    state(other, "RUNNING")
    first.resume()
    view = state(first, "PENDING")
    assert view.reason is not None
    assert view.reason.code in {"WAITING_CAPACITY", "WAITING_SHAPE"}
    other.cancel()
    view = state(first, "RUNNING")
    assert view.submitted_ms == submitted
    assert incarnations(view) == {"train": (2,), "serve": (2, 2)}
    assert len(of_group(live, first.id)) == 3


def test_suspended_over_a_crash_of_the_controller(live: Live) -> None:
    """It is a durable fact, and so is that nothing of it is wanted: a controller that dies meanwhile changes neither."""
    run = live.submit(
        "kept", {"train": gf.Job(["sh", "-c", "trap '' TERM; sleep 1000"], resources=TINY, termination_grace="2s")}
    )
    state(run, "RUNNING")
    run.suspend()
    os.kill(live.controller(), signal.SIGKILL)
    state(run, "SUSPENDED")
    assert of_group(live, run.id) == []
    run.resume()
    state(run, "RUNNING")
    assert len(of_group(live, run.id)) >= 1


def test_replicas_come_and_go(live: Live, tmp_path: Path) -> None:
    """Up by two, down by three: those that stay are never touched, those that go have their time to drain."""
    script = f"trap 'touch {tmp_path}/told-$XCE_SLOT; exit 0' TERM; while :; do sleep 0.1; done"
    run = live.submit("elastic", {"train": SLEEPER, "serve": service(2, script=script, drain="300ms")})
    before = {slot.index: slot.incarnation for slot in ready(state(run, "RUNNING"), "serve")}
    change = run.scale(serve=4, wait=True)
    assert change is not None
    assert change.state == "DONE"
    view = once(run, lambda view: len(ready(view, "serve")) == 4)
    assert {slot.index for slot in ready(view, "serve")} == {0, 1, 2, 3}
    change = run.scale(serve=1, wait=True)
    assert change is not None
    assert change.state == "DONE"
    view = run.status()
    assert [(slot.index, slot.incarnation) for slot in ready(view, "serve")] == [(0, before[0])]
    assert len(of_group(live, run.id, "serve")) <= 2  # The shell, and its sleep.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["told-1", "told-2", "told-3"]
    assert not live.events(run, "FailureJudged"), "what we take away did not fail"


def test_what_does_not_fit_changes_nothing(live: Live) -> None:
    run = live.submit("tight", {"train": SLEEPER, "serve": service(1, resources={"cpu": 1})})
    state(run, "RUNNING")
    with pytest.raises(gf.Conflict) as refused:
        run.scale(serve=4)
    assert refused.value.problem == "no_fit"
    assert "cpu" in refused.value.message
    view = run.status()
    assert view.changes == ()
    assert len(ready(view, "serve")) == 1


def test_a_closed_host_gets_nothing_and_a_drained_one_is_emptied(opened: Live) -> None:
    live = opened
    run = live.submit(
        "moves", {"train": SLEEPER, "serve": service(1, on_failure=[gf.FailureRule("restart_member", backoff=SOON)])}
    )
    view = state(run, "RUNNING")
    (home,) = view.slot("serve", 0).hosts
    other = {"h0": "h1", "h1": "h0"}[home]
    live.client.close_host(other, message="nobody goes there")
    late = live.submit("late", {"train": SLEEPER, "serve": service(2)})
    view = state(late, "RUNNING")
    assert {host for member in view.members for slot in member.slots for host in slot.hosts} == {home}
    late.cancel()
    ended(late)
    live.client.open_host(other)
    live.client.close_host(home, drain=True, message="a new board")

    def moved(now: GroupView) -> bool:
        slots = [now.slot("serve", 0), now.slot("train", 0)]
        return all(slot.state == "READY" and slot.hosts == (other,) for slot in slots)

    found = once(run, moved)
    assert found.slot("serve", 0).incarnation == 2
    drained = {event.data["cause"] for event in live.events(run, "FailureJudged")}
    assert drained == {"drained"}
    assert in_use(live)[home] == 0
    shown = next(host for host in live.client.hosts().hosts if host.name == home)
    assert (shown.state, shown.closed, shown.draining) == ("CLOSED", "a new board", True)


def test_a_runtime_limit_warns_and_then_ends(live: Live, tmp_path: Path) -> None:
    """A signal before the limit, TERM at the limit, KILL after the grace; the cause is `run_limit`."""
    script = f"trap 'touch {tmp_path}/warned' USR1; trap 'touch {tmp_path}/told' TERM; while :; do sleep 0.05; done"
    warning = gf.RunWarning("1s", "SIGUSR1")
    job = gf.Job(["sh", "-c", script], resources=TINY, runtime_limit="2s", warning=warning, termination_grace="500ms")
    run = live.submit("bounded", {"train": job})
    view = ended(run)
    assert (view.state, view.cause) == ("FAILED", "run_limit")
    assert (tmp_path / "warned").exists()
    assert (tmp_path / "told").exists()
    exit_ = view.slot("train", 0).exit
    assert exit_ is not None
    assert exit_.signal == signal.SIGKILL
    assert of_group(live, run.id) == []


def test_two_groups_have_an_exclusive_claim_in_turn(live: Live) -> None:
    """The second waits for the first, holds nothing meanwhile, and finds in the claim what the first has left there."""
    live.client.create_claim({"name": "shelf"})
    try:
        claims = [gf.Claim("shelf", uses="shelf", access="exclusive")]
        write = gf.Job(
            ["sh", "-c", "echo mine > $XCE_CLAIM_SHELF/note; exec sleep 1000"], resources=TINY, termination_grace="1s"
        )
        first = live.submit("first", {"train": write}, claims=claims)
        state(first, "RUNNING")
        read = gf.Job(["sh", "-c", "cat $XCE_CLAIM_SHELF/note"], resources=TINY)
        second = live.submit("second", {"train": read}, claims=claims)
        view = second.status()
        assert view.state == "PENDING"
        assert view.reason is not None
        assert view.reason.code == "WAITING_CLAIMS"
        assert "shelf" in view.reason.text
        assert first.id in view.reason.text or view.reason.blocker == first.id
        assert not [slot for member in view.members for slot in member.slots if slot.tasks]
        with pytest.raises(gf.Conflict) as refused:
            live.client.delete_claim("shelf")
        assert refused.value.problem == "in_use"
        assert live.client.claim("shelf").holders == (first.id,)
        first.cancel()
        assert ended(second).state == "SUCCEEDED"
        assert "".join(second.logs("train")) == "mine\n"
    finally:
        live.clear()
        live.client.delete_claim("shelf")
    until(lambda: all(claim.id != "shelf" for claim in live.client.claims().claims), lambda: live.client.claims())


def test_a_plain_job_is_a_group_of_one(live: Live) -> None:
    run = live.run(gf.CoStartGroup.of_one("hello", gf.Job(["sh", "-c", "echo hello from $XCE_MEMBER"], resources=TINY)))
    view = ended(run)
    assert (view.state, view.plain, [member.name for member in view.members]) == ("SUCCEEDED", True, ["main"])
    assert "".join(run.logs("main")) == "hello from main\n"
    assert run.id in [each.id for each in live.client.jobs(["SUCCEEDED"]).groups]


def test_a_group_is_restarted_by_hand_and_a_member_is_stopped(live: Live) -> None:
    """Its jobs run again in the next epoch, on the places that they had, and the member that is stopped does not come back."""
    run = live.submit("again", {"train": SLEEPER, "serve": service(1), "judge": service(1)})
    before = state(run, "RUNNING")
    run.stop_member("judge")
    until(lambda: not of_group(live, run.id, "judge"), "the judge is gone")
    run.restart(message="once more")
    view = once(run, lambda view: view.epoch == 2 and view.state == "RUNNING")
    assert incarnations(view) == {"train": (2,), "serve": (2,), "judge": (1,)}
    assert view.slot("train", 0).hosts == before.slot("train", 0).hosts
    assert view.stopped == ("judge",)
    assert of_group(live, run.id, "judge") == []
