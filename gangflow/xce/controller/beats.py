"""Heartbeats: the newest of each slot, in memory only. A restarted controller knows none, and says till when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from gangflow.xce.core.state import TaskKey

SlotKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Beat:
    """The latest heartbeat of a slot."""

    member: str
    index: int
    incarnation: int
    at_ms: int
    body: Mapping[str, Any]


class Beats:
    """The newest heartbeat of each slot of each group. A watcher that is slow sees fewer, never older ones."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[SlotKey, Beat]] = {}
        self._watchers: dict[str, list[_Watcher]] = {}

    def put(self, key: TaskKey, at_ms: int, body: Mapping[str, Any]) -> None:
        beat = Beat(key.member, key.index, key.incarnation, at_ms, body)
        self._groups.setdefault(key.group, {})[key.member, key.index] = beat
        for watcher in self._watchers.get(key.group, ()):
            watcher.put(beat)

    def of(self, group: str) -> dict[SlotKey, Beat]:
        """(member, index) → its newest beat, of slots that sent one to this controller."""
        return dict(self._groups.get(group, {}))

    async def watch(self, group: str) -> AsyncIterator[Beat]:
        """The newest beats as they are, then every change."""
        watcher = _Watcher(self.of(group))
        self._watchers.setdefault(group, []).append(watcher)
        try:
            while True:
                for beat in await watcher.take():
                    yield beat
        finally:
            self._watchers[group].remove(watcher)
            if not self._watchers[group]:
                del self._watchers[group]

    def forget(self, group: str) -> None:
        self._groups.pop(group, None)


class _Watcher:
    """At most one waiting beat a slot: what a watcher has not read yet is replaced, so it is bounded by the group's size."""

    def __init__(self, beats: dict[SlotKey, Beat]) -> None:
        self._waiting = beats
        self._some = asyncio.Event()
        if beats:
            self._some.set()

    def put(self, beat: Beat) -> None:
        self._waiting[beat.member, beat.index] = beat
        self._some.set()

    async def take(self) -> list[Beat]:
        await self._some.wait()
        self._some.clear()
        taken, self._waiting = list(self._waiting.values()), {}
        return taken
