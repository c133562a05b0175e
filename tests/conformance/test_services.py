"""Group services, tokens, terms and the event stream, as any XCE must serve them."""

from __future__ import annotations

import asyncio
import json

import pytest

from gangflow.errors import Conflict, Fenced, Gone, NotFound, Superseded, Unauthorized, XceError
from gangflow.xce.rest.aclient import AsyncClient
from tests.conformance.conftest import DEADLINE_S, Xce
from tests.conformance.test_groups import job, replicas

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def task_client(xce: Xce, group: str, member: str, index: int = 0) -> AsyncClient:
    """Speaks with the token that the task itself was given."""
    token = ""
    async with asyncio.timeout(DEADLINE_S):
        async for piece in xce.client.follow_log(group, member, index):
            token += piece.text
            if "\n" in token:
                break
    return xce.connect(token.strip())


TELLS = 'echo "$XCE_TOKEN"; sleep 300'


async def test_nobody_comes_in_without_a_token(xce: Xce) -> None:
    for token in ("", "guess"):
        async with xce.connect(token) as stranger:
            with pytest.raises(Unauthorized):
                await stranger.groups()
            with pytest.raises(Unauthorized):
                await stranger.submit({"name": "x", "members": {"a": job()}})
    async with xce.connect("") as anybody:
        assert (await anybody.healthz()).status == "ok"


async def test_a_task_sees_and_writes_its_own_group_only(xce: Xce) -> None:
    group = await xce.submit({"a": job(TELLS)})
    other = await xce.submit({"a": job()})
    await xce.running(group)
    async with await task_client(xce, group, "a") as task:
        assert [view.id for view in (await task.groups()).groups] == [group]
        assert (await task.kv_put(group, "weights/head", '{"version": 1}', expect=0)).version == 1
        await task.beat(group, "a", 0, {"step": 1})
        for call in (task.group(other), task.kv_put(other, "a", "1")):
            with pytest.raises(NotFound):
                await call
        refused = (
            task.cancel(group),
            task.restart(group, "a", 0, 1),
            task.take_coordination(group),
            task.signal(group, "a", 0, 1),
            task.hosts(),
        )
        for call in refused:
            with pytest.raises(Unauthorized):
                await call
    beats = await xce.client.beats(group)
    assert [(beat.member, beat.incarnation, beat.body) for beat in beats.heartbeats] == [("a", 1, {"step": 1})]


async def test_a_superseded_incarnation_writes_nothing(xce: Xce) -> None:
    """Scenario 17: at most one live incarnation; Scenario 80: a fencing token on every write."""
    group = await xce.submit({"a": job(), "b": replicas(1, TELLS)})
    await xce.running(group)
    async with await task_client(xce, group, "b") as old:
        await old.beat(group, "b", 0, {"n": 1})
        await xce.client.restart(group, "b", 0, 1)
        await xce.until(group, lambda view: view.slot("b", 0).incarnation == 2 and view.state == "RUNNING")
        with pytest.raises(Superseded):
            await old.kv_put(group, "weights/head", "1")
        with pytest.raises(Superseded):
            await old.beat(group, "b", 0, {"n": 2})
    assert (await xce.client.kv_get(group, "weights/head")).version == 0


async def test_an_older_coordinator_is_fenced(xce: Xce) -> None:
    """Scenario 80: two coordinators never drive one group."""
    group = await xce.submit({"a": job(), "b": replicas()})
    await xce.running(group)
    first, second = (await xce.client.take_coordination(group)).term, (await xce.client.take_coordination(group)).term
    assert second > first > 0
    xce.client.term = first
    for call in (
        xce.client.kv_put(group, "rollouts/eligible", "{}"),
        xce.client.report(group, "b", 0, 1, "hung"),
        xce.client.restart(group, "b", 0, 1),
        xce.client.fail(group, "no_quorum"),
    ):
        with pytest.raises(Fenced):
            await call
    xce.client.term = second
    await xce.client.kv_put(group, "rollouts/eligible", "{}")
    assert (await xce.client.group(group)).coordinator_term == second
    xce.client.term = 0


async def test_nobody_but_a_coordinator_writes_what_a_coordinator_wrote(xce: Xce) -> None:
    """Scenario 80: a fencing token on every write: any member's token, with or without a term, is refused."""
    group = await xce.submit({"a": job(), "b": replicas(1, TELLS)})
    await xce.running(group)
    xce.client.term = (await xce.client.take_coordination(group)).term
    await xce.client.kv_put(group, "rollouts/eligible", "{}")
    async with await task_client(xce, group, "b") as task:
        for term in (0, xce.client.term):
            task.term = term
            with pytest.raises(Fenced):
                await task.kv_put(group, "rollouts/eligible", '{"forged": true}')
        task.term = 0
        await task.kv_put(group, "weights/head", "1")
    xce.client.term = 0
    with pytest.raises(Fenced):
        await xce.client.kv_put(group, "rollouts/eligible", "{}")
    assert (await xce.client.kv_get(group, "rollouts/eligible")).version == 1


