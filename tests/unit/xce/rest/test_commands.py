"""What the server makes of requests: commands with their key, digest, term and actor; refusals as problems."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gangflow.errors import (
    Conflict,
    Fenced,
    JournalFull,
    NotFound,
    Superseded,
    Unauthorized,
    XceError,
)
from gangflow.xce.core.inputs import Command, EndGroup, PutValue, Reply, ReportSlot, RestartSlot
from gangflow.xce.core.plan import Cause
from gangflow.xce.core.state import GroupState, TaskKey
from gangflow.xce.rest.aclient import AsyncClient
from tests.unit.xce.rest.fake import FakeController

AsTask = Callable[..., AsyncClient]


async def test_cancel_and_fail_name_the_group_by_id(admin: AsyncClient, controller: FakeController) -> None:
    await admin.cancel("grpo")
    await admin.fail("g1", "no_quorum", "one rollout of two")
    cancel, fail = controller.commands
    assert isinstance(cancel, EndGroup)
    assert isinstance(fail, EndGroup)
    assert (cancel.group, cancel.goal) == ("g1", GroupState.CANCELLED)
    assert (fail.goal, fail.cause, fail.message) == (GroupState.FAILED, "no_quorum", "one rollout of two")
    assert fail.request.key != cancel.request.key


async def test_verdicts_and_restarts_name_the_incarnation(admin: AsyncClient, controller: FakeController) -> None:
    admin.term = 4
    await admin.report("g1", "rollout", 0, 3, "hung", "no answer for 60 s")
    await admin.restart("g1", "rollout", 0, 3)
    report, restart = controller.commands
    assert isinstance(report, ReportSlot)
    assert isinstance(restart, RestartSlot)
    assert (report.member, report.index, report.incarnation, report.cause) == ("rollout", 0, 3, Cause.HUNG)
    assert (report.request.term, report.request.actor) == (4, "admin")
    assert restart.incarnation == 3


async def test_only_a_coordinators_causes_can_be_reported(admin: AsyncClient, controller: FakeController) -> None:
    with pytest.raises(XceError, match="host_lost") as refusal:
        await admin.report("g1", "rollout", 0, 3, "host_lost")
    assert refusal.value.problem == "invalid_request"
    assert not controller.commands


async def test_the_digest_is_of_method_path_query_and_body(http: httpx.AsyncClient, controller: FakeController) -> None:
    headers = {"Idempotency-Key": "k1"}
    for body in ('{"value":"1"}', '{"value":"1"}', '{"value":"2"}'):
        content = {"content": body, "headers": {**headers, "Content-Type": "application/json"}}
        assert (await http.put("/v1/groups/g1/kv/a", **content)).status_code == 200
    for path in ("b", "b?dry=1", "b?dry=2"):
        json_headers = {**headers, "Content-Type": "application/json"}
        await http.put(f"/v1/groups/g1/kv/{path}", content='{"value":"1"}', headers=json_headers)
    digests = [command.request.digest for command in controller.commands]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 5
    assert {command.request.key for command in controller.commands} == {"admin:k1"}


async def test_two_callers_keys_never_meet(admin: AsyncClient, as_task: AsTask, controller: FakeController) -> None:
    async with as_task() as task:
        await task.kv_put("g1", "a", "1")
    await admin.kv_put("g1", "a", "1")
    assert [command.request.key.split(":")[0] for command in controller.commands] == ["g1/1/actor/0/1/0", "admin"]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Reply(404, "not_found", "gone"), NotFound),
        (Reply(409, "superseded", "newest is 4"), Superseded),
        (Reply(409, "fenced", "term 5 is newer"), Fenced),
        (Reply(409, "conflict", "at version 7"), Conflict),
        (Reply(422, "idempotency_mismatch", "another body"), XceError),
    ],
)
async def test_a_refusal_of_the_machine_reaches_the_caller(
    admin: AsyncClient, controller: FakeController, reply: Reply, expected: type[XceError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 80: an older coordinator is told that it is fenced."""

    async def refuse(_command: Command) -> Reply:
        return reply

    monkeypatch.setattr(controller, "command", refuse)
    with pytest.raises(expected) as refusal:
        await admin.restart("g1", "rollout", 0, 2)
    assert type(refusal.value) is expected
    assert (refusal.value.status, refusal.value.problem, refusal.value.message) == (reply.status, reply.code, reply.message)


async def test_a_full_journal_is_said_so(admin: AsyncClient, controller: FakeController) -> None:
    controller.trouble = JournalFull("no space left on device")
    admin.patience = 0.1
    with pytest.raises(JournalFull, match="no space left"):
        await admin.cancel("g1")
    with pytest.raises(XceError, match="journal_full"):
        await admin._call(_readyz())


