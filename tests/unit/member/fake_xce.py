"""An XCE of one group in memory, with the surface of the sync client (`FakeXce`) and of the async one (`AsyncFakeXce`)."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from gangflow.errors import Conflict, Fenced, GangflowError, Superseded, Unreachable
from gangflow.xce.rest.messages import BeatList, BeatView, Done, EventView, TermView, ValueView, VersionView
from gangflow.xce.rest.schema import GroupView, MemberView, SlotView


class FakeXce:
    """Thread-safe. `away` makes every call fail as if nobody answered; `superseded` refuses writes of a task."""

    def __init__(self, members: Mapping[str, int], coordinator: dict[str, Any] | None = None) -> None:
        self.lock = threading.RLock()
        self.coordinator = coordinator
        self.seq = 1
        self.state = "RUNNING"
        self.slots: dict[tuple[str, int], SlotView] = {
            (member, index): SlotView(member=member, index=index, state="PENDING", lsf="PEND", incarnation=0, epoch=1)
            for member, count in members.items()
            for index in range(count)
        }
        self.values: dict[str, ValueView] = {}
        self.history: list[EventView] = []
        self.taps: list[Callable[[EventView], None]] = []
        self.heartbeats: dict[tuple[str, int], BeatView] = {}
        self.now_ms = 1_000_000
        self.unknown_until_ms = 0
        self.reports: list[tuple[str, int, int, str]] = []
        self.term = 0
        self.away = False
        self.unanswered = 0
        """Calls that were made while it was away, or took nothing."""
        self.taking_nothing: GangflowError | None = None
        """What every coordinator's command is refused with; reads are answered."""
        self.superseded = False

    # --- what a test does

    def emit(self, kind: str, **data: Any) -> EventView:
        with self.lock:
            self.seq += 1
            event = EventView(seq=self.seq, at_ms=self.now_ms, type=kind, group="g1", data={"group": "g1", **data})
            self.history.append(event)
            for tap in list(self.taps):
                tap(event)
            return event

    def slot(self, member: str, index: int, state: str, incarnation: int | None = None, address: str = "") -> None:
        """Move a slot, with the event that says so."""
        with self.lock:
            old = self.slots[member, index]
            number = old.incarnation if incarnation is None else incarnation
            addresses = {"http": (address,)} if address else ({} if number != old.incarnation else old.addresses)
            self.slots[member, index] = old.model_copy(update={"state": state, "incarnation": number, "addresses": addresses})
            kind = "SlotPlaced" if state == "PLACED" else "SlotExited" if state in {"DONE", "EXIT", "LOST"} else "SlotChanged"
            self.emit(kind, member=member, index=index, incarnation=number, before=old.state, state=state)

    def ready(self, member: str, index: int, address: str = "") -> None:
        """The next incarnation of a slot, from its placement to READY."""
        number = self.slots[member, index].incarnation + 1
        self.slot(member, index, "PLACED", number, address)
        for state in ("PREPARED", "STARTING", "RUNNING", "READY"):
            self.slot(member, index, state)

    def move(self, state: str) -> None:
        with self.lock:
            before, self.state = self.state, state
            self.emit("GroupChanged", before=before, state=state)

    def write(self, name: str, value: str, expect: int = -1) -> int:
        with self.lock:
            version = self.values[name].version if name in self.values else 0
            if expect not in {-1, version}:
                raise Conflict(f"{name} has version {version}, not {expect}")
            self.values[name] = ValueView(seq=self.seq + 1, key=name, value=value, version=version + 1)
            self.emit("ValueWritten", name=name, value=value, version=version + 1)
            return version + 1

    def view(self) -> GroupView:
        with self.lock:
            names = dict.fromkeys(member for member, _ in self.slots)
            members = tuple(
                MemberView(
                    name=name, kind="replica_set", primary=False, target=1, min=1, max=1, ready=0, restarts=0,
                    slots=tuple(slot for (member, _), slot in self.slots.items() if member == name),
                )
                for name in names
            )  # fmt: skip
            document = {"name": "g", **({"coordinator": self.coordinator} if self.coordinator is not None else {})}
            return GroupView(
                seq=self.seq, id="g1", name="g", owner="", state=self.state, lsf="RUN", epoch=1, attempt=0, priority=50,
                submitted_ms=0, since_ms=0, until_ms=0, first_running_ms=0, ended_ms=0, satisfied_now=True,
                satisfied_once=True, document=document, members=members,
            )  # fmt: skip

    # --- the sync client

    def group(self, group: str) -> GroupView:
        self._answer()
        return self.view()

    def kv_get(self, group: str, name: str) -> ValueView:
        self._answer()
        with self.lock:
            return self.values.get(name) or ValueView(seq=self.seq, key=name)

    def kv_put(self, group: str, name: str, value: str, expect: int = -1) -> VersionView:
        self._answer()
        if self.superseded:
            raise Superseded("a newer incarnation runs")
        return VersionView(seq=self.seq, version=self.write(name, value, expect))

    def beat(self, group: str, member: str, index: int, body: Mapping[str, Any]) -> Done:
        self._answer()
        if self.superseded:
            raise Superseded("a newer incarnation runs")
        with self.lock:
            incarnation = self.slots[member, index].incarnation
            self.heartbeats[member, index] = BeatView(
                member=member, index=index, incarnation=incarnation, at_ms=self.now_ms, body=dict(body)
            )
        return Done(seq=self.seq)

    def events(self, after: int | None = None, group: str = "") -> Iterator[EventView]:
        self._answer()
        stream: queue.SimpleQueue[EventView] = queue.SimpleQueue()
        with self.lock:
            for event in self.history:
                if after is None or event.seq > after:
                    stream.put(event)
            self.taps.append(stream.put)
        while True:
            yield stream.get()

    def close(self) -> None:
        pass

    def _answer(self) -> None:
        if self.away:
            self.unanswered += 1
            raise Unreachable("nobody answers")