async def test_values_are_compared_and_set_and_watched(xce: Xce) -> None:
    group = await xce.submit({"a": job()})
    listed = await xce.client.kv_get(group, "weights/head")
    assert (listed.version, listed.value) == (0, None)
    assert (await xce.client.kv_put(group, "weights/head", '{"version": 1}', expect=0)).version == 1
    with pytest.raises(Conflict):
        await xce.client.kv_put(group, "weights/head", '{"version": 9}', expect=0)
    assert (await xce.client.kv_put(group, "weights/head", '{"version": 2}', expect=1)).version == 2
    written = []
    async with asyncio.timeout(DEADLINE_S):
        async for event in xce.client.events(listed.seq, group):
            if event.type == "ValueWritten":
                written.append((event.data["name"], json.loads(event.data["value"])["version"], event.data["version"]))
            if len(written) == 2:
                break
    assert written == [("weights/head", 1, 1), ("weights/head", 2, 2)]
    assert [value.key for value in (await xce.client.kv_list(group)).values] == ["weights/head"]


async def test_two_writers_of_one_version_have_one_winner(xce: Xce) -> None:
    group = await xce.submit({"a": job()})
    outcomes = await asyncio.gather(
        *(xce.client.kv_put(group, "checkpoint/head", str(n), expect=0) for n in range(8)), return_exceptions=True
    )
    assert sum(not isinstance(outcome, Exception) for outcome in outcomes) == 1
    assert all(isinstance(outcome, Conflict) for outcome in outcomes if isinstance(outcome, Exception))
    assert (await xce.client.kv_get(group, "checkpoint/head")).version == 1


async def test_limits_are_said(xce: Xce) -> None:
    group = await xce.submit({"a": job()})
    with pytest.raises(XceError) as refusal:
        await xce.client.kv_put(group, "big", json.dumps("x" * 100_000))
    assert (refusal.value.status, refusal.value.problem) == (413, "too_large")
    answer = await xce.http.post("/v1/groups", content=b" " * 3_000_000, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


async def test_heartbeats_are_followed(xce: Xce) -> None:
    group = await xce.submit({"a": job()})
    await xce.running(group)
    await xce.client.beat(group, "a", 0, {"step": 1})
    stream = xce.client.follow_beats(group)
    async with asyncio.timeout(DEADLINE_S):
        assert (await anext(stream)).body == {"step": 1}
        await xce.client.beat(group, "a", 0, {"step": 2})
        assert (await anext(stream)).body == {"step": 2}
    listed = await xce.client.beats(group)
    assert listed.now_ms >= listed.heartbeats[0].at_ms > 0
    await stream.aclose()  # type: ignore[attr-defined]


async def test_positions_outside_the_journal_are_gone(xce: Xce) -> None:
    now = (await xce.client.healthz()).seq
    with pytest.raises(Gone) as gone:
        await anext(xce.client.events(now + 1_000_000))
    assert gone.value.seq >= now


async def test_every_get_has_a_seq_that_grows(xce: Xce) -> None:
    group = await xce.submit({"a": job()})
    seen = 0
    for path in ("groups", f"groups/{group}", f"groups/{group}/why", "queue", "hosts", "claims", f"groups/{group}/kv",
                 f"groups/{group}/kv/x", f"groups/{group}/heartbeats", "healthz"):  # fmt: skip
        answer = await xce.http.get(f"/v1/{path}")
        assert answer.status_code == 200, answer.text
        assert answer.json()["seq"] >= seen
        seen = answer.json()["seq"]
    assert seen > 0


async def test_what_is_not_enforced_says_so(xce: Xce) -> None:
    answer = await xce.http.post("/v1/groups:plan", json={})
    assert (answer.status_code, answer.json()["code"]) == (501, "not_enforced")


async def test_unknown_things_are_not_found(xce: Xce) -> None:
    for call in (
        xce.client.group("nobody"), xce.client.cancel("nobody"), xce.client.why("nobody"), xce.client.kv_get("nobody", "a"),
        xce.client.beats("nobody"), xce.client.take_coordination("nobody"), xce.client.log("nobody", "a", 0),
    ):  # fmt: skip
        with pytest.raises(NotFound):
            await call


async def test_the_contract_is_openapi_3_1(xce: Xce) -> None:
    contract = (await xce.http.get("/v1/openapi.json")).json()
    assert contract["openapi"].startswith("3.1")
    assert "/v1/groups/{group}" in contract["paths"]
