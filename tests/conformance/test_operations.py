"""What operators and owners do to groups, members, slots and hosts, as any XCE must do it."""

from __future__ import annotations

import uuid

import pytest

from gangflow.errors import Conflict, NotFound, SpecError, Superseded, XceError
from gangflow.xce.rest.schema import ChangeView, GroupView
from tests.conformance.conftest import Xce
from tests.conformance.test_groups import job, replicas

pytestmark = pytest.mark.asyncio(loop_scope="session")


def holds_nothing(view: GroupView) -> bool:
    return not any(slot.tasks for member in view.members for slot in member.slots)


async def change_over(xce: Xce, group: str, change: str) -> ChangeView:
    """The change, as soon as it is DONE or FAILED."""
    await xce.until(group, lambda view: any(each.id == change and each.over for each in view.changes))
    return await xce.client.change(group, change)


# --- suspend, resume, restart -------------------------------------------------------------------------------------------


async def test_a_suspended_group_holds_nothing_and_comes_back(xce: Xce) -> None:
    """Scenario 11: everything it holds is given back, and it waits for a resume; its claims and its place in time stay."""
    group = await xce.submit({"a": job("test -d $XCE_CLAIM_CKPT; sleep 300"), "b": replicas(2)}, claims=[{"name": "ckpt"}])
    before = await xce.running(group)
    assert (await xce.client.suspend(group, "for the night")).state in ("SUSPENDING", "SUSPENDED")
    view = await xce.until(group, lambda view: view.state == "SUSPENDED")
    assert (view.lsf, view.satisfied_now, view.satisfied_once) == ("PSUSP", False, True)
    assert holds_nothing(view)
    assert view.reason is not None
    assert view.reason.code == "SUSPENDED"
    assert [claim.state for claim in view.claims] == ["READY"]
    assert not [held for host in (await xce.client.hosts()).hosts for held in host.slots if held.group == group]
    assert (await xce.client.suspend(group)).state == "SUSPENDED"
    await xce.client.resume(group)
    after = await xce.running(group)
    assert (after.submitted_ms, after.claims[0].path) == (before.submitted_ms, before.claims[0].path)
    assert after.slot("b", 1).incarnation == 2
    with pytest.raises(Conflict):
        await xce.client.resume(group)


async def test_what_waits_is_suspended_at_once_and_can_be_cancelled(xce: Xce) -> None:
    hosts = (await xce.client.hosts()).hosts
    for host in hosts:
        await xce.client.close_host(host.name)
    group = await xce.submit({"a": job()})
    assert (await xce.client.suspend(group)).state == "SUSPENDED"
    await xce.client.cancel(group)
    assert (await xce.ended(group)).state == "CANCELLED"
    for call in (xce.client.suspend(group), xce.client.resume(group), xce.client.restart_group(group)):
        with pytest.raises(Conflict):
            await call


async def test_an_operator_restarts_a_group(xce: Xce) -> None:
    """All of it, on its places, in its next epoch, outside budgets."""
    group = await xce.submit({"a": job(), "b": replicas(2)})
    before = await xce.running(group)
    assert (await xce.client.restart_group(group, "once more")).state == "RESTARTING"
    after = await xce.until(group, lambda view: view.state == "RUNNING" and view.epoch == 2)
    assert [slot.incarnation for member in after.members for slot in member.slots] == [2, 2, 2]
    assert [slot.hosts for slot in after.member("b").slots] == [slot.hosts for slot in before.member("b").slots]


# --- members and slots ----------------------------------------------------------------------------------------------------


async def test_a_member_is_stopped_and_brought_back_by_hand(xce: Xce) -> None:
    group = await xce.submit({"a": job(), "b": replicas(2)})
    await xce.running(group)
    await xce.client.stop_member(group, "b")
    view = await xce.until(group, lambda view: not any(slot.tasks for slot in view.member("b").slots))
    assert (view.stopped, view.member("b").stopped, view.slot("a", 0).incarnation) == (("b",), True, 1)
    assert not view.terminal
    await xce.client.restart(group, "b", 0, view.slot("b", 0).incarnation)
    view = await xce.until(group, lambda view: view.slot("b", 0).state == "READY")
    assert (view.stopped, view.slot("b", 0).incarnation) == ((), 2)
    with pytest.raises(NotFound):
        await xce.client.stop_member(group, "c")


async def test_the_end_of_the_last_primary_job_by_hand_ends_the_group(xce: Xce) -> None:
    group = await xce.submit({"a": job(), "b": replicas()})
    await xce.running(group)
    await xce.client.stop_member(group, "a")
    view = await xce.ended(group)
    assert (view.state, view.cause) == ("CANCELLED", "user")


