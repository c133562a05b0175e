"""Who may do what: every principal at every call of the contract, as the contract itself lists them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from gangflow.xce.rest.rights import ANYBODY, RIGHTS, Stand
from gangflow.xce.rest.tokens import Tokens
from tests.inprocess import InProcess
from tests.unit.xce.rest.conftest import ADMIN
from tests.unit.xce.rest.fake import FakeController
from tests.unit.xce.rest.owned import ACTOR, LATER, STRANGER, owned

TOKENS = Tokens(ADMIN)
BEARERS = {
    "nobody": "",
    "admin": ADMIN,
    "alice": TOKENS.owner_token("alice", LATER),
    "bob": TOKENS.owner_token("bob", LATER),
    "carol": TOKENS.owner_token("carol", LATER),
    "task": TOKENS.task_token(ACTOR),
    "another group's task": TOKENS.task_token(STRANGER),
}
NAMED = {"group": "g1", "member": "rollout", "index": "0", "change": "c1", "host": "h0", "name": "x", "claim": "data"}
JOB = {"job": {"command": ["true"], "resources": {"cpu": 1}}}
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/groups"): {"name": "mine", "members": {"a": JOB}},
    ("POST", "/jobs"): {"name": "mine", **JOB},
    ("POST", "/claims"): {"name": "mine"},
    ("POST", "/tokens"): {"kind": "delegation", "owner": ""},
    ("POST", "/groups/{group}:fail"): {"cause": "user"},
    ("PATCH", "/groups/{group}/members"): {"targets": {"rollout": 1}},
    ("POST", "/groups/{group}/members/{member}/slots/{index}:restart"): {"incarnation": 3},
    ("POST", "/groups/{group}/members/{member}/slots/{index}:drain"): {"incarnation": 3},
    ("POST", "/groups/{group}/members/{member}/slots/{index}:report"): {"incarnation": 3, "cause": "hung"},
    ("POST", "/groups/{group}/members/{member}/slots/{index}:signal"): {"incarnation": 3},
    ("PUT", "/groups/{group}/members/{member}/slots/{index}/heartbeat"): {"step": 1},
    ("PUT", "/groups/{group}/kv/{name}"): {"value": "1"},
    ("POST", "/groups/{group}/spans"): {"spans": []},
}
QUERIES = {("GET", "/events"): {"after": "100", "until": "100"}}


@pytest.fixture
def controller() -> FakeController:
    return FakeController(owned())


@pytest.fixture
async def bare(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=InProcess(app), base_url="http://xce/v1") as client:
        yield client


def calls(app: FastAPI) -> list[tuple[str, str]]:
    paths = app.openapi()["paths"]
    return [(method.upper(), path.removeprefix("/v1")) for path, each in paths.items() for method in each]


async def send(bare: httpx.AsyncClient, who: str, call: tuple[str, str], **named: str) -> httpx.Response:
    method, path = call
    headers = {"Authorization": f"Bearer {BEARERS[who]}"} if BEARERS[who] else {}
    filled = path.format(**{**NAMED, **named})
    return await bare.request(method, filled, headers=headers, json=BODIES.get(call), params=QUERIES.get(call))


def stands(who: str, path: str) -> Stand:
    """How each principal stands to what the call names: by hand, from how `owned` is made."""
    about_group, about_member = "{group}" in path, "{member}" in path
    if who == "admin":
        return Stand.ADMIN
    if who in ("task", "another group's task"):
        mine = who == "task" or not (about_group or "{claim}" in path)
        return Stand.TASK if mine else Stand.NOBODY
    if who == "nobody":
        return Stand.NOBODY
    if about_group:
        return {"alice": Stand.OWNER, "bob": Stand.PART, "carol": Stand.NOBODY}[who]
    if "{claim}" in path:
        return Stand.OWNER if who == "alice" else Stand.NOBODY
    assert not about_member
    return Stand.OWNER


def test_every_call_has_its_rights_and_none_is_left_over(app: FastAPI) -> None:
    assert set(calls(app)) == set(RIGHTS)


@pytest.mark.parametrize("who", BEARERS)
async def test_every_principal_at_every_call(
    who: str, app: FastAPI, bare: httpx.AsyncClient, controller: FakeController
) -> None:
    """Property 39: whoever calls whatever, the table says what comes of it."""
    for call in calls(app):
        before = (len(controller.commands), len(controller.signals), controller._beats.copy())
        answer = await send(bare, who, call)
        allowed, stand = RIGHTS[call], stands(who, call[1])
        if allowed is ANYBODY or stand in allowed:
            expected = {200, 201, 202}
            if call == ("POST", "/groups:plan"):
                expected = {501}
            if call[1].endswith("/log"):
                expected = {404}  # nothing is kept
            if who == "admin" and call == ("POST", "/tokens"):
                expected = {422}  # the admin is no owner: whose it is has to be said
            if who == "task" and call[1].endswith("/heartbeat"):
                expected = {403}  # a task beats for its own slot
        else:
            named = "{group}" in call[1] or "{claim}" in call[1]
            expected = {401 if who == "nobody" else 404 if stand is Stand.NOBODY and named else 403}
            assert (len(controller.commands), len(controller.signals), controller._beats) == before, (who, call)
        assert answer.status_code in expected, (who, call, answer.status_code, answer.text)
        if "/log" in call[1] and expected == {404}:
            assert ("no stdout of" in answer.text) == (stand in allowed), (who, call, answer.text)


async def test_what_a_members_owner_may_do(app: FastAPI, bare: httpx.AsyncClient, controller: FakeController) -> None:
    """Design 3.2: stop, restart, scale (and drain) that member, and read its logs; nothing else that changes anything."""
    done = []
    for call in calls(app):
        if "{group}" in call[1] and call[0] != "GET" and (await send(bare, "bob", call)).status_code < 400:
            done.append(call)
    slot = "/groups/{group}/members/{member}/slots/{index}"
    assert sorted(done) == sorted(
        [
            ("PATCH", "/groups/{group}/members"),
            ("DELETE", "/groups/{group}/members/{member}"),
            ("POST", f"{slot}:restart"),
            ("POST", f"{slot}:drain"),
        ]
    )
    # The member of somebody else is no member to him; neither is one that there is not.
    for member in ("actor", "nobody"):
        for call in calls(app):
            if "{member}" in call[1]:
                answer = await send(bare, "bob", call, member=member)
                assert (answer.status_code, answer.json()["detail"]) == (404, f"group g1 has no member {member!r}"), call
        headers = {"Authorization": f"Bearer {BEARERS['bob']}"}
        both = {"targets": {"rollout": 1, member: 1}}
        answer = await bare.patch("/groups/g1/members", headers=headers, json=both)
        assert (answer.status_code, answer.json()["detail"]) == (404, f"group g1 has no member {member!r}")


async def test_what_a_stranger_must_not_see_looks_like_what_is_not_there(app: FastAPI, bare: httpx.AsyncClient) -> None:
    """Neither the status, nor a word, nor a header tells a group or a claim of another owner from one that never was."""
    for who in ("carol", "another group's task"):
        for call in calls(app):
            if not ("{group}" in call[1] or "{claim}" in call[1]):
                continue
            there = await send(bare, who, call)
            absent = await send(bare, who, call, group="g77", claim="g77")
            text = there.text.replace("'g1'", "'g77'").replace("'data'", "'g77'")
            assert (there.status_code, text) == (absent.status_code, absent.text), (who, call)
            assert {*there.headers} == {*absent.headers}


async def test_rights_come_before_anything_else_that_is_wrong(app: FastAPI, bare: httpx.AsyncClient) -> None:
    """A body or a query that is no good does not tell a stranger that the group is there."""
    headers = {"Authorization": f"Bearer {BEARERS['carol']}"}
    for path in ("/groups/g1:fail", "/groups/g77:fail"):
        assert (await bare.post(path, headers=headers, json={"causes": 1})).status_code == 404
    for path in ("/groups/g1/why", "/groups/g77/why"):
        assert (await bare.get(path, headers=headers, params={"level": "x"})).status_code == 404


async def test_names_of_groups_are_found_among_those_that_are_seen(bare: httpx.AsyncClient) -> None:
    """Carol's ended `grpo` is not hidden by alice's live one of that name, nor shown to alice."""
    for who, found in (("carol", "g3"), ("alice", "g1"), ("admin", "g1"), ("task", "g1")):
        answer = await bare.get("/groups/grpo", headers={"Authorization": f"Bearer {BEARERS[who]}"})
        assert answer.json()["id"] == found, who


async def test_an_expired_token_is_nobodys(app: FastAPI, bare: httpx.AsyncClient, controller: FakeController) -> None:
    headers = {"Authorization": f"Bearer {TOKENS.owner_token('alice', controller.now_ms())}"}
    assert (await bare.get("/groups", headers=headers)).status_code == 401


async def test_keys_of_different_owners_never_meet(bare: httpx.AsyncClient, controller: FakeController) -> None:
    for who in ("alice", "bob", "admin"):
        headers = {"Authorization": f"Bearer {BEARERS[who]}", "Idempotency-Key": "k"}
        await bare.patch("/groups/g1/members", headers=headers, json={"targets": {"rollout": 1}})
    requests = [command.request for command in controller.commands]
    assert [request.key for request in requests] == ["owner/alice:k", "owner/bob:k", "admin:k"]
    assert [request.actor for request in requests] == ["owner/alice", "owner/bob", "admin"]


def words(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield str(key)
            yield from words(part)
    elif isinstance(value, list):
        for part in value:
            yield from words(part)
    else:
        yield str(value)


@pytest.mark.parametrize(
    ("who", "hidden"),
    [
        ("alice", ("g2", "g3", "carol", "other", "secret", "hunter2")),
        ("bob", ("g2", "g3", "carol", "other", "secret", "hunter2", "actor", "train", "h7", "ckpt", "said so", "data")),
        ("carol", ("g1", "alice", "bob", "rollout", "data", "hunter2")),
        ("task", ("g2", "g3", "carol", "other", "secret", "hunter2")),
    ],
)
async def test_no_answer_names_what_the_caller_does_not_see(
    who: str, hidden: tuple[str, ...], app: FastAPI, bare: httpx.AsyncClient
) -> None:
    """Lists, details, reasons, the queue, hosts, claims, owners: whatever is answered, of everything that he may call."""
    mine = {"alice": "g1", "bob": "g1", "task": "g1", "carol": "g2"}[who]
    seen = 0
    for call in calls(app):
        if call[0] != "GET" or RIGHTS[call] == ANYBODY or "{host}" in call[1] or call[1] == "/metrics":
            continue
        for claim in ("data", "secret", "g1/ckpt", "g1/rollout[0]/cache"):
            answer = await send(bare, who, call, group=mine, claim=claim)
            if answer.status_code != 200 or call[1] == "/events":
                continue
            seen += 1
            found = [(word, hide) for word in words(answer.json()) for hide in hidden if re.search(rf"\b{hide}\b", word)]
            assert not found, (who, call, answer.text)
    assert seen > 20
