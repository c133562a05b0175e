"""A stage for tests of the core: one state, inputs by hand, and neighbours that answer what is due when they are told to.

Every step is checked against the invariants, so that no test passes by leaving a wrong state behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.effects import Effect, Prepare, Provision, Release, Start, Stop, Unprepare
from gangflow.xce.core.events import Event
from gangflow.xce.core.inputs import Input, Reply
from gangflow.xce.core.invariants import check, check_step
from gangflow.xce.core.plan import Cause, GroupPlan
from gangflow.xce.core.state import Claim, Group, GroupState, HostFacts, Slot, SlotState, State, TaskKey
from gangflow.xce.machine import Decision, Scheduler, effects_due, handle, next_deadline
from tests.property.greedy import Greedy
from tests.unit.xce.core.plans import hosts


class Stage:
    """Time stands still unless `wait` moves it; nobody answers unless asked to."""

    scheduler: Callable[[], Scheduler] = Greedy

    def __init__(self, facts: Iterable[HostFacts] = hosts()) -> None:
        self.state = State()
        self.now_ms = 1_000_000
        self.events: list[Event] = []
        self.boots: dict[str, str] = {}
        self.feed(inp.StartTerm("test"))
        self.facts = {one.name: one for one in facts}
        for name in self.facts:
            self.up_host(name)

    # --- steps --------------------------------------------------------------------------------------------------------

    def feed(self, *inputs: Input) -> Decision:
        """One batch."""
        before = self.state
        decision = handle(before, inputs, self.now_ms, type(self).scheduler())
        self.state = decision.state
        self.events.extend(decision.events)
        assert not check_step(before, decision.events, self.state)
        assert not check(self.state)
        deadline = next_deadline(self.state)
        assert decision.events or deadline is None or deadline > self.now_ms, f"at {deadline} nothing happens, again and again"
        return decision

    def ask(self, command: inp.Command) -> Reply:
        """A command's reply."""
        reply = self.feed(command).replies[0]
        assert reply is not None
        return reply

    def wait(self, ms: int) -> Decision:
        """Time passes, and the shell ticks."""
        self.now_ms += ms
        return self.feed(inp.Tick())

    def submit(self, plan: GroupPlan) -> str:
        """The id of the new group."""
        reply = self.ask(inp.SubmitGroup(plan))
        assert reply.status == 201, reply
        return str(dict(reply.fields)["id"])

    # --- neighbours ---------------------------------------------------------------------------------------------------

    def due(self, *kinds: type) -> list[Any]:
        """What is owed now, of some kinds."""
        return [effect for effect in effects_due(self.state) if isinstance(effect, kinds or (object,))]

    def prepare(self, *members: str) -> None:
        """Agents accept what they are asked to prepare (of some members, or all)."""
        self.answer(Prepare, members)

    def start(self, *members: str) -> None:
        self.answer(Start, members)

    def gone(self, *members: str) -> None:
        """Everything that is to be stopped or unprepared is gone."""
        self.answer((Stop, Unprepare), members)

    def answer(self, kinds: Any, members: Iterable[str] = ()) -> None:
        """Answer the due effects of these kinds, each as it wants to be."""
        wanted = tuple(members)
        for effect in effects_due(self.state):
            if isinstance(effect, kinds) and (not wanted or _member(effect) in wanted):
                self.feed(reply_to(effect, self.boots))

    def ready(self, *members: str) -> None:
        """The probes of all running tasks succeed."""
        for group in list(self.state.groups.values()):
            for slot in list(group.slots.values()):
                if slot.state is SlotState.RUNNING and (not members or slot.member in members):
                    self.feed(*(inp.TaskReady(self.key(slot, task.index, group.id), task.host) for task in slot.tasks))

    def claims_ready(self) -> None:
        """Providers make what is due."""
        for effect in self.due(Provision):
            self.feed(inp.ClaimReady(effect.claim, effect.attempt, f"/claims/{effect.claim}"))

    def claims_released(self) -> None:
        for effect in self.due(Release):
            self.feed(inp.ClaimReleased(effect.claim, effect.attempt))

    def run(self, plan: GroupPlan) -> str:
        """Submit it and bring it to RUNNING."""
        group = self.submit(plan)
        self.bring_up()
        assert self.group(group).state is GroupState.RUNNING, self.group(group)
        return group

    def bring_up(self) -> None:
        """Everybody answers until nothing is due, and every probe succeeds."""
        for _ in range(3):
            self.claims_ready()
            self.prepare()
            self.start()
        self.ready()

    # --- hosts --------------------------------------------------------------------------------------------------------

    def up_host(self, name: str, boot: str = "b1", inventory: Iterable[TaskKey] = ()) -> None:
        self.boots[name] = boot
        self.feed(inp.HostUp(self.facts[name], boot, tuple(inventory)))

    def lose(self, name: str, fence_ms: int = 5_000) -> None:
        self.feed(inp.HostGone(name, fence_ms))

    # --- what is ------------------------------------------------------------------------------------------------------

    def group(self, group_id: str = "g1") -> Group:
        return self.state.groups[group_id]

    def slot(self, member: str, index: int = 0, group: str = "g1") -> Slot:
        return self.state.groups[group].slots[member, index]

    def claim(self, claim: str) -> Claim:
        return self.state.claims[claim]

    def key(self, slot: Slot, task: int = 0, group: str = "g1") -> TaskKey:
        """The identity of a task of the slot's present incarnation."""
        return TaskKey(group, slot.epoch, slot.member, slot.index, slot.incarnation, task)

    def exit(
        self, member: str, index: int = 0, task: int = 0, *, code: int | None = 1, cause: Cause | None = None, group: str = "g1"
    ) -> Decision:
        """A task ends by itself."""
        return self.feed(self.exited(member, index, task, code=code, cause=cause, group=group))

    def exited(
        self, member: str, index: int = 0, task: int = 0, *, code: int | None = 1, cause: Cause | None = None, group: str = "g1"
    ) -> inp.TaskExited:
        """The report of that."""
        slot = self.slot(member, index, group)
        tail = "Traceback: boom" if code else ""
        return inp.TaskExited(self.key(slot, task, group), slot.tasks[task].host, cause, code, stderr_tail=tail)

    def states(self, group: str = "g1") -> dict[str, str]:
        """`{"actor[0]": "READY", …}`."""
        return {f"{s.member}[{s.index}]": s.state.value for s in self.state.groups[group].slots.values()}

    def kinds(self) -> list[str]:
        """The names of all events so far."""
        return [type(event).__name__ for event in self.events]


def _member(effect: Effect) -> str:
    return effect.task.member if isinstance(effect, Prepare | Unprepare | Start | Stop) else ""


def reply_to(effect: Effect, boots: dict[str, str]) -> Input:
    """What an agent that does as it is told reports."""
    match effect:
        case Prepare(task, host):
            return inp.TaskPrepared(task, host, boots[host])
        case Unprepare(task, host):
            return inp.TaskUnprepared(task, host)
        case Start(task, host):
            return inp.TaskStarted(task, host, 4_242)
        case Stop(task, host):
            return inp.TaskExited(task, host, signal=15)
        case _:
            raise AssertionError(effect)
