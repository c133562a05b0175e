"""What can be done to groups, members, hosts and claims that are there, as any XCE must do it through the contract."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from gangflow.errors import Conflict, NotFound, Unauthorized, XceError
from gangflow.xce.rest.schema import ChangeView, GroupView
from tests.conformance.conftest import Xce
from tests.conformance.test_groups import job, replicas

pytestmark = pytest.mark.asyncio(loop_scope="session")


def serving(view: GroupView, member: str = "b") -> list[int]:
    """The indexes of a member's slots that are READY and in its target."""
    found = next(each for each in view.members if each.name == member)
    return [slot.index for slot in found.slots if slot.state == "READY" and not slot.out]


async def over(xce: Xce, group: str, change: ChangeView | None) -> ChangeView:
    """The change once it is over."""
    assert change is not None
    await xce.until(group, lambda view: any(each.id == change.id and each.state in {"DONE", "FAILED"} for each in view.changes))
    return await xce.client.change(group, change.id)


@pytest_asyncio.fixture(loop_scope="session")
async def claim(xce: Xce) -> AsyncIterator[str]:
    """A standalone claim, gone after the test."""
    name = f"c-{uuid.uuid4().hex[:12]}"
    await xce.client.create_claim({"name": name})
    yield name
    for view in (await xce.client.groups(["live"])).groups:
        await xce.client.cancel(view.id)
        await xce.ended(view.id)
    await xce.client.delete_claim(name)


async def test_suspend_and_resume(xce: Xce) -> None:
    group = await xce.submit({"a": job(), "done": job("exit 0", primary=False), "b": replicas(2)})
    before = await xce.until(group, lambda view: view.state == "RUNNING" and view.slot("done", 0).state == "DONE")
    moved = await xce.client.suspend(group, "at night")
    assert moved.state in {"SUSPENDING", "SUSPENDED"}
    view = await xce.until(group, lambda view: view.state == "SUSPENDED")
    assert view.lsf == "PSUSP"
    assert view.reason is not None
    assert view.reason.code == "SUSPENDED"
    assert not [slot for member in view.members for slot in member.slots if slot.tasks]
    assert (await xce.client.suspend(group)).state == "SUSPENDED", "again is as well"
    await xce.client.resume(group)
    view = await xce.running(group)
    assert view.submitted_ms == before.submitted_ms
    assert (view.slot("a", 0).incarnation, view.slot("done", 0).incarnation) == (2, 1)
    with pytest.raises(Conflict, match="RUNNING"):
        await xce.client.resume(group)
    await xce.client.cancel(group)
    await xce.ended(group)
    with pytest.raises(Conflict, match="CANCELLED"):
        await xce.client.suspend(group)


async def test_a_group_is_restarted(xce: Xce) -> None:
    group = await xce.submit({"a": job(), "b": replicas(1)})
    await xce.running(group)
    await xce.client.restart_group(group, "once more")
    view = await xce.until(group, lambda view: view.epoch == 2 and view.state == "RUNNING")
    assert [slot.incarnation for member in view.members for slot in member.slots] == [2, 2]


async def test_a_change_of_targets_is_durable_and_can_be_read(xce: Xce) -> None:
    group = await xce.submit({"a": job(), "b": replicas(1, min_replicas=1, max_replicas=4)})
    await xce.running(group)
    answer = await xce.client.scale(group, {"b": 3})
    change = await over(xce, group, answer.change)
    assert (change.state, change.targets["b"], change.before["b"]) == ("DONE", 3, 1)
    await xce.until(group, lambda view: serving(view) == [0, 1, 2])
    assert (await xce.client.scale(group, {"b": 3})).change is None, "these targets stand already"
    change = await over(xce, group, (await xce.client.scale(group, {"b": 1})).change)
    view = await xce.client.group(group)
    assert serving(view) == [0]
    assert [each.id for each in (await xce.client.changes(group)).changes][-1] == change.id
    with pytest.raises(NotFound):
        await xce.client.change(group, "c99")


@pytest.mark.parametrize(
    ("targets", "problem"),
    [({"b": 5}, "max_replicas"), ({"b": 0}, "min_replicas"), ({"a": 2}, "job"), ({"bb": 2}, "did you mean 'b'")],
    ids=["above", "below", "job", "unknown"],
)
async def test_targets_that_are_none_are_refused(xce: Xce, targets: dict[str, int], problem: str) -> None:
    group = await xce.submit({"a": job(), "b": replicas(1, min_replicas=1, max_replicas=4)})
    with pytest.raises(XceError, match=problem) as refused:
        await xce.client.scale(group, targets)
    assert refused.value.status == 422
    assert (await xce.client.group(group)).changes == ()


async def test_what_does_not_fit_says_what_is_short(xce: Xce) -> None:
    large = replicas(1, min_replicas=1, max_replicas=64, resources={"cpu": 1})
    group = await xce.submit({"b": large})
    await xce.running(group)
    with pytest.raises(Conflict, match="cpu") as refused:
        await xce.client.scale(group, {"b": 64})
    assert refused.value.problem == "no_fit"


