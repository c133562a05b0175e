"""Heartbeats: the newest of each slot, and watchers that cost at most one beat a slot."""

from __future__ import annotations

import asyncio

from gangflow.xce.controller.beats import Beats
from gangflow.xce.core.state import TaskKey


def key(index: int, incarnation: int = 1) -> TaskKey:
    return TaskKey("g1", 1, "rollout", index, incarnation, 0)


def test_the_newest_beat_of_each_slot_is_kept() -> None:
    beats = Beats()
    beats.put(key(0), 10, {"step": 1})
    beats.put(key(1), 11, {"step": 1})
    beats.put(key(0, incarnation=2), 12, {"step": 2})
    of = beats.of("g1")
    assert [(at, beat.incarnation, beat.at_ms, beat.body) for at, beat in of.items()] == [
        (("rollout", 0), 2, 12, {"step": 2}),
        (("rollout", 1), 1, 11, {"step": 1}),
    ]
    beats.forget("g1")
    assert beats.of("g1") == {}


async def test_a_watcher_sees_the_present_then_changes_and_a_slow_one_only_the_newest() -> None:
    beats = Beats()
    beats.put(key(0), 1, {"step": 1})
    stream = beats.watch("g1")
    async with asyncio.timeout(20):
        assert (await anext(stream)).body == {"step": 1}
        for step in range(2, 100):
            beats.put(key(0), step, {"step": step})
        beats.put(key(1), 100, {"step": 7})
        seen = [(await anext(stream)).body["step"], (await anext(stream)).body["step"]]
    assert seen == [99, 7]
    await stream.aclose()
    assert beats._watchers == {}, "nothing is left of a watcher that went away"
