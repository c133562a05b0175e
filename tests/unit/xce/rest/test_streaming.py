"""Server-sent events: list then watch, keepalives with positions, limits, and an end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from fastapi import FastAPI

from gangflow.errors import Gone, NotFound, Superseded, Unauthorized, XceError
from gangflow.xce.core.events import CoordinatorStarted, GroupChanged, HostRegistered, ValueWritten
from gangflow.xce.core.state import GroupState, TaskKey
from gangflow.xce.rest.aclient import AsyncClient
from gangflow.xce.rest.messages import EventView
from gangflow.xce.rest.server import end_streams
from gangflow.xce.rest.tokens import Tokens
from tests.inprocess import InProcess
from tests.unit.xce.rest.conftest import ADMIN
from tests.unit.xce.rest.fake import FakeController, host

AsTask = Callable[..., AsyncClient]
BEFORE = GroupState.PENDING


def changed(group: str = "g1") -> GroupChanged:
    return GroupChanged(group, BEFORE, GroupState.PREPARING)


async def take(stream: AsyncIterator[EventView], count: int) -> list[EventView]:
    async with asyncio.timeout(10):
        return [await anext(stream) for _ in range(count)]


async def test_list_then_watch_has_no_gap(admin: AsyncClient, controller: FakeController) -> None:
    listed = await admin.group("g1")
    controller.publish(changed(), ValueWritten("g1", "a", "1", 1))
    stream = admin.events(listed.seq)
    events = await take(stream, 2)
    controller.publish(CoordinatorStarted("g1", 3))
    events += await take(stream, 1)
    assert [event.seq for event in events] == [101, 102, 103]
    assert [event.type for event in events] == ["GroupChanged", "ValueWritten", "CoordinatorStarted"]
    assert events[1].data == {"group": "g1", "name": "a", "value": "1", "version": 1, "term": 0}
    assert events[0].at_ms == 7_000
    await stream.aclose()  # type: ignore[attr-defined]


async def test_up_to_a_position(admin: AsyncClient, controller: FakeController) -> None:
    controller.publish(changed("g1"), changed("g2"), changed("g1"), changed("g2"))

    async def seqs(after: int, until: int, group: str = "") -> list[int]:
        async with asyncio.timeout(10):
            return [event.seq async for event in admin.events(after, group, until)]

    assert await seqs(100, 103) == [101, 102, 103]
    assert await seqs(100, 103, "g2") == [102]
    assert await seqs(100, 102, "g1") == [101]
    assert await seqs(102, 102) == []
    assert await seqs(100, 900) == [101, 102, 103, 104]


async def test_from_now_on(admin: AsyncClient, controller: FakeController, app: FastAPI) -> None:
    controller.publish(changed())
    stream = admin.events()
    first = asyncio.ensure_future(anext(stream))
    while not app.state.service.streams.open:  # the stream is open from here on
        await asyncio.sleep(0)
    controller.publish(ValueWritten("g1", "a", "1", 1))
    async with asyncio.timeout(10):
        assert (await first).seq == 102


async def test_a_groups_filter_and_a_tasks_token_see_one_group(
    admin: AsyncClient, as_task: AsTask, controller: FakeController
) -> None:
    controller.publish(HostRegistered(host("h9").facts, "b"), changed("g2"), changed("g1"))
    assert [event.group for event in await take(admin.events(100), 3)] == ["", "g2", "g1"]
    assert [event.seq for event in await take(admin.events(100, "other"), 1)] == [102]
    async with as_task() as task:
        assert [event.seq for event in await take(task.events(100), 1)] == [103]
        with pytest.raises(NotFound):
            await take(task.events(100, "g2"), 1)


@pytest.mark.parametrize("after", [3, 5_000])
async def test_too_old_or_from_another_journal_is_gone(admin: AsyncClient, after: int) -> None:
    with pytest.raises(Gone) as gone:
        await take(admin.events(after), 1)
    assert gone.value.seq == 100


async def test_a_quiet_groups_reader_does_not_fall_behind(http: httpx.AsyncClient, controller: FakeController) -> None:
    controller.publish(changed("g2"), changed("g2"))
    seen: list[str] = []
    async with http.stream("GET", "/v1/events", params={"after": 100, "group": "g1"}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async with asyncio.timeout(10):
            async for line in answer.aiter_lines():
                seen.append(line)
                if line == "id: 102":
                    break
    assert ": watching" in seen
    assert ": keepalive" in seen
    assert not any(line.startswith("data:") for line in seen)


async def test_last_event_id_is_the_readers_own_position(http: httpx.AsyncClient, controller: FakeController) -> None:
    controller.publish(changed(), changed())
    async with http.stream("GET", "/v1/events?after=100", headers={"Last-Event-ID": "101"}) as answer:
        async with asyncio.timeout(10):
            data = await anext(line async for line in answer.aiter_lines() if line.startswith("data:"))
    assert json.loads(data[5:])["seq"] == 102
    assert (await http.get("/v1/events?after=100", headers={"Last-Event-ID": "x"})).status_code == 422


async def test_streams_are_limited_and_their_places_come_back(
    http: httpx.AsyncClient, app: FastAPI, controller: FakeController
) -> None:
    open_streams = app.state.service.streams.open
    contexts = [http.stream("GET", "/v1/events") for _ in range(3)]
    for context in contexts:
        assert (await context.__aenter__()).status_code == 200
    refused = await http.get("/v1/events")
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")
    for context in contexts:
        await context.__aexit__(None, None, None)
    assert not open_streams
    async with http.stream("GET", "/v1/events") as answer:
        assert answer.status_code == 200


async def test_streams_end_when_the_server_stops(http: httpx.AsyncClient, app: FastAPI) -> None:
    async with http.stream("GET", "/v1/events") as answer:
        end_streams(app)
        async with asyncio.timeout(10):
            assert b"watching" in await answer.aread()


async def test_heartbeats_are_kept_and_followed(admin: AsyncClient, as_task: AsTask) -> None:
    async with as_task() as task:
        await task.beat("g1", "actor", 0, {"step": 1})
        latest = await admin.beats("g1")
        assert [(beat.member, beat.index, beat.incarnation, beat.body) for beat in latest.heartbeats] == [
            ("actor", 0, 1, {"step": 1})
        ]
        assert (latest.now_ms, latest.unknown_until_ms) == (7_000, 5_000)
        stream = admin.follow_beats("g1")
        async with asyncio.timeout(10):
            assert (await anext(stream)).body == {"step": 1}
            await task.beat("g1", "actor", 0, {"step": 2})
            assert (await anext(stream)).body == {"step": 2}


async def test_a_superseded_incarnation_beats_no_more(as_task: AsTask, controller: FakeController) -> None:
    """Scenario 17: at most one live incarnation; what an older one writes is void."""
    async with as_task(member="rollout", incarnation=2) as old:
        with pytest.raises(Superseded, match="the newest is 3"):
            await old.beat("g1", "rollout", 0, {})
    assert not controller.beats("g1")


async def test_a_heartbeat_is_a_small_object_of_ones_own(as_task: AsTask, http: httpx.AsyncClient) -> None:
    async with as_task() as task:
        with pytest.raises(Unauthorized, match="for actor"):
            await task.beat("g1", "rollout", 0, {})
        with pytest.raises(XceError, match="4096") as refusal:
            await task.beat("g1", "actor", 0, {"x": "y" * 5_000})
        assert refusal.value.problem == "too_large"
    url = "/v1/groups/g1/members/actor/slots/0/heartbeat"
    for content in (b"[]", b"{", b"\xff"):
        assert (await http.put(url, content=content)).status_code == 422


async def test_a_log_is_read_in_pieces(admin: AsyncClient, controller: FakeController) -> None:
    controller.logs[TaskKey("g1", 1, "rollout", 0, 3, 0)] = b"one\ntwo\nthree\n"
    whole = await admin.log("g1", "rollout", 0)
    assert (whole.text, whole.incarnation, whole.next_offset, whole.ended) == ("one\ntwo\nthree\n", 3, 14, False)
    assert (await admin.log("g1", "rollout", 0, offset=4, limit=4)).text == "two\n"
    assert (await admin.log("g1", "rollout", 0, offset=-6)).text == "three\n"
    for missing in (admin.log("g1", "rollout", 0, 2), admin.log("g1", "rollout", 1), admin.log("g1", "rollout", 0, 9)):
        with pytest.raises(NotFound):
            await missing


async def test_a_log_is_followed_to_its_end(admin: AsyncClient, controller: FakeController) -> None:
    key = TaskKey("g1", 1, "rollout", 0, 3, 0)
    controller.logs[key] = b"one\n"
    stream = admin.follow_log("g1", "rollout", 0)
    async with asyncio.timeout(10):
        assert (await anext(stream)).text == "one\n"
        controller.logs[key] += b"two\n"
        assert (await anext(stream)).text == "two\n"
        controller.ended.add(key)
        assert [piece.text async for piece in stream] == []


async def test_a_stream_ends_with_its_readers_token(
    app: object, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner who watches when his token ends is told so when he connects again."""
    token = Tokens(ADMIN).owner_token("alice", controller.now_ms() + 1_000)
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(transport=InProcess(app), base_url="http://xce", headers=headers) as alice:
        async with asyncio.timeout(10), alice.stream("GET", "/v1/events") as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == ": watching"
            monkeypatch.setattr(controller, "now_ms", lambda: 9_000)
            assert [line async for line in lines if line.startswith("data")] == []
        assert (await alice.get("/v1/events")).status_code == 401