async def test_a_member_is_stopped_and_brought_back(xce: Xce) -> None:
    group = await xce.submit({"a": job(), "b": replicas(1)})
    await xce.running(group)
    await xce.client.stop_member(group, "b")
    view = await xce.until(group, lambda view: view.slot("b", 0).state == "RETIRED")
    assert (view.state, view.stopped) == ("RUNNING", ("b",))
    await xce.client.restart(group, "b", 0, view.slot("b", 0).incarnation)
    view = await xce.until(group, lambda view: serving(view) == [0])
    assert view.stopped == ()
    with pytest.raises(NotFound):
        await xce.client.stop_member(group, "c")


async def test_a_slot_is_drained(xce: Xce) -> None:
    group = await xce.submit({"a": job(), "b": replicas(1, drain="200ms")})
    view = await xce.running(group)
    await xce.client.drain_slot(group, "b", 0, view.slot("b", 0).incarnation)
    view = await xce.until(group, lambda view: view.slot("b", 0).incarnation == 2 and serving(view) == [0])
    exit = view.slot("b", 0).exit
    assert exit is not None
    assert exit.cause == "drained"
    with pytest.raises(XceError) as refused:
        await xce.client.drain_slot(group, "b", 0, 1)
    assert refused.value.problem == "superseded"


async def test_a_host_is_closed_and_opened(xce: Xce) -> None:
    names = [host.name for host in (await xce.client.hosts()).hosts]
    try:
        for name in names:
            moved = await xce.client.close_host(name, message="a new board")
            assert moved.state == "CLOSED"
        shown = (await xce.client.hosts()).hosts
        assert {(host.state, host.closed) for host in shown} == {("CLOSED", "a new board")}
        group = await xce.submit({"a": job("exit 0")})
        view = await xce.client.group(group)
        assert view.state == "PENDING"
    finally:
        for name in names:
            assert (await xce.client.open_host(name)).state == "UP"
    assert (await xce.ended(group)).state == "SUCCEEDED"
    with pytest.raises(NotFound):
        await xce.client.close_host("nowhere")


async def test_a_standalone_claim_is_had_in_turn(xce: Xce, claim: str) -> None:
    await xce.client.claim(claim)
    alone = [{"name": "data", "uses": claim, "access": "exclusive"}]
    first = await xce.submit({"a": job()}, claims=alone)
    await xce.running(first)
    second = await xce.submit({"a": job("test -d $XCE_CLAIM_DATA")}, claims=alone)
    view = await xce.client.group(second)
    assert view.reason is not None
    assert view.reason.code == "WAITING_CLAIMS"
    assert (await xce.client.claim(claim)).holders == (first,)
    with pytest.raises(Conflict) as refused:
        await xce.client.delete_claim(claim)
    assert refused.value.problem == "in_use"
    await xce.client.cancel(first)
    assert (await xce.ended(second)).state == "SUCCEEDED"
    with pytest.raises(Conflict):
        await xce.client.create_claim({"name": claim})


async def test_a_plain_job(xce: Xce) -> None:
    name = f"c-{uuid.uuid4().hex[:12]}"
    made = await xce.client.submit_job({"name": name, **job("exit 0")})
    view = await xce.ended(made.id)
    assert (view.state, view.plain, [member.name for member in view.members]) == ("SUCCEEDED", True, ["main"])
    assert made.id in [each.id for each in (await xce.client.jobs(name=name)).groups]


async def test_owners_have_what_is_theirs_and_see_nothing_else(xce: Xce) -> None:
    """A group of alice's with a member of bob's: each may do so much, and carol does not know that it exists."""
    tokens = {name: (await xce.client.make_token(name)).token for name in ("alice", "bob", "carol")}
    delegation = (await xce.client.make_token("bob", "delegation")).token
    spec: dict[str, Any] = {"name": f"c-{uuid.uuid4().hex[:12]}", "members": {"a": job(), "b": replicas(1, owner="bob")}}
    async with xce.connect(tokens["alice"]) as alice, xce.connect(tokens["bob"]) as bob, xce.connect(tokens["carol"]) as carol:
        with pytest.raises(XceError) as refused:
            await alice.submit(spec)
        assert refused.value.status == 403, "she may not name bob"
        group = (await alice.submit(spec, delegation=[delegation])).id
        view = await xce.running(group)
        assert (view.owner, [member.owner for member in view.members]) == ("alice", ["alice", "bob"])
        seen = await bob.group(group)
        assert [member.name for member in seen.members] == ["b"]
        assert seen.document is None
        for forbidden in (bob.cancel(group), bob.suspend(group), bob.stop_member(group, "a")):
            with pytest.raises((Unauthorized, NotFound)):
                await forbidden
        for unknown in (carol.group(group), carol.cancel(group), carol.stop_member(group, "b")):
            with pytest.raises(NotFound):
                await unknown
        assert group not in [each.id for each in (await carol.groups()).groups]
        await bob.restart(group, "b", 0, view.slot("b", 0).incarnation)
        await xce.until(group, lambda view: view.slot("b", 0).incarnation == 2)
        await bob.stop_member(group, "b")
        await alice.cancel(group)
        assert (await xce.ended(group)).state == "CANCELLED"
