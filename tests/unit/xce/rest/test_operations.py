"""Operators' and owners' calls: each as the command that it is, and what it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import httpx
import pytest

from gangflow.errors import Conflict, NotFound, Unauthorized, XceError
from gangflow.xce.core import inputs as inp
from gangflow.xce.core.inputs import Command, Reply
from gangflow.xce.core.state import Change, ChangeState, HostState
from gangflow.xce.rest.access import COMMANDS_PER_CALLER
from gangflow.xce.rest.aclient import AsyncClient
from gangflow.xce.rest.tokens import Tokens
from tests.inprocess import InProcess
from tests.unit.xce.rest.conftest import ADMIN
from tests.unit.xce.rest.fake import FakeController
from tests.unit.xce.rest.owned import LATER, owned

AsOwner = Callable[[str], AsyncClient]


@pytest.fixture
def controller() -> FakeController:
    return FakeController(owned())


@pytest.fixture
def as_owner(app: object) -> AsOwner:
    return lambda name: AsyncClient(
        "http://xce", Tokens(ADMIN).owner_token(name, LATER), transport=InProcess(app), patience=0.5
    )


def answering(controller: FakeController, monkeypatch: pytest.MonkeyPatch, reply: Reply) -> None:
    async def command(command: Command) -> Reply:
        controller.commands.append(command)
        return reply

    monkeypatch.setattr(controller, "command", command)


async def test_each_call_is_its_command(admin: AsyncClient, controller: FakeController) -> None:
    await admin.suspend("grpo", "for the night")
    await admin.resume("g1")
    await admin.restart_group("g1", "once more")
    await admin.stop_member("g1", "rollout")
    await admin.drain_slot("g1", "rollout", 0, 3)
    await admin.lift_exclusion("g1", "h7")
    await admin.close_host("h0", message="a fan")
    await admin.close_host("h0", drain=True)
    await admin.open_host("h0")
    await admin.delete_claim("data")
    commands = [replace(command, request=inp.Request()) for command in controller.commands]
    assert commands == [
        inp.SuspendGroup("g1", "for the night"), inp.ResumeGroup("g1"), inp.RestartGroup("g1", "once more"),
        inp.StopMember("g1", "rollout"), inp.DrainSlot("g1", "rollout", 0, 3), inp.LiftExclusion("g1", "h7"),
        inp.CloseHost("h0", False, "a fan"), inp.CloseHost("h0", True), inp.OpenHost("h0"), inp.DeleteClaim("data"),
    ]  # fmt: skip
    assert len({command.request.key for command in controller.commands}) == len(commands)


async def test_what_became_of_it_is_answered(
    admin: AsyncClient, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(controller, monkeypatch, Reply(fields=(("id", "g1"), ("state", "SUSPENDING"))))
    assert (await admin.suspend("g1")).state == "SUSPENDING"
    answering(controller, monkeypatch, Reply(fields=(("host", "h0"), ("state", "CLOSED"))))
    assert (await admin.close_host("h0")).state == "CLOSED"


async def test_bodies_of_commands_may_be_left_out(http: httpx.AsyncClient, controller: FakeController) -> None:
    for path in (
        "groups/g1:suspend",
        "groups/g1:resume",
        "groups/g1:restart",
        "hosts/h0:close",
        "hosts/h0:drain",
        "hosts/h0:open",
    ):
        assert (await http.post(f"/v1/{path}")).status_code == 200
    assert (await http.post("/v1/groups/g1:suspend", json={"massage": "x"})).status_code == 422


async def test_a_scale_answers_with_its_change(
    admin: AsyncClient, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change is accepted, not done; no change is no change."""
    answering(controller, monkeypatch, Reply(202, fields=(("id", "g1"), ("change", "c1"))))
    scaled = await admin.scale("grpo", {"rollout": 2}, timeout_s=1.5)
    command = controller.commands[0]
    assert isinstance(command, inp.ScaleGroup)
    assert (command.group, command.targets, command.timeout_ms) == ("g1", (("rollout", 2),), 1_500)
    assert scaled.change is not None
    assert (scaled.id, scaled.change.id, scaled.change.targets) == ("g1", "c1", {"actor": 1, "rollout": 2})
    assert [(slot.member, slot.index) for slot in scaled.change.ups] == [("rollout", 1)]
    answering(controller, monkeypatch, Reply(fields=(("id", "g1"), ("change", ""))))
    assert (await admin.scale("grpo", {"rollout": 2})).change is None
    reply = Reply(409, "no_fit", "gpus: 1 missing", (("id", "g1"), ("shortfall.gpus", 1_000)))
    answering(controller, monkeypatch, reply)
    with pytest.raises(Conflict, match="gpus: 1 missing") as refusal:
        await admin.scale("g1", {"rollout": 4})
    assert (refusal.value.status, refusal.value.problem, refusal.value.fields["shortfall.gpus"]) == (409, "no_fit", 1_000)
    reply = Reply(422, "invalid", "at most 4 replicas of rollout, not 9", (("id", "g1"), ("path", "targets.rollout")))
    answering(controller, monkeypatch, reply)
    with pytest.raises(XceError) as refusal:
        await admin.scale("g1", {"rollout": 9})
    assert (refusal.value.message, refusal.value.fields["path"]) == (reply.message, "targets.rollout")


