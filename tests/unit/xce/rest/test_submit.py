"""POST /groups: what is wrong is named by its path, and nothing is created."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest

from gangflow.errors import NotYetError, SpecError, Unauthorized
from gangflow.specs.group import CoStartGroup
from gangflow.specs.member import Job
from gangflow.xce.core.inputs import SubmitGroup
from gangflow.xce.core.state import Answer
from gangflow.xce.rest.aclient import AsyncClient
from tests.unit.xce.rest.fake import FakeController


def document(**job: Any) -> dict[str, Any]:
    return {"name": "mine", "members": {"actor": {"job": {"command": ["true"], **job}}}}


async def test_a_valid_document_is_submitted(admin: AsyncClient, controller: FakeController) -> None:
    submitted = await admin.submit(document(resources={"cpu": 1}))
    assert (submitted.id, submitted.seq) == ("g10", 101)
    command = controller.commands[0]
    assert isinstance(command, SubmitGroup)
    assert command.plan.name == "mine"
    assert command.plan.members[0].command == ("true",)
    assert command.plan.owner
    assert (await admin.group("g10")).document == document(resources={"cpu": 1})


async def test_python_and_json_mean_the_same(admin: AsyncClient, controller: FakeController) -> None:
    await admin.submit(CoStartGroup("mine", members={"actor": Job(["true"], resources={"cpu": 1})}))
    await admin.submit(document(resources={"cpu": 1}))
    first, second = controller.commands
    assert isinstance(first, SubmitGroup)
    assert isinstance(second, SubmitGroup)
    assert first.plan == second.plan


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"comand": ["true"]}, "members.actor.job.comand"),
        ({"resources": {"cpu": -1}}, "members.actor.job.resources.cpu"),
        ({"pack": {"level": "swich"}}, "members.actor.job.pack.level"),
    ],
)
async def test_what_is_wrong_is_named(admin: AsyncClient, controller: FakeController, wrong: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as error:
        await admin.submit(document(**wrong))
    assert path in [problem.path for problem in error.value.problems]
    assert all(problem.expected for problem in error.value.problems)
    assert not controller.commands


async def test_what_is_not_enforced_is_refused(admin: AsyncClient, http: httpx.AsyncClient, controller: FakeController) -> None:
    later = {**document(), "placement": {"mode": "accumulate"}}
    with pytest.raises(NotYetError):
        await admin.submit(later)
    answer = await http.post("/v1/groups", json=later)
    assert (answer.status_code, answer.json()["code"]) == (422, "not_enforced")
    assert not controller.commands


async def test_what_no_host_could_ever_hold_is_refused(
    admin: AsyncClient, http: httpx.AsyncClient, controller: FakeController
) -> None:
    """A slot that no host could ever hold is refused at once, with the largest that there is."""
    with pytest.raises(SpecError, match="largest host has 2") as error:
        await admin.submit(document(resources={"gpus": 8}))
    assert [problem.path for problem in error.value.problems] == ["members.actor.job"]
    with pytest.raises(SpecError, match="largest host has 2") as error:
        await admin.submit({"name": "mine", "job": {"command": ["true"], "resources": {"gpus": 8}}})
    assert [problem.path for problem in error.value.problems] == ["job"]
    answer = await http.post("/v1/groups", json=document(resources={"gpus": 8}))
    assert (answer.status_code, answer.json()["code"]) == (422, "never_fits")
    assert not controller.commands


async def test_a_bad_token_is_refused_before_the_spec_is_read(app: Any, controller: FakeController) -> None:
    from tests.inprocess import InProcess

    async with AsyncClient("http://xce", "guess", transport=InProcess(app)) as stranger:
        with pytest.raises(Unauthorized):
            await stranger.submit({"nonsense": 1})
    assert not controller.commands


async def test_a_repeated_submission_is_not_judged_by_todays_hosts(http: httpx.AsyncClient, controller: FakeController) -> None:
    """What was accepted under a key stays accepted, also when its hosts have gone meanwhile."""
    big, key = document(resources={"gpus": 8}), {"Idempotency-Key": "k"}
    assert (await http.post("/v1/groups", json=big, headers=key)).status_code == 422
    controller.state = replace(controller.state, answers={"admin:k": Answer("digest", 1, 201, "")})
    assert (await http.post("/v1/groups", json=big, headers=key)).status_code == 201