async def test_no_token_wrong_token_other_scheme(http: httpx.AsyncClient) -> None:
    for value in ("", "Bearer wrong", "Basic YTph", "Bearer"):
        answer = await http.get("/v1/groups", headers={"Authorization": value})
        assert answer.status_code == 401
        assert answer.json()["code"] == "unauthorized"
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_task_sees_its_own_group_only(as_task: AsTask) -> None:
    async with as_task() as task:
        assert [group.id for group in (await task.groups()).groups] == ["g1"]
        assert (await task.group("grpo")).id == "g1"
        for refused in (task.group("g2"), task.why("g2"), task.kv_get("g2", "a"), task.beats("g2"), task.claims("g2")):
            with pytest.raises(NotFound, match="no group 'g2'"):
                await refused


async def test_a_task_may_not_command(as_task: AsTask, controller: FakeController) -> None:
    async with as_task() as task:
        calls: list[Any] = [
            task.submit({"name": "x"}), task.cancel("g1"), task.fail("g1", "x"), task.report("g1", "rollout", 0, 3, "hung"),
            task.restart("g1", "rollout", 0, 3), task.signal("g1", "rollout", 0, 3), task.take_coordination("g1"), task.hosts(),
            task.queue(),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(Unauthorized):
                await call
    assert not controller.commands
    assert not controller.signals


async def test_a_tasks_write_carries_who_writes(as_task: AsTask, controller: FakeController) -> None:
    async with as_task() as task:
        assert (await task.kv_put("g1", "weights/head", '{"version": 1}', expect=0)).version == 1
    command = controller.commands[0]
    assert isinstance(command, PutValue)
    assert command.writer == TaskKey("g1", 1, "actor", 0, 1, 0)
    assert (command.name, command.expect) == ("weights/head", 0)


async def test_values_are_compared_and_set(admin: AsyncClient) -> None:
    assert (await admin.kv_get("g1", "a/b")).version == 0
    await admin.kv_put("g1", "a/b", "1", expect=0)
    with pytest.raises(Conflict):
        await admin.kv_put("g1", "a/b", "2", expect=0)
    await admin.kv_put("g1", "a/b", "2", expect=1)
    await admin.kv_put("g1", "c", "3")
    value = await admin.kv_get("g1", "a/b")
    assert (value.key, value.value, value.version) == ("a/b", "2", 2)
    assert [each.key for each in (await admin.kv_list("g1")).values] == ["a/b", "c"]
    assert [each.key for each in (await admin.kv_list("g1", "a/")).values] == ["a/b"]


async def test_a_value_is_a_small_json_text_under_a_short_key(admin: AsyncClient, http: httpx.AsyncClient) -> None:
    with pytest.raises(XceError, match="not a JSON text"):
        await admin.kv_put("g1", "a", "{not json")
    with pytest.raises(XceError, match="256 characters"):
        await admin.kv_put("g1", "a" * 300, "1")
    answer = await http.put("/v1/groups/g1/kv/a", json={"value": "1", "expected": 3})
    assert answer.status_code == 422
    assert answer.json()["problems"][0]["path"] == "body.expected"


async def test_a_coordinator_gets_a_term(admin: AsyncClient) -> None:
    assert (await admin.take_coordination("g1")).term == 1
    assert (await admin.take_coordination("g1")).term == 2


@pytest.mark.parametrize("term", ["-1", "x", "1" * 40, "²"])
async def test_a_term_is_a_number(http: httpx.AsyncClient, term: str) -> None:
    answer = await http.post("/v1/groups/g1/coordinator", headers={"XCE-Term": term.encode("utf-8")})
    assert answer.status_code == 422


async def test_signals_go_to_the_present_incarnation_only(admin: AsyncClient, controller: FakeController) -> None:
    await admin.signal("g1", "rollout", 0, 3, 9)
    assert controller.signals == [(TaskKey("g1", 1, "rollout", 0, 3, 0), 9)]
    with pytest.raises(Superseded):
        await admin.signal("g1", "rollout", 0, 2, 9)
    with pytest.raises(NotFound):
        await admin.signal("g1", "rollout", 0, 3, 9, task=1)
    assert len(controller.signals) == 1


@pytest.mark.parametrize("path", ["/v1/groups/g9", "/v1/groups/g1/members/rollout/slots/9/log", "/v1/nothing"])
async def test_what_is_not_there(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(path)
    assert answer.status_code == 404
    assert answer.json()["code"] == "not_found"


async def test_bodies_are_limited_announced_or_not(http: httpx.AsyncClient, controller: FakeController) -> None:
    async def chunks() -> Any:
        for _ in range(30):
            yield b" " * 1_000

    for content in (b" " * 30_000, chunks()):
        answer = await http.put("/v1/groups/g1/kv/a", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 413
        assert answer.json()["code"] == "too_large"
    assert not controller.commands


async def test_malformed_bodies_are_problems_with_paths(http: httpx.AsyncClient) -> None:
    url = "/v1/groups/g1/members/rollout/slots/0:restart"
    for body, path in (("{", "body.1"), ("[]", "body"), ('{"incarnation": "x"}', "body.incarnation"), ("", "body")):
        answer = await http.post(url, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422
        problem = answer.json()
        assert (problem["code"], problem["problems"][0]["path"]) == ("invalid_request", path)
        assert problem["type"] == "urn:gangflow:problem:invalid_request"


async def test_a_fault_inside_tells_nothing(http: httpx.AsyncClient, controller: FakeController) -> None:
    controller.trouble = RuntimeError("hunter2")  # type: ignore[assignment]
    answer = await http.send(http.build_request("DELETE", "/v1/groups/g1"), stream=True)
    assert answer.status_code == 500
    text = b""
    with contextlib.suppress(RuntimeError):
        # Starlette answers first and raises then, for the server's log; the transport of these tests hands that on.
        async for chunk in answer.aiter_bytes():
            text += chunk
    assert json.loads(text)["code"] == "internal"
    assert b"hunter2" not in text
    await answer.aclose()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/groups:plan"),
    ],
)
async def test_what_is_not_enforced_says_so(
    http: httpx.AsyncClient, controller: FakeController, method: str, path: str
) -> None:
    answer = await http.request(method, path, json={})
    assert answer.status_code == 501
    assert answer.json()["code"] == "not_enforced"
    assert "nothing was done" in answer.json()["detail"]
    assert not controller.commands


async def test_healthz_readyz_and_the_contract_need_no_token(http: httpx.AsyncClient, controller: FakeController) -> None:
    bare = {"Authorization": ""}
    assert (await http.get("/v1/healthz", headers=bare)).json()["cluster_id"] == "test"
    assert (await http.get("/v1/readyz", headers=bare)).json()["status"] == "ready"
    controller.trouble = JournalFull("no space left")
    assert (await http.get("/v1/readyz", headers=bare)).status_code == 503
    assert (await http.get("/v1/healthz", headers=bare)).status_code == 200
    contract = (await http.get("/v1/openapi.json", headers=bare)).json()
    assert contract["openapi"].startswith("3.1")


async def test_the_contract_names_every_call_of_the_design(http: httpx.AsyncClient) -> None:
    paths = json.loads((await http.get("/v1/openapi.json")).text)["paths"]
    named = {(method.upper(), path.replace("{", "").replace("}", "")) for path, calls in paths.items() for method in calls}
    slot = "/v1/groups/group/members/member/slots/index"
    for call in (
        ("POST", "/v1/groups"), ("GET", "/v1/groups"), ("GET", "/v1/groups/group"), ("DELETE", "/v1/groups/group"),
        ("POST", "/v1/groups/group:fail"), ("GET", "/v1/groups/group/why"), ("POST", f"{slot}:report"),
        ("POST", f"{slot}:restart"), ("POST", f"{slot}:signal"), ("GET", f"{slot}/log"), ("PUT", f"{slot}/heartbeat"),
        ("GET", "/v1/groups/group/heartbeats"), ("POST", "/v1/groups/group/coordinator"), ("GET", "/v1/groups/group/kv/name"),
        ("PUT", "/v1/groups/group/kv/name"), ("GET", "/v1/events"), ("GET", "/v1/hosts"), ("GET", "/v1/claims"),
        ("GET", "/v1/queue"), ("GET", "/v1/healthz"), ("GET", "/v1/readyz"), ("GET", "/v1/metrics"),
        ("POST", "/v1/groups:plan"), ("PATCH", "/v1/groups/group/members"), ("POST", "/v1/groups/group:suspend"),
        ("POST", "/v1/groups/group:resume"), ("POST", "/v1/groups/group:restart"), ("POST", f"{slot}:drain"),
        ("GET", "/v1/groups/group/changes/change"), ("DELETE", "/v1/groups/group/members/member"), ("POST", "/v1/claims"),
        ("DELETE", "/v1/claims/claim"), ("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("POST", "/v1/hosts/host:close"),
        ("POST", "/v1/hosts/host:open"), ("POST", "/v1/hosts/host:drain"),
    ):  # fmt: skip
        assert call in named


def _readyz() -> Any:
    from gangflow.xce.rest.calls import Call
    from gangflow.xce.rest.messages import HealthView

    return Call("GET", "/v1/readyz", HealthView.model_validate)
