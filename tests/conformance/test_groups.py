"""The life of groups, as any XCE must show it through the contract."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from gangflow.errors import Conflict, NotFound, NotYetError, SpecError, XceError
from tests.conformance.conftest import Xce

pytestmark = pytest.mark.asyncio(loop_scope="session")


def job(script: str = "sleep 300", **more: Any) -> dict[str, Any]:
    return {"job": {"command": ["sh", "-c", script], "resources": {"cpu": 0.1}, "termination_grace": "1s", **more}}


def replicas(count: int = 1, script: str = "sleep 300", **more: Any) -> dict[str, Any]:
    body = {"command": ["sh", "-c", script], "replicas": count, "resources": {"cpu": 0.1}, "termination_grace": "1s", **more}
    return {"replica_set": body}


async def test_from_submission_to_success(xce: Xce) -> None:
    """Scenario 73: nothing starts before every required slot is prepared and the barrier is released."""
    before = (await xce.client.groups()).seq
    group = await xce.submit({"a": job("exit 0"), "b": replicas(2)})
    view = await xce.ended(group)
    assert (view.state, view.lsf, view.epoch, view.cause) == ("SUCCEEDED", "DONE", 1, "")
    assert view.satisfied_once
    assert view.slot("a", 0).state == "DONE"
    events = [event async for event in xce.client.events(before, group, view.seq)]
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    types = [event.type for event in events]
    assert types[0] == "GroupSubmitted"
    released = types.index("BarrierReleased")
    starting = [at for at, e in enumerate(events) if e.type == "SlotChanged" and e.data["state"] == "STARTING"]
    prepared = [at for at, e in enumerate(events) if e.type == "SlotChanged" and e.data["state"] == "PREPARED"]
    assert len(starting) == len(prepared) == 3
    assert max(prepared) < released < min(starting)
    states = [event.data["state"] for event in events if event.type == "GroupChanged"]
    assert states == ["RUNNING", "STOPPING", "SUCCEEDED"]


async def test_a_job_that_fails_fails_its_group_with_its_last_words(xce: Xce) -> None:
    """Scenario 51: a failure is never taken for an end."""
    group = await xce.submit({"a": job("echo the reason >&2; exit 3"), "b": replicas()})
    view = await xce.ended(group)
    assert (view.state, view.lsf) == ("FAILED", "EXIT")
    assert "app_exit" in view.cause
    exit = view.slot("a", 0).exit
    assert exit is not None
    assert (exit.cause, exit.code, exit.incarnation) == ("app_exit", 3, 1)
    assert "the reason" in exit.stderr_tail


async def test_the_document_comes_back(xce: Xce) -> None:
    group = await xce.submit({"a": job()}, priority=60)
    view = await xce.client.group(group)
    assert view.document is not None
    assert (view.document["priority"], view.priority) == (60, 60)
    assert list(view.document["members"]) == ["a"]
    assert (await xce.client.group(view.name)).id == group


async def test_cancel_leaves_nothing_running(xce: Xce) -> None:
    group = await xce.submit({"a": job(), "b": replicas(2)})
    await xce.running(group)
    await xce.client.cancel(group)
    view = await xce.ended(group)
    assert view.state == "CANCELLED"
    assert not [slot for member in view.members for slot in member.slots if slot.tasks]
    assert not [held for host in (await xce.client.hosts()).hosts for held in host.slots if held.group == group]
    await xce.client.cancel(group)
    assert (await xce.client.group(group)).state == "CANCELLED"


async def test_fail_gives_the_cause(xce: Xce) -> None:
    group = await xce.submit({"a": job()})
    await xce.client.fail(group, "no_quorum", "one rollout of two")
    view = await xce.ended(group)
    assert (view.state, view.cause, view.message) == ("FAILED", "no_quorum", "one rollout of two")


async def test_a_key_acts_once(xce: Xce) -> None:
    """However often a command is sent under one key, it acts once."""
    key, name = uuid.uuid4().hex, f"c-{uuid.uuid4().hex[:12]}"
    spec = {"name": name, "members": {"a": job()}}
    first = await xce.client.submit(spec, key=key)
    assert (await xce.client.submit(spec, key=key)).id == first.id
    assert [view.id for view in (await xce.client.groups(name=name)).groups] == [first.id]
    with pytest.raises(XceError) as refusal:
        await xce.client.submit({**spec, "priority": 51}, key=key)
    assert (refusal.value.status, refusal.value.problem) == (422, "idempotency_mismatch")


async def test_a_live_groups_name_is_taken(xce: Xce) -> None:
    group = await xce.submit({"a": job()})
    name = (await xce.client.group(group)).name
    with pytest.raises(Conflict):
        await xce.client.submit({"name": name, "members": {"a": job()}})
    await xce.client.cancel(group)
    await xce.ended(group)
    again = await xce.client.submit({"name": name, "members": {"a": job()}})
    assert (await xce.client.group(name)).id == again.id != group


@pytest.mark.parametrize(
    ("members", "path", "kind"),
    [
        ({"a": {"job": {"comand": ["true"]}}}, "members.a.job.comand", SpecError),
        ({"a": {"replica_set": {"command": ["true"], "replicas": 1, "min_replicas": 2}}}, "min_replicas", SpecError),
        ({"a": job(resources={"cpu": 100_000})}, "members.a.job", SpecError),
        ({"a": job(preemptible=True)}, "preemptible", NotYetError),
    ],
)
async def test_a_wrong_spec_creates_nothing(xce: Xce, members: dict[str, Any], path: str, kind: type[SpecError]) -> None:
    name = f"c-{uuid.uuid4().hex[:12]}"
    with pytest.raises(kind) as error:
        await xce.client.submit({"name": name, "members": members})
    assert type(error.value) is kind
    assert [problem for problem in error.value.problems if path in problem.path], error.value
    assert not (await xce.client.groups(name=name)).groups


async def test_a_group_that_does_not_fit_waits_with_its_reason_and_then_starts(xce: Xce) -> None:
    """Scenarios 1 and 4: of two whole-cluster groups one runs, and the other holds nothing and names the first as its blocker.

    Scenario 9: what is short is said.
    """
    hosts = [host for host in (await xce.client.hosts()).hosts if host.lsf == "ok"]
    cpu = min(host.counters["cpu"].total for host in hosts) / 1_000
    count = len(hosts)
    whole = {"cpu": cpu}
    first = await xce.submit({"a": replicas(count, resources=whole)})
    await xce.running(first)
    second = await xce.submit({"a": replicas(count, resources=whole)})
    third = await xce.submit({"a": replicas(count, resources=whole)}, priority=60)
    view = await xce.until(second, lambda view: view.reason is not None)
    assert (view.state, view.lsf, view.satisfied_once) == ("PENDING", "PEND", False)
    assert not [slot for slot in view.member("a").slots if slot.tasks]
    await xce.until(third, lambda view: view.reason is not None)
    queue = (await xce.client.queue()).groups
    assert [item.id for item in queue] == [third, second]
    for level in range(4):
        why = await xce.client.why(third, level)
        assert why.level == level
        assert why.reason is not None
        assert why.reason.code.startswith("WAITING_")
        assert why.reason.shortfall["cpu"] > 0
        assert why.reason.blocker == first
        assert why.lines
        assert bool(why.hosts) == (level >= 2)
    await xce.client.cancel(first)
    assert (await xce.running(third)).reason is None
    assert (await xce.client.group(second)).state == "PENDING"


async def test_an_operators_restart_makes_a_new_incarnation(xce: Xce) -> None:
    group = await xce.submit({"a": job(), "b": replicas(2)})
    view = await xce.running(group)
    assert view.slot("b", 1).incarnation == 1
    await xce.client.restart(group, "b", 1, 1)
    view = await xce.until(group, lambda view: view.slot("b", 1).incarnation == 2 and view.state == "RUNNING")
    assert [view.slot("b", 0).incarnation, view.slot("a", 0).incarnation] == [1, 1]
    with pytest.raises(XceError) as refusal:
        await xce.client.restart(group, "b", 1, 1)
    assert refusal.value.problem == "superseded"
    with pytest.raises(NotFound):
        await xce.client.restart(group, "b", 7, 1)


async def test_one_failed_member_is_kept_and_resumed_by_hand(xce: Xce, tmp_path: Path) -> None:
    """Scenario 37: after N tries it is given up, and kept for diagnosis with its exit, output and count of restarts; the rest
    runs on; an operator resumes that one, outside rules and budgets."""
    mended = tmp_path / "mended"
    work = f"echo looking for {mended}; test -e {mended} || {{ sleep 0.1; exit 7; }}; sleep 600"
    rule = {
        "match": {"member": "c"},
        "action": "restart_member",
        "max_restarts": 1,
        "backoff": {"initial": "50ms"},
        "then": "tolerate",
    }
    member = replicas(1, work, min_replicas=0)
    group = await xce.submit({"a": job(), "b": replicas(2), "c": member}, failure=[rule])
    view = await xce.until(group, lambda view: view.slot("c", 0).state == "RETIRED")
    kept = view.slot("c", 0)
    assert kept.exit is not None
    assert (kept.exit.cause, kept.exit.code, kept.incarnation, kept.restarts) == ("app_exit", 7, 2, 1)
    log = await xce.client.log(group, "c", 0, 2)
    assert "looking for" in log.text
    view = await xce.running(group)
    with pytest.raises(XceError) as refusal:
        await xce.client.restart(group, "c", 0, 1)
    assert refusal.value.problem == "superseded"

    mended.touch()
    await xce.client.restart(group, "c", 0, 2)
    view = await xce.until(group, lambda view: view.slot("c", 0).state == "READY")
    assert (view.slot("c", 0).incarnation, view.tolerated) == (3, ())
    assert [view.slot("a", 0).incarnation, view.slot("b", 0).incarnation, view.slot("b", 1).incarnation] == [1, 1, 1]
    assert (view.state, view.epoch) == ("RUNNING", 1)


async def test_a_restart_that_would_do_nothing_says_in_which_state_the_slot_is(xce: Xce) -> None:
    """Scenario 37: "ok" is a promise. What waits for a place, or is on its way already, is 409 `conflict`."""
    group = await xce.submit({"a": job(), "b": replicas(9, min_replicas=1, resources={"cpu": 1})})
    view = await xce.running(group)
    waiting = next(slot for slot in view.member("b").slots if slot.state == "PENDING")
    with pytest.raises(Conflict, match=r"b\[\d\] is PENDING: it waits for a place already"):
        await xce.client.restart(group, "b", waiting.index, waiting.incarnation)


async def test_a_verdict_is_left_to_the_rules(xce: Xce) -> None:
    rule = {"match": {"member": "b", "cause": ["hung"]}, "action": "restart_member", "backoff": {"initial": "100ms"}}
    group = await xce.submit({"a": job(), "b": replicas(2)}, failure=[rule])
    await xce.running(group)
    await xce.client.report(group, "b", 0, 1, "hung", "no answer")
    view = await xce.until(group, lambda view: view.slot("b", 0).incarnation == 2 and view.state == "RUNNING")
    assert view.slot("b", 0).restarts == 1
    exit = view.slot("b", 0).exit
    assert exit is not None
    assert (exit.cause, exit.incarnation) == ("hung", 1)
    with pytest.raises(XceError) as refusal:
        await xce.client.report(group, "b", 0, 1, "hung")
    assert refusal.value.problem == "superseded"


async def test_a_signal_is_learnt_of_by_the_exit(xce: Xce) -> None:
    rule = {"match": {"member": "b"}, "action": "restart_member", "backoff": {"initial": "100ms"}}
    group = await xce.submit({"a": job(), "b": replicas()}, failure=[rule])
    await xce.running(group)
    await xce.client.signal(group, "b", 0, 1, 9)
    view = await xce.until(group, lambda view: view.slot("b", 0).incarnation == 2 and view.state == "RUNNING")
    exit = view.slot("b", 0).exit
    assert exit is not None
    assert (exit.cause, exit.signal) == ("signal", 9)


async def test_logs_of_every_incarnation(xce: Xce) -> None:
    group = await xce.submit({"a": job(), "b": replicas(1, "echo I am $XCE_INCARNATION; sleep 300")})
    await xce.running(group)
    await xce.client.restart(group, "b", 0, 1)
    await xce.until(group, lambda view: view.slot("b", 0).incarnation == 2 and view.state == "RUNNING")
    stream = xce.client.follow_log(group, "b", 0, incarnation=2)
    text = ""
    while "\n" not in text:
        text += (await anext(stream)).text
    assert text == "I am 2\n"
    old = await xce.client.log(group, "b", 0, incarnation=1)
    assert (old.text, old.incarnation, old.ended) == ("I am 1\n", 1, True)
    assert (await xce.client.log(group, "b", 0, incarnation=1, offset=5)).text == "1\n"
    with pytest.raises(NotFound):
        await xce.client.log(group, "b", 0, incarnation=3)


async def test_a_claim_is_ready_before_the_start(xce: Xce) -> None:
    group = await xce.submit(
        {"a": job("test -d $XCE_CLAIM_CKPT && echo $XCE_CLAIM_CKPT")}, claims=[{"name": "ckpt", "provider": "directory"}]
    )
    view = await xce.ended(group)
    assert view.state == "SUCCEEDED", view
    path = (await xce.client.log(group, "a", 0)).text.strip()
    assert [claim.path for claim in (await xce.client.claims(group)).claims] in ([path], [""], [])
    assert path


async def test_members_that_finish_one_by_one_are_not_broken(xce: Xce) -> None:
    """Scenario 32: success is not loss: the first job's end disturbs nobody."""
    group = await xce.submit({"a": job("exit 0"), "b": job("sleep 1"), "c": replicas(2)})
    await xce.until(group, lambda view: view.slot("a", 0).state == "DONE")
    view = await xce.ended(group)
    assert (view.state, view.cause) == ("SUCCEEDED", "")
    assert [member.restarts for member in view.members] == [0, 0, 0]
    assert (view.epoch, view.tolerated) == (1, ())


