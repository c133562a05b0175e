"""Groups in Ray's metrics (`ray_gangflow_*`): states, restarts, time to place, and what barrier and repairs cost in GPUs."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Mapping

from ray.util.metrics import Counter, Gauge, Histogram

from gangflow.xce.controller import Controller
from gangflow.xce.core.events import GroupPlaced, SlotPlaced
from gangflow.xce.core.state import Group, GroupState, State

PERIOD_S = 5.0
_IDLE = {GroupState.PREPARING: "barrier", GroupState.STARTING: "barrier", GroupState.DEGRADED: "degraded"}


class GroupMetrics:
    """Follows a controller; made in the actor's process."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._groups = Gauge("gangflow_groups", "Groups by state.", ("state",))
        self._slots = Gauge("gangflow_slots", "Slots of a group's member by state.", ("group", "member", "state"))
        self._restarts = Counter("gangflow_restarts", "Restarted incarnations.", ("group", "member"))
        self._pend = Histogram(
            "gangflow_pend_seconds", "Submission to placement.", [0.1, 1, 10, 60, 600, 3600, 86_400], ("group",)
        )
        self._idle = Counter("gangflow_idle_gpu_seconds", "GPU-seconds held while nothing could be done.", ("group", "phase"))
        self._shown: set[tuple[str, str, str]] = set()

    async def follow(self) -> None:
        """Until it is cancelled."""
        events = asyncio.create_task(self._events())
        try:
            while True:
                self._look(self._controller.state)
                await asyncio.sleep(PERIOD_S)
        finally:
            events.cancel()

    async def _events(self) -> None:
        async for stamped in self._controller.events(self._controller.seq):
            event = stamped.event
            groups: Mapping[str, Group] = self._controller.state.groups
            if isinstance(event, SlotPlaced) and event.incarnation > 1 and event.group in groups:
                self._restarts.inc(1, {"group": groups[event.group].plan.name, "member": event.member})
            elif isinstance(event, GroupPlaced) and event.group in groups:
                group = groups[event.group]
                self._pend.observe(max(0.0, (stamped.at_ms - group.submitted_ms) / 1000), {"group": group.plan.name})

    def _look(self, state: State) -> None:
        tally = Tally(str(group.state) for group in state.groups.values())
        for each in GroupState:
            self._groups.set(tally.get(str(each), 0), {"state": str(each)})
        now: set[tuple[str, str, str]] = set()
        for group in state.groups.values():
            slots = Tally((slot.member, str(slot.state)) for slot in group.slots.values())
            for (member, word), count in slots.items():
                key = (group.plan.name, member, word)
                now.add(key)
                self._slots.set(count, dict(zip(("group", "member", "state"), key, strict=True)))
            phase = _IDLE.get(group.state)
            gpus = sum(milli for slot in group.slots.values() for task in slot.tasks for _, milli in task.gpus)
            if phase and gpus:
                self._idle.inc(gpus / 1000 * PERIOD_S, {"group": group.plan.name, "phase": phase})
        for key in self._shown - now:
            self._slots.set(0, dict(zip(("group", "member", "state"), key, strict=True)))
        self._shown = now
