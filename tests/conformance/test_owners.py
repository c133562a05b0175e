"""Whose is what: owners, members' owners and their tokens, and standalone claims, as any XCE must keep them apart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gangflow.errors import Conflict, NotFound, SpecError, Unauthorized, XceError
from gangflow.xce.rest.aclient import AsyncClient
from tests.conformance.conftest import DEADLINE_S, Xce
from tests.conformance.test_groups import job, replicas

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def shared(xce: Xce, alice: str, bob: str) -> str:
    """A running group of alice's, with a member of bob's."""
    both = await xce.owner(alice), await xce.owner(bob)
    delegation = (await both[1].make_token(kind="delegation")).token
    members = {"a": job("echo $SECRET; sleep 300", environment={"SECRET": "alices"}), "b": replicas(2, owner=bob)}
    spec = {"name": xce.name(), "members": members}
    with pytest.raises(Unauthorized) as refusal:
        await both[0].submit(spec)
    assert (refusal.value.problem, "members.b.replica_set.owner" in refusal.value.message) == ("forbidden", True)
    group = (await both[0].submit(spec, delegation=[delegation])).id
    await xce.running(group)
    for client in both:
        await client.close()
    return group


async def test_an_owner_has_his_own_groups_and_no_others(xce: Xce) -> None:
    name, other = xce.name(), xce.name()
    async with await xce.owner(name) as alice, await xce.owner(other) as carol:
        seq = (await alice.healthz()).seq
        group = (await alice.submit({"name": xce.name(), "members": {"a": job()}})).id
        view = await xce.running(group)
        assert (view.owner, view.member("a").owner) == (name, name)
        assert [each.id for each in (await alice.groups()).groups] == [group]
        assert [owner.owner for owner in (await alice.owners()).owners] == [name]
        assert (await alice.owners()).owners[0].held["cpu"] == 100
        calls = (
            carol.group(group), carol.group(view.name), carol.why(group), carol.cancel(group), carol.suspend(group),
            carol.scale(group, {"a": 1}), carol.kv_get(group, "x"), carol.kv_put(group, "x", "1"), carol.beats(group),
            carol.log(group, "a", 0), carol.claims(group), carol.restart(group, "a", 0, 1), carol.take_coordination(group),
            carol.changes(group), carol.stop_member(group, "a"),
        )  # fmt: skip
        for call in calls:
            with pytest.raises(NotFound):
                await call
        assert (await carol.groups()).groups == (await carol.queue()).groups == (await carol.owners()).owners == ()
        assert not [held for host in (await carol.hosts()).hosts for held in host.slots]
        until = (await xce.client.healthz()).seq
        assert group not in [event.group async for event in carol.events(seq, until=until)]
        assert group in [event.group async for event in alice.events(seq, until=until)]
        with pytest.raises(Conflict) as taken:
            await carol.submit({"name": view.name, "members": {"a": job()}})
        assert group not in str(taken.value)
        for call in (alice.close_host("h0"), alice.signal(group, "a", 0, 1), alice.make_token(other)):
            with pytest.raises(Unauthorized):
                await call
        await alice.cancel(group)
        assert (await xce.ended(group)).state == "CANCELLED"


async def test_a_members_owner_has_his_member_only(xce: Xce) -> None:
    """Stop, restart, scale, drain and logs of that member; the group's state, and nothing of the others."""
    alice, bob = xce.name(), xce.name()
    group = await shared(xce, alice, bob)
    async with await xce.owner(bob) as client:
        view = await client.group(group)
        assert (view.state, [member.name for member in view.members], view.document) == ("RUNNING", ["b"], None)
        assert "alices" not in view.model_dump_json()
        await client.log(group, "b", 0)
        await client.restart(group, "b", 0, 1)
        await xce.until(group, lambda view: view.slot("b", 0).incarnation == 2 and view.state == "RUNNING")
        await client.scale(group, {"b": 2})
        for hidden in (client.log(group, "a", 0), client.restart(group, "a", 0, 1), client.stop_member(group, "a"),
                       client.scale(group, {"a": 1}), client.drain_slot(group, "a", 0, 1)):  # fmt: skip
            with pytest.raises(NotFound):
                await hidden
        for forbidden in (client.cancel(group), client.suspend(group), client.restart_group(group), client.kv_list(group),
                          client.take_coordination(group), client.report(group, "b", 0, 2, "hung")):  # fmt: skip
            with pytest.raises(Unauthorized):
                await forbidden
        assert {owner.owner: owner.members for owner in (await client.owners()).owners} == {bob: 1}
        await client.stop_member(group, "b")
        await xce.until(group, lambda view: not any(slot.tasks for slot in view.member("b").slots))
        assert (await client.group(group)).stopped == ("b",)