async def test_who_never_becomes_ready_is_named_with_the_address_tried(xce: Xce) -> None:
    """Scenario 54: a server that never comes up ends the wait, by name and address. Scenario 83: within a bounded time."""
    probe = {"http": {"port": "http", "path": "/health", "period": "100ms", "timeout": "200ms"}}
    group = await xce.submit(
        {"a": job(), "b": replicas(ports=["http"], ready=probe)},
        barrier={"start_timeout": "2s", "max_attempts": 1},
        failure=[{"match": {"member": "b", "cause": ["not_ready"]}, "action": "fail_group"}],
    )
    address = (await xce.until(group, lambda view: bool(view.slot("b", 0).tasks))).slot("b", 0).addresses["http"][0]
    view = await xce.ended(group)
    assert (view.state, view.cause) == ("FAILED", "not_ready")
    assert "b[0]" in view.message
    assert address in view.message


async def test_what_can_not_be_prepared_is_given_up_and_kept_for_diagnosis(xce: Xce) -> None:
    """Scenario 37: stop after so many tries, and keep the failed group with its reason."""
    missing = {"job": {"command": ["/no/such/program"], "resources": {"cpu": 0.1}}}
    group = await xce.submit({"a": missing}, barrier={"max_attempts": 2, "backoff": {"initial": "100ms"}})
    view = await xce.ended(group)
    assert view.state == "FAILED"
    assert "/no/such/program" in view.message
    assert (view.satisfied_once, view.epoch) == (False, 0)
    assert (await xce.client.group(group)).state == "FAILED"
