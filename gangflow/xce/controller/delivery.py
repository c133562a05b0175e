"""Effects on their way to the host agents. They are owed until the state says otherwise: sent, and sent again, never dropped.

There is no queue that could lose one. `owed` is a memory of when each was last sent; what is due comes from the state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from gangflow.errors import JournalRegressed
from gangflow.xce.controller.options import DELIVERY_S, RESEND_S
from gangflow.xce.core.effects import TaskEffect
from gangflow.xce.core.state import TaskKey
from gangflow.xce.ports import Hosts

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Owed:
    effect: TaskEffect
    sent: int
    """How often."""
    again_at: float
    """On the event loop's clock."""


class Deliveries:
    """What is owed to the agents, with one courier for each node: a slow node holds up nobody else."""

    def __init__(
        self,
        hosts: Hosts,
        node_of: Callable[[str], str],
        address: Callable[[TaskEffect], TaskEffect],
        regressed: Callable[[JournalRegressed], None],
    ) -> None:
        """`node_of` a host; `address` completes an effect with what only the shell knows, when it is sent."""
        self._hosts = hosts
        self._node_of = node_of
        self._address = address
        self._regressed = regressed
        self._owed: dict[TaskKey, _Owed] = {}
        self._couriers: dict[str, _Courier] = {}

    def __bool__(self) -> bool:
        return bool(self._owed)

    def issue(self, effects: Iterable[TaskEffect]) -> None:
        """New effects: sent at once. A later effect of a task replaces an earlier one that is still on its way."""
        for effect in effects:
            self._owed[effect.task] = _Owed(effect, 0, 0.0)
            self._send(effect.task)

    def reconcile(self, due: Iterable[TaskEffect]) -> None:
        """Compare with all that the state says is due: forget what is not, send again what was not confirmed in time."""
        now = asyncio.get_running_loop().time()
        present: dict[TaskKey, TaskEffect] = {effect.task: effect for effect in due}
        for task in [task for task in self._owed if task not in present]:
            del self._owed[task]
        for task, effect in present.items():
            owed = self._owed.get(task)
            if owed is None or owed.effect != effect:
                self._owed[task] = _Owed(effect, 0, 0.0)
                self._send(task)
            elif now >= owed.again_at:
                self._send(task)

    def hurry(self, node: str) -> None:
        """A node has come back: everything that is owed to it goes out at the next `reconcile`."""
        for owed in self._owed.values():
            if self._node_of(owed.effect.host) == node:
                owed.again_at = 0.0

    async def close(self) -> None:
        for courier in self._couriers.values():
            courier.task.cancel()
        await asyncio.gather(*(courier.task for courier in self._couriers.values()), return_exceptions=True)

    def _send(self, task: TaskKey) -> None:
        owed = self._owed[task]
        owed.again_at = asyncio.get_running_loop().time() + RESEND_S[min(owed.sent, len(RESEND_S) - 1)]
        owed.sent += 1
        node = self._node_of(owed.effect.host)
        courier = self._couriers.get(node)
        if courier is None:
            courier = self._couriers[node] = _Courier(node, self._deliver)
        courier.take(owed.effect)

    async def _deliver(self, node: str, effects: Mapping[TaskKey, TaskEffect]) -> None:
        # What was overtaken while the courier was under way is not delivered late: its successor is in his next bag.
        fresh = [effect for task, effect in effects.items() if (owed := self._owed.get(task)) and owed.effect == effect]
        if not fresh:
            return
        try:
            async with asyncio.timeout(DELIVERY_S):
                await self._hosts.deliver(node, [self._address(effect) for effect in fresh])
        except JournalRegressed as error:
            self._regressed(error)
        except (OSError, TimeoutError) as error:
            _log.info("%d effects could not be delivered to %s: %s; they will be sent again", len(fresh), node, error)


class _Courier:
    """Carries effects to one node, in one go whatever has come together meanwhile."""

    def __init__(self, node: str, deliver: Callable[[str, Mapping[TaskKey, TaskEffect]], Awaitable[None]]) -> None:
        self.node = node
        self._deliver = deliver
        self._bag: dict[TaskKey, TaskEffect] = {}
        self._some = asyncio.Event()
        self.task = asyncio.create_task(self._run(), name=f"courier to {node}")

    def take(self, effect: TaskEffect) -> None:
        self._bag.pop(effect.task, None)  # to the end of the bag: order is order of issue
        self._bag[effect.task] = effect
        self._some.set()

    async def _run(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            bag, self._bag = self._bag, {}
            try:
                await self._deliver(self.node, bag)
            except Exception:
                _log.exception("a delivery to %s failed; its effects will be sent again", self.node)