async def test_a_slot_is_drained_and_its_rule_decides(xce: Xce) -> None:
    group = await xce.submit({"a": job(), "b": replicas(2, drain="100ms")})
    await xce.running(group)
    await xce.client.drain_slot(group, "b", 0, 1)
    view = await xce.until(group, lambda view: view.slot("b", 0).incarnation == 2 and view.state == "RUNNING")
    exit = view.slot("b", 0).exit
    assert exit is not None
    assert (exit.cause, exit.incarnation, view.slot("b", 1).incarnation) == ("drained", 1, 1)
    with pytest.raises(Superseded):
        await xce.client.drain_slot(group, "b", 0, 1)


async def test_a_runtime_limit_ends_an_incarnation(xce: Xce) -> None:
    group = await xce.submit({"a": job(runtime_limit="500ms")})
    view = await xce.ended(group)
    exit = view.slot("a", 0).exit
    assert exit is not None
    assert (view.state, exit.cause, view.member("a").runtime_limit_ms) == ("FAILED", "run_limit", 500)


# --- scale --------------------------------------------------------------------------------------------------------------------


async def test_targets_change_while_a_group_runs(xce: Xce) -> None:
    """Scenario 40: one durable change, up and down; the ones that stay are not disturbed."""
    group = await xce.submit({"a": job(), "b": replicas(1, max_replicas=3), "c": replicas(2, min_replicas=1)})
    before = await xce.running(group)
    scaled = await xce.client.scale(group, {"b": 3, "c": 1})
    assert (scaled.id, scaled.change is not None) == (group, True)
    assert scaled.change is not None
    assert (scaled.change.targets["b"], scaled.change.before["b"], scaled.change.targets["c"]) == (3, 1, 1)
    change = await change_over(xce, group, scaled.change.id)
    assert (change.state, change.message, change.ups, change.downs) == ("DONE", "", (), ())
    view = await xce.until(group, lambda view: view.member("b").ready == 3)
    assert (view.member("b").target, view.member("c").target) == (3, 1)
    assert [view.slot(name, 0).incarnation for name in "abc"] == [before.slot(name, 0).incarnation for name in "abc"]
    gone = next(slot for slot in view.member("c").slots if slot.out)
    assert (gone.index, gone.tasks) == (1, ())
    assert [each.id for each in (await xce.client.changes(group)).changes] == [change.id]
    assert (await xce.client.scale(group, {"b": 3})).change is None


async def test_what_cannot_be_a_target_is_refused_whole(xce: Xce) -> None:
    """Scenario 43: outside its limits, of a job, of nobody: with the path; and then nothing has changed."""
    group = await xce.submit({"a": job(), "b": replicas(1, max_replicas=2)})
    await xce.running(group)
    for targets, path in (({"b": 3}, "targets.b"), ({"a": 2}, "targets.a"), ({"b": 2, "nobody": 1}, "targets.nobody")):
        with pytest.raises(XceError) as refusal:
            await xce.client.scale(group, targets)
        assert refusal.value.status in (404, 422), refusal.value
        assert refusal.value.fields.get("path", path) == path
    view = await xce.client.group(group)
    assert (view.member("b").target, view.changes) == (1, ())
    with pytest.raises(NotFound):
        await xce.client.change(group, "c1")


async def test_what_is_not_proved_to_fit_is_refused_with_what_is_short(xce: Xce) -> None:
    """Scenario 40: never half of a change."""
    hosts = [host for host in (await xce.client.hosts()).hosts if host.lsf == "ok"]
    cpu = min(host.counters["cpu"].total for host in hosts) / 1_000
    group = await xce.submit({"a": job(), "b": replicas(1, max_replicas=9, resources={"cpu": cpu * 0.6})})
    await xce.running(group)
    with pytest.raises(Conflict) as refusal:
        await xce.client.scale(group, {"b": 9})
    assert refusal.value.problem == "no_fit"
    assert "b[" in refusal.value.message
    view = await xce.client.group(group)
    assert (view.member("b").target, len(view.member("b").slots)) == (1, 1)


async def test_a_key_scales_once(xce: Xce) -> None:
    group = await xce.submit({"a": job(), "b": replicas(1, max_replicas=3)})
    await xce.running(group)
    key = uuid.uuid4().hex
    first = await xce.client.scale(group, {"b": 2}, key=key)
    assert first.change is not None
    await change_over(xce, group, first.change.id)
    again = await xce.client.scale(group, {"b": 2}, key=key)
    assert again.change is not None
    assert (again.change.id, len((await xce.client.changes(group)).changes)) == (first.change.id, 1)


async def test_a_newer_change_supersedes(xce: Xce) -> None:
    group = await xce.submit({"a": job(), "b": replicas(2, min_replicas=1, max_replicas=3, drain="20s")})
    await xce.running(group)
    first = (await xce.client.scale(group, {"b": 1})).change
    second = (await xce.client.scale(group, {"b": 3})).change
    assert first is not None
    assert second is not None
    older = await xce.client.change(group, first.id)
    assert (older.state, second.id in older.message) == ("FAILED", True)
    assert (await xce.client.group(group)).member("b").target == 3


