"""Whom a submission may name: the caller himself, whoever delegated it to him, and, with the admin's token, everybody."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from typing import Any

import pytest

from gangflow.errors import SpecError, Unauthorized, XceError
from gangflow.xce.core.inputs import CreateClaim, SubmitGroup
from gangflow.xce.rest import admitting
from gangflow.xce.rest.aclient import AsyncClient
from gangflow.xce.rest.tokens import Tokens
from tests.inprocess import InProcess
from tests.unit.xce.rest.conftest import ADMIN
from tests.unit.xce.rest.fake import FakeController
from tests.unit.xce.rest.owned import LATER, NOW, owned

AsOwner = Callable[[str], AsyncClient]
TOKENS = Tokens(ADMIN)
JOB = {"command": ["true"], "resources": {"cpu": 1}}
BOBS = TOKENS.delegation_token("bob", LATER)


@pytest.fixture
def controller() -> FakeController:
    return FakeController(owned())


@pytest.fixture
def as_owner(app: object) -> AsOwner:
    return lambda name: AsyncClient("http://xce", TOKENS.owner_token(name, LATER), transport=InProcess(app))


def group(owner: str = "", member: str = "", **more: Any) -> dict[str, Any]:
    rollout = {"replica_set": {**JOB, "replicas": 1, **({"owner": member} if member else {})}}
    return {"name": "mine", **({"owner": owner} if owner else {}), "members": {"a": {"job": JOB}, "rollout": rollout}, **more}


def submitted(controller: FakeController) -> tuple[str, ...]:
    command = controller.commands[-1]
    assert isinstance(command, SubmitGroup)
    return (command.plan.owner, *(member.owner for member in command.plan.members))


async def test_a_group_is_its_submitters(as_owner: AsOwner, admin: AsyncClient, controller: FakeController) -> None:
    async with as_owner("alice") as alice:
        await alice.submit(group())
        assert submitted(controller) == ("alice", "alice", "alice")
        await alice.submit(group("alice", "alice"))
        assert submitted(controller) == ("alice", "alice", "alice")
    await admin.submit(group())
    assert submitted(controller) == (getpass.getuser(),) * 3
    await admin.submit(group("dave", "erin"))
    assert submitted(controller) == ("dave", "dave", "erin")


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (group("bob"), "owner"),
        (group("", "bob"), "members.rollout.replica_set.owner"),
        ({"name": "mine", "job": {**JOB, "owner": "bob"}}, "job.owner"),
    ],
)
async def test_another_owner_takes_his_delegation(
    document: dict[str, Any], path: str, as_owner: AsOwner, controller: FakeController
) -> None:
    """Naming another owner takes admin rights or that owner's delegation token; the path says who was named where."""
    async with as_owner("alice") as alice:
        for delegation in ((), (TOKENS.delegation_token("carol", LATER),)):
            with pytest.raises(Unauthorized) as refusal:
                await alice.submit(document, delegation=delegation)
            assert refusal.value.problem == "forbidden"
            assert f"{path}: expected an owner whom the caller may name (alice" in str(refusal.value)
            assert "(got 'bob')" in str(refusal.value)
        assert not controller.commands
        await alice.submit(document, delegation=[TOKENS.delegation_token("carol", LATER), BOBS])
        assert "bob" in submitted(controller)


@pytest.mark.parametrize("bad", ["guess", TOKENS.owner_token("bob", LATER), TOKENS.delegation_token("bob", NOW), ADMIN])
async def test_a_delegation_that_is_none_is_refused(bad: str, as_owner: AsOwner, controller: FakeController) -> None:
    """It is as if it were not there; who needed it is told that it is not good."""
    async with as_owner("alice") as alice:
        with pytest.raises(Unauthorized, match="token 2 of the 2 that were sent is none, or has expired"):
            await alice.submit(group("", "bob"), delegation=[TOKENS.delegation_token("carol", LATER), bad])
        assert not controller.commands
        await alice.submit(group("", "bob"), delegation=[bad, BOBS])
        await alice.submit(group(), delegation=[bad])


async def test_groups_of_one_owner_are_bounded(
    as_owner: AsOwner, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has too many waits until some have ended; who has none does not wait for him."""
    monkeypatch.setattr(admitting, "LIVE_GROUPS", 1)
    async with as_owner("alice") as alice, as_owner("dave") as dave:
        with pytest.raises(XceError, match="alice has 1 groups that have not ended") as refusal:
            await alice.submit(group())
        assert (refusal.value.status, refusal.value.problem) == (429, "too_many_groups")
        await dave.submit(group())
    assert submitted(controller)[0] == "dave"


async def test_a_plain_job_is_a_group_of_one(as_owner: AsOwner, controller: FakeController) -> None:
    async with as_owner("alice") as alice:
        await alice.submit_job({"name": "one", "job": JOB})
        command = controller.commands[-1]
        assert isinstance(command, SubmitGroup)
        assert (command.plan.plain, [member.name for member in command.plan.members]) == (True, ["main"])
        with pytest.raises(SpecError) as error:
            await alice.submit_job(group())
        assert [problem.path for problem in error.value.problems] == ["members"]
        assert [job.name for job in (await alice.jobs()).groups] == ["one"]
        assert [each.name for each in (await alice.groups()).groups] == ["grpo", "one"]


async def test_a_claim_is_its_makers(as_owner: AsOwner, admin: AsyncClient, controller: FakeController) -> None:
    async with as_owner("alice") as alice:
        await alice.create_claim({"name": "mine", "provider": "directory", "parameters": {"path": "/data"}})
        await alice.create_claim({"name": "his", "owner": "bob"}, delegation=[BOBS])
        with pytest.raises(Unauthorized, match="owner: expected"):
            await alice.create_claim({"name": "his", "owner": "bob"})
        for wrong in ("", "a/b", 7):
            with pytest.raises(SpecError):
                await admin.create_claim({"name": "his", "owner": wrong})
    first, second = controller.commands
    assert isinstance(first, CreateClaim)
    assert isinstance(second, CreateClaim)
    assert (first.plan.name, first.plan.parameters, first.owner, second.owner) == ("mine", (("path", "/data"),), "alice", "bob")


async def test_a_claim_of_somebody_else_is_as_if_it_were_not_there(
    as_owner: AsOwner, admin: AsyncClient, controller: FakeController
) -> None:
    """Alice's group uses `data` of hers; carol's cannot, and is not told that there is one."""

    def using(name: str) -> dict[str, Any]:
        return group(claims=[{"name": "d", "uses": name}])

    async with as_owner("alice") as alice, as_owner("carol") as carol:
        await alice.submit(using("data"))
        told = []
        for name in ("data", "nothing"):
            with pytest.raises(SpecError) as error:
                await carol.submit(using(name))
            told.append(str(error.value).replace(name, "…"))
        assert told[0] == told[1]
        assert "claims[0].uses" in told[0]
        with pytest.raises(SpecError, match="did you mean 'data'"):
            await alice.submit(using("dat"))
        await carol.submit(using("data"), delegation=[TOKENS.delegation_token("alice", LATER)])
    await admin.submit(using("secret"))