class AsyncFakeXce:
    """One coordinator's client of it, with a term of its own."""

    def __init__(self, xce: FakeXce) -> None:
        self.xce = xce
        self.term = 0
        self.calls: list[str] = []
        """Names of the calls that change something, in order."""

    async def take_coordination(self, group: str) -> TermView:
        self.xce._answer()
        with self.xce.lock:
            self.xce.term += 1
            self.xce.emit("CoordinatorStarted", term=self.xce.term)
            return TermView(seq=self.xce.seq, term=self.xce.term)

    async def group(self, group: str) -> GroupView:
        return self.xce.group(group)

    async def kv_get(self, group: str, name: str) -> ValueView:
        return self.xce.kv_get(group, name)

    async def kv_put(self, group: str, name: str, value: str, expect: int = -1) -> VersionView:
        self._commanding()
        self.calls.append(f"put {name}")
        return VersionView(seq=0, version=self.xce.write(name, value, expect))

    async def report(self, group: str, member: str, index: int, incarnation: int, cause: str, message: str = "") -> Done:
        self._commanding()
        self.calls.append(f"report {member}[{index}] {cause}")
        if incarnation != self.xce.slots[member, index].incarnation:
            raise Superseded("not the newest incarnation")
        self.xce.reports.append((member, index, incarnation, cause))
        return Done(seq=0)

    async def fail(self, group: str, cause: str, message: str = "") -> Done:
        self._commanding()
        self.calls.append(f"fail {cause}")
        self.xce.move("STOPPING")
        self.xce.move("FAILED")
        return Done(seq=0)

    async def beats(self, group: str) -> BeatList:
        self.xce._answer()
        with self.xce.lock:
            return BeatList(
                seq=0,
                now_ms=self.xce.now_ms,
                unknown_until_ms=self.xce.unknown_until_ms,
                heartbeats=tuple(self.xce.heartbeats.values()),
            )

    async def events(self, after: int | None = None, group: str = "") -> AsyncIterator[EventView]:
        self.xce._answer()
        stream: asyncio.Queue[EventView] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def tap(event: EventView) -> None:
            loop.call_soon_threadsafe(stream.put_nowait, event)

        with self.xce.lock:
            for event in self.xce.history:
                if after is None or event.seq > after:
                    stream.put_nowait(event)
            self.xce.taps.append(tap)
        try:
            while True:
                yield await stream.get()
        finally:
            self.xce.taps.remove(tap)

    def _commanding(self) -> None:
        self.xce._answer()
        if self.xce.taking_nothing is not None:
            self.xce.unanswered += 1
            raise self.xce.taking_nothing
        if self.term < self.xce.term:
            raise Fenced(f"term {self.term} is over")