async def test_targets_of_what_does_not_run_are_only_set(xce: Xce) -> None:
    for host in (await xce.client.hosts()).hosts:
        await xce.client.close_host(host.name)
    group = await xce.submit({"a": job(), "b": replicas(1, max_replicas=3)})
    scaled = await xce.client.scale(group, {"b": 2})
    assert scaled.change is not None
    assert scaled.change.state == "DONE"
    for host in (await xce.client.hosts()).hosts:
        await xce.client.open_host(host.name)
    view = await xce.until(group, lambda view: view.member("b").ready == 2)
    assert view.member("b").target == 2


# --- hosts --------------------------------------------------------------------------------------------------------------------


async def test_a_closed_host_gets_no_new_work_and_keeps_what_runs(xce: Xce) -> None:
    """As `badmin hclose`: what runs there goes on, and everybody who waits for it is told why."""
    runs = await xce.submit({"a": job()})
    before = await xce.running(runs)
    for host in (await xce.client.hosts()).hosts:
        assert (await xce.client.close_host(host.name, message="a fan")).host == host.name
    hosts = (await xce.client.hosts()).hosts
    assert {(host.lsf, host.closed, host.draining) for host in hosts} == {("closed", "a fan", False)}
    waits = await xce.submit({"a": job()})
    view = await xce.until(waits, lambda view: view.reason is not None)
    assert (view.state, holds_nothing(view)) == ("PENDING", True)
    lines = (await xce.client.why(waits, 3)).lines
    assert any("Closed by administrator" in line for line in lines), lines
    for host in hosts:
        await xce.client.open_host(host.name)
    await xce.running(waits)
    after = await xce.client.group(runs)
    assert (after.slot("a", 0).incarnation, after.slot("a", 0).hosts) == (1, before.slot("a", 0).hosts)


async def test_a_drained_host_is_left_by_what_ran_there(xce: Xce) -> None:
    group = await xce.submit({"a": job(), "b": replicas()})
    host = (await xce.running(group)).slot("b", 0).hosts[0]
    await xce.client.close_host(host, drain=True)
    view = await xce.until(
        group,
        lambda view: view.state == "RUNNING" and view.slot("b", 0).incarnation == 2 and view.slot("b", 0).state == "READY",
    )
    exit = view.slot("b", 0).exit
    assert exit is not None
    assert (exit.cause, host in view.slot("b", 0).hosts) == ("drained", False)
    drained = next(each for each in (await xce.client.hosts()).hosts if each.name == host)
    assert (drained.lsf, drained.draining, drained.slots) == ("closed", True, ())


async def test_hosts_and_exclusions_that_there_are_not(xce: Xce) -> None:
    group = await xce.submit({"a": job()})
    host = (await xce.client.hosts()).hosts[0].name
    for call in (
        xce.client.close_host("nowhere"), xce.client.close_host("nowhere", drain=True), xce.client.open_host("nowhere"),
        xce.client.lift_exclusion(group, host), xce.client.lift_exclusion(group, "nowhere"),
    ):  # fmt: skip
        with pytest.raises(NotFound):
            await call


# --- plain jobs ---------------------------------------------------------------------------------------------------------------


async def test_a_plain_job_is_a_group_of_one(xce: Xce) -> None:
    """Scenario 63: `bsub` without a gang: the same life, the same words."""
    name = xce.name()
    submitted = await xce.client.submit_job({"name": name, **job("echo $XCE_MEMBER; exit 0")})
    view = await xce.ended(submitted.id)
    assert (view.state, view.plain, [member.name for member in view.members]) == ("SUCCEEDED", True, ["main"])
    assert (view.members[0].id, view.members[0].slots[0].id) == (f"{view.id}.main", f"{view.id}.main[0]")
    assert (await xce.client.log(submitted.id, "main", 0)).text == "main\n"
    group = await xce.submit({"a": job()})
    assert submitted.id in [each.id for each in (await xce.client.jobs(name=name)).groups]
    assert group not in [each.id for each in (await xce.client.jobs(["live"])).groups]
    with pytest.raises(SpecError):
        await xce.client.submit_job({"name": xce.name(), "members": {"a": job()}})


async def test_a_command_is_words_and_never_a_shells(xce: Xce) -> None:
    words = ["echo", "$(id)", "`id`", ";", "a  b", "$HOME", "*", "'", '"', "\\n", "%s", "{x}"]
    group = await xce.submit({"a": {"job": {"command": words, "resources": {"cpu": 0.1}}}})
    await xce.ended(group)
    assert (await xce.client.log(group, "a", 0)).text == " ".join(words[1:]) + "\n"
