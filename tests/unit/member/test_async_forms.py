"""The asynchronous forms, piece by piece: what they follow, how they beat, and that they are the blocking ones, awaited."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from gangflow.channel import ROLE_KEY
from gangflow.errors import Gone, NotFound, Superseded, Unreachable, XceError
from gangflow.member import async_follow
from gangflow.member.async_context import AsyncContext
from gangflow.member.async_follow import AsyncFollower
from gangflow.member.async_rollouts import AsyncRollouts
from gangflow.member.async_weights import AsyncHeartbeat, AsyncWeights
from gangflow.member.context import Context
from gangflow.member.heartbeat import Fields
from gangflow.member.rollouts import Rollouts
from gangflow.member.weights import Weights
from gangflow.xce.rest.messages import EventView, ValueView
from gangflow.xce.rest.schema import GroupView
from tests.unit.member.fake_xce import AsyncFakeXce, FakeXce

DEADLINE_S = 10.0


@pytest.mark.parametrize(("blocking", "awaited"), [(Context, AsyncContext), (Rollouts, AsyncRollouts), (Weights, AsyncWeights)])
def test_an_asynchronous_form_has_the_names_and_arguments_of_the_blocking_one(blocking: type, awaited: type) -> None:
    only_blocking = {"shared", "steps", "streaks", "reset"}
    """Of the process, not of a form: books, and what both share."""
    attributes = {"weights", "rollouts", "client"}
    for name, method in inspect.getmembers(blocking):
        if name.startswith("_") or name in only_blocking | attributes:
            continue
        theirs = getattr(awaited, name)
        if inspect.isfunction(method):
            assert list(inspect.signature(theirs).parameters.values()) == list(inspect.signature(method).parameters.values()), (
                name
            )


class Room(AsyncFakeXce):
    """An XCE in memory whose answers a test spoils."""

    def __init__(self, xce: FakeXce) -> None:
        super().__init__(xce)
        self.refusals: list[Exception] = []
        self.lists = 0

    async def group(self, group: str) -> GroupView:
        self.lists += 1
        if self.refusals:
            raise self.refusals.pop(0)
        return await super().group(group)

    async def kv_get(self, group: str, name: str) -> ValueView:
        return await super().kv_get(group, name)

    async def events(self, after: int | None = None, group: str = "") -> AsyncIterator[EventView]:
        async for event in super().events(after, group):
            if event.type == "Break":
                raise Gone("too old", seq=event.seq)
            yield event


@pytest.fixture
async def room() -> AsyncIterator[tuple[Room, AsyncFollower]]:
    made = Room(FakeXce({"actor": 1, "worker": 2}))
    follower = AsyncFollower(made, "g1")
    yield made, follower
    await follower.close()


async def test_the_picture_follows_the_stream(room: tuple[Room, AsyncFollower]) -> None:
    xce, follower = room
    assert (await follower.picture()).endpoints("worker") == ()
    waiting = asyncio.create_task(follower.wait(lambda picture: len(picture.endpoints("worker")) == 1, DEADLINE_S))
    xce.xce.ready("worker", 1, "10.0.0.1:1")
    assert await waiting
    assert follower.newest.endpoints("worker")[0].url == "http://10.0.0.1:1"
    assert not await follower.wait(lambda picture: False, 0.01)


async def test_it_lists_again_after_a_break_and_misses_nothing(
    room: tuple[Room, AsyncFollower], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_follow, "RELIST_S", 0.0)
    xce, follower = room
    await follower.picture()
    xce.refusals = [Unreachable("away"), Unreachable("away")]
    xce.xce.emit("Break")
    xce.xce.ready("worker", 0, "10.0.0.0:1")
    assert await follower.wait(lambda picture: len(picture.endpoints("worker")) == 1, DEADLINE_S)
    assert xce.lists >= 4


@pytest.mark.parametrize("error", [NotFound("forgotten"), Superseded("replaced"), ZeroDivisionError("a fault")])
async def test_what_ends_it_is_told_to_everybody(room: tuple[Room, AsyncFollower], error: Exception) -> None:
    xce, follower = room
    xce.refusals = [error]
    with pytest.raises(XceError, match=str(error)):
        await follower.picture()
    with pytest.raises(XceError, match=str(error)):
        await follower.wait(lambda picture: True, 1)
    with pytest.raises(XceError):
        _ = follower.newest


class Wire:
    def __init__(self) -> None:
        self.sent: list[Mapping[str, Any]] = []
        self.refusal: Exception | None = None

    async def send(self, body: Mapping[str, Any]) -> None:
        self.sent.append(body)
        if self.refusal is not None:
            raise self.refusal


async def test_beats_are_merged_and_the_newest_is_sent() -> None:
    wire = Wire()
    heart = AsyncHeartbeat(Fields(lambda: {"samples": 1}), wire.send, interval_s=0.0)
    assert await heart.flush(), "nothing was said yet"
    heart.beat({"step": 1, "loss": 2})
    heart.beat({"step": 2})
    assert await heart.flush()
    assert wire.sent == [{"step": 2, "loss": 2, ROLE_KEY: {"samples": 1}}]
    heart.beat({"step": 3})
    await heart.close()
    assert wire.sent[-1]["step"] == 3, "the last one is sent on the way out"


async def test_a_beat_that_nobody_takes_is_dropped_and_a_superseded_one_ends_it() -> None:
    wire = Wire()
    fields = Fields()
    heart = AsyncHeartbeat(fields, wire.send, interval_s=0.0)
    wire.refusal = Unreachable("away")
    heart.beat({"step": 1})
    assert await heart.flush()
    wire.refusal = Superseded("a newer incarnation runs")
    heart.beat({"step": 2})
    assert await heart.flush()
    with pytest.raises(Superseded):
        heart.beat({"step": 3})
    with pytest.raises(Superseded):
        fields.say({})
    await heart.close()