async def test_a_token_ends(xce: Xce) -> None:
    """Nothing that was made has to be remembered; what was not made, or has expired, opens nothing."""
    token = (await xce.client.make_token(xce.name(), ttl_s=0.5)).token
    async with xce.connect(token) as short, asyncio.timeout(DEADLINE_S):
        assert await _refused_at_last(short)
    async with xce.connect(token[:-2] + "AA") as forged:
        with pytest.raises(Unauthorized):
            await forged.groups()


async def _refused_at_last(client: AsyncClient) -> bool:
    try:
        while True:
            await client.groups()
    except Unauthorized:
        return True


def using(claim: str, **more: Any) -> dict[str, Any]:
    return {"name": "data", "uses": claim, **more}


async def test_a_standalone_claim_outlives_its_users(xce: Xce) -> None:
    """Scenario 66: made once, used by several, deleted when nobody uses it any more."""
    name = xce.name()
    made = await xce.client.create_claim({"name": name})
    assert made.id == name
    first = await xce.submit({"a": job("test -d $XCE_CLAIM_DATA && sleep 300")}, claims=[using(name)])
    second = await xce.submit({"a": job("test -d $XCE_CLAIM_DATA && sleep 300")}, claims=[using(name)])
    await xce.running(first)
    await xce.running(second)
    claim = await xce.client.claim(name)
    assert (claim.state, claim.standalone, set(claim.holders)) == ("READY", True, {first, second})
    with pytest.raises(XceError) as refusal:
        await xce.client.delete_claim(name)
    assert (refusal.value.status, refusal.value.problem) == (409, "in_use")
    assert first in refusal.value.message
    for group in (first, second):
        await xce.client.cancel(group)
        await xce.ended(group)
    assert (await xce.client.claim(name)).state == "READY"
    deleted = await xce.client.delete_claim(name)
    async with asyncio.timeout(DEADLINE_S):
        async for event in xce.client.events(deleted.seq - 1):
            if event.type == "ClaimForgotten" and event.data["claim"] == name:
                break
    with pytest.raises(NotFound):
        await xce.client.claim(name)


async def test_an_exclusive_claim_is_one_groups_at_a_time(xce: Xce) -> None:
    """Who waits for it holds nothing, and says for what and for whom it waits."""
    name = xce.name()
    await xce.client.create_claim({"name": name})
    first = await xce.submit({"a": job()}, claims=[using(name, access="exclusive")])
    await xce.running(first)
    second = await xce.submit({"a": job()}, claims=[using(name, access="exclusive")])
    view = await xce.until(second, lambda view: view.reason is not None and view.reason.code == "WAITING_CLAIMS")
    assert view.reason is not None
    assert (view.state, name in view.reason.text) == ("PENDING", True)
    assert first in (view.reason.text + view.reason.blocker)
    assert not [held for host in (await xce.client.hosts()).hosts for held in host.slots if held.group == second]
    await xce.client.cancel(first)
    await xce.running(second)
    assert (await xce.client.claim(name)).holders == (second,)


async def test_a_retained_claim_stands_alone_after_its_group(xce: Xce) -> None:
    group = await xce.submit({"a": job("echo kept > $XCE_CLAIM_CKPT/file")}, claims=[{"name": "ckpt", "retain": True}])
    before = await xce.ended(group)
    claim = await xce.client.claim(f"{group}-ckpt")
    assert (claim.state, claim.standalone, claim.owner) == ("READY", True, before.owner)
    again = await xce.submit({"a": job("test $(cat $XCE_CLAIM_DATA/file) = kept")}, claims=[using(f"{group}-ckpt")])
    assert (await xce.ended(again)).state == "SUCCEEDED"


async def test_claims_are_their_owners(xce: Xce) -> None:
    """To whoever may not name their owner they are not there; by his delegation they are."""
    name, mine = xce.name(), xce.name()
    async with await xce.owner(mine) as alice, await xce.owner(xce.name()) as carol:
        await alice.create_claim({"name": name})
        assert (await alice.claim(name)).owner == mine
        for call in (carol.claim(name), carol.delete_claim(name)):
            with pytest.raises(NotFound):
                await call
        assert (await carol.claims()).claims == ()
        spec = {"name": xce.name(), "members": {"a": job()}, "claims": [using(name)]}
        with pytest.raises(SpecError) as unknown:
            await carol.submit(spec)
        assert [problem.path for problem in unknown.value.problems] == ["claims[0].uses"]
        delegation = (await alice.make_token(kind="delegation")).token
        group = (await carol.submit(spec, delegation=[delegation])).id
        await xce.running(group)
        assert (await carol.claim(name)).holders == (group,)
        assert (await alice.claim(name)).holders == ()
        with pytest.raises(XceError) as in_use:
            await alice.delete_claim(name)
        assert (in_use.value.problem, group in in_use.value.message) == ("in_use", False)