async def test_changes_are_listed_and_found(admin: AsyncClient, controller: FakeController) -> None:
    assert [change.id for change in (await admin.changes("g1")).changes] == ["c1"]
    change = await admin.change("g1", "c1")
    assert (change.seq, change.state, change.over, change.ended_ms) == (100, "DONE", True, 1_800)
    with pytest.raises(NotFound, match="it keeps c1"):
        await admin.change("g1", "c9")
    other = Change("c2", ChangeState.PLACING, (("actor", 1),), message="waits behind g2")
    group = controller.state.groups["g1"]
    controller.state = replace(controller.state, groups={"g1": replace(group, changes=(*group.changes, other))})
    assert [change.over for change in (await admin.group("g1")).changes] == [True, False]


async def test_a_members_owner_sees_a_change_of_his_member(as_owner: AsOwner) -> None:
    async with as_owner("bob") as bob:
        assert (await bob.change("g1", "c1")).targets == {"rollout": 2}
        assert [change.targets for change in (await bob.group("g1")).changes] == [{"rollout": 2}]


async def test_slots_and_members_say_what_they_are(admin: AsyncClient) -> None:
    view = await admin.group("g1")
    assert [(member.id, member.owner) for member in view.members] == [("g1.actor", "alice"), ("g1.rollout", "bob")]
    assert [slot.id for slot in view.member("rollout").slots] == ["g1.rollout[0]", "g1.rollout[1]"]
    assert (view.stopped, view.member("actor").stopped, view.member("rollout").stopped) == (("actor",), True, False)


async def test_a_closed_host_says_why(admin: AsyncClient, controller: FakeController) -> None:
    closed = replace(controller.state.hosts["h0"], state=HostState.CLOSED, closed="a fan", draining=True)
    controller.state = replace(controller.state, hosts={**controller.state.hosts, "h0": closed})
    host = (await admin.hosts()).hosts[0]
    assert (host.lsf, host.closed, host.draining) == ("closed", "a fan", True)


async def test_owners_are_charged_for_their_members(admin: AsyncClient, as_owner: AsOwner) -> None:
    """Bob's member runs in alice's group: what it holds is his."""
    owners = {owner.owner: owner for owner in (await admin.owners()).owners}
    assert list(owners) == ["alice", "bob", "carol"]
    assert owners["bob"].held == {"cpu": 1_000, "mem": 512, "gpus": 500, "ports": 1}
    assert (owners["bob"].groups, owners["bob"].members, owners["bob"].slots) == (0, 1, 1)
    assert (owners["alice"].groups, owners["alice"].slots, owners["alice"].claims) == (1, 1, 1)
    assert (owners["carol"].groups, owners["carol"].held) == (1, {})
    async with as_owner("bob") as bob:
        assert [owner.owner for owner in (await bob.owners()).owners] == ["bob"]


async def test_claims_are_found_by_id_with_their_holders(admin: AsyncClient, as_owner: AsOwner) -> None:
    data = await admin.claim("data")
    assert (data.seq, data.standalone, data.owner, data.holders) == (100, True, "alice", ("g1",))
    own = await admin.claim("g1/rollout[0]/cache")
    assert (own.standalone, own.owner, own.member, own.index) == (False, "alice", "rollout", 0)
    used = {claim.name: claim for claim in (await admin.group("g1")).claims}
    assert (used["data"].id, used["data"].access) == ("data", "shared")
    assert [claim.id for claim in (await admin.claims("g1")).claims] == ["g1/ckpt", "g1/rollout[0]/cache", "data"]
    async with as_owner("carol") as carol:
        assert [claim.id for claim in (await carol.claims()).claims] == ["secret"]
        with pytest.raises(NotFound):
            await carol.claim("data")
    async with as_owner("bob") as bob:
        assert [claim.id for claim in (await bob.claims()).claims] == ["g1/rollout[0]/cache"]


async def test_tokens_are_made_by_whom_they_are_for(admin: AsyncClient, as_owner: AsOwner, controller: FakeController) -> None:
    made = await admin.make_token("dave", ttl_s=60)
    assert (made.owner, made.kind, made.expires_ms) == ("dave", "owner", controller.now_ms() + 60_000)
    assert Tokens(ADMIN).check(made.token, controller.now_ms()) is not None
    async with as_owner("alice") as alice:
        own = await alice.make_token(kind="delegation")
        assert Tokens(ADMIN).delegated(own.token, controller.now_ms()) == "alice"
        for owner, kind, path in (("bob", "delegation", "owner"), ("alice", "owner", "kind"), ("bob", "owner", "owner")):
            with pytest.raises(Unauthorized, match=f"{path}: expected a delegation token for alice himself"):
                await alice.make_token(owner, kind)
    for owner in ("", "a/b", "a:b", "é", "x" * 64, "../etc"):
        with pytest.raises(XceError) as refusal:
            await admin.make_token(owner)
        assert refusal.value.status == 422
    assert not controller.commands


async def test_a_name_that_is_taken_is_taken_by_somebody(
    as_owner: AsOwner, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are the cluster's: that one is taken can be seen; whose group it is, and how it is, cannot."""
    job = {"name": "other", "members": {"a": {"job": {"command": ["true"], "resources": {"cpu": 1}}}}}
    reply = Reply(409, "conflict", "a group called 'other' lives already: g2 is PENDING", (("id", "g2"),))
    answering(controller, monkeypatch, reply)
    async with as_owner("alice") as alice, as_owner("carol") as carol:
        with pytest.raises(Conflict) as refusal:
            await alice.submit(job)
        assert str(refusal.value) == "the name is taken"
        with pytest.raises(Conflict, match="g2 is PENDING"):
            await carol.submit(job)
        answering(controller, monkeypatch, Reply(409, "conflict", "a claim called 'data' exists", (("id", "data"),)))
        with pytest.raises(Conflict, match="the name is taken"):
            await carol.create_claim({"name": "data"})
        answering(controller, monkeypatch, Reply(409, "in_use", "claim data is used by g1, g2", (("groups", "g1,g2"),)))
        with pytest.raises(XceError, match="used by g1, another group") as hidden:
            await alice.delete_claim("data")
        assert hidden.value.fields == {"groups": "g1,another group"}


async def test_a_caller_who_floods_waits_for_himself(
    admin: AsyncClient, as_owner: AsOwner, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands of one caller that wait are bounded: 429 with Retry-After; another caller's pass."""
    gate = asyncio.Event()

    async def command(command: Command) -> Reply:
        controller.commands.append(command)
        if command.request.actor == "owner/alice":
            await gate.wait()
        return Reply()

    monkeypatch.setattr(controller, "command", command)
    async with as_owner("alice") as alice:
        alice.patience = 0.01
        waiting = [asyncio.create_task(alice.cancel("g1")) for _ in range(COMMANDS_PER_CALLER)]
        async with asyncio.timeout(30):
            while len(controller.commands) < COMMANDS_PER_CALLER:
                await asyncio.sleep(0)
        with pytest.raises(XceError, match="waiting already") as refusal:
            await alice.cancel("g1")
        assert (refusal.value.status, refusal.value.problem) == (429, "busy")
        await admin.cancel("g1")
        gate.set()
        await asyncio.gather(*waiting)
        await alice.cancel("g1")
