"""One step of the machine while it is being taken: emits events, applies them at once, and remembers what they touched.

Local to one `handle` call. Facts that inputs bring and that are judged together (failures, setbacks of a try) wait here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gangflow.xce.core import events as ev
from gangflow.xce.core.asks import Schedule
from gangflow.xce.core.draft import Draft
from gangflow.xce.core.evolve import absorb
from gangflow.xce.core.index import Index, in_order
from gangflow.xce.core.plan import GroupPlan
from gangflow.xce.core.state import Exit, Group, Host, Reason, Slot, State, TaskKey, TaskPhase

SlotId = tuple[str, int]
NeverFits = Callable[[State, GroupPlan], Reason | None]


@dataclass(frozen=True, slots=True)
class Failure:
    """A slot's incarnation failed; the rules have not been asked yet."""

    exit: Exit
    host: str
    """Where: failures of one host in one batch count once. Empty for a coordinator's verdict."""


@dataclass(frozen=True, slots=True)
class Setback:
    """Why the try of a group that is PREPARING is void."""

    cause: str
    message: str
    permanent: bool = False
    """Would happen again on every try."""


class Turn:
    """The builder that all deciding modules work on."""

    __slots__ = (
        "before",
        "decide",
        "draft",
        "events",
        "failures",
        "freed",
        "index",
        "never_fits",
        "now_ms",
        "old_claims",
        "old_hosts",
        "scaled",
        "setbacks",
        "touched",
    )

    def __init__(
        self,
        state: State,
        now_ms: int,
        index: Index,
        never_fits: NeverFits | None = None,
        decide: Schedule | None = None,
    ) -> None:
        self.before = state
        self.now_ms = now_ms
        self.draft = Draft(state, now_ms)
        self.events: list[ev.Event] = []
        self.touched: dict[str, None] = {}
        """Groups that this step looked at or changed, in the order in which it did."""
        self.old_hosts: dict[str, None] = {}
        """Hosts that this step changed."""
        self.old_claims: dict[str, None] = {}
        """Claims that this step changed."""
        self.failures: dict[str, dict[SlotId, Failure]] = {}
        self.setbacks: dict[str, Setback] = {}
        self.freed = False
        """Capacity came back, or a host did: whoever waits may be placeable now."""
        self.never_fits = never_fits
        """Whether no host could ever hold a plan: asked at submission, where waiting would not help."""
        self.decide = decide
        """The scheduler, for commands that must know whether something fits: asked on copies of the state."""
        self.scaled: dict[str, Group] = {}
        """Groups as they were before this batch changed their targets."""
        self.index = index
        """Follows the state before this step."""

    # --- what is true now ---------------------------------------------------------------------------------------------

    def group(self, group_id: str) -> Group | None:
        return self.draft.group(group_id)

    def living(self, name: str) -> Group | None:
        """The group of that name that lives."""
        # The index knows the state before this step; who came in the step is among the touched.
        for group_id in (self.index.named.get(name, ""), *self.touched):
            group = self.group(group_id)
            if group is not None and group.plan.name == name and not group.state.terminal:
                return group
        return None

    def passed(self, until_ms: int) -> bool:
        """Whether a deadline that a report could have met has passed; a controller that was away waits for the reports."""
        return 0 < max(until_ms, self.draft.grace_until_ms if until_ms else 0) <= self.now_ms

    def host(self, name: str) -> Host | None:
        return self.draft.hosts.get(name)

    def groups_on(self, host: str) -> list[str]:
        """Groups that may have a task on the host."""
        # The index knows the state before this step; what the step placed is among the touched.
        return in_order({**dict.fromkeys(self.index.groups_on(host)), **self.touched})

    def tasks_on(self, host: str) -> list[tuple[str, SlotId, int]]:
        """The tasks on the host that are not confirmed gone: group, slot, task's index."""
        found: list[tuple[str, SlotId, int]] = []
        for group_id in self.groups_on(host):
            group = self.group(group_id)
            for key, slot in group.slots.items() if group is not None else ():
                found.extend(
                    (group_id, key, task.index) for task in slot.tasks if task.host == host and task.phase is not TaskPhase.GONE
                )
        return found

    # --- what this step does ------------------------------------------------------------------------------------------

    def emit(self, event: ev.Event) -> None:
        """It happened: apply it and keep it for the journal."""
        absorb(self.draft, event)
        self.events.append(event)
        kind = type(event)
        if kind is ev.TaskMoved:
            self.touched[event.task.group] = None  # type: ignore[union-attr]
        elif kind is ev.ValueWritten:
            return  # nothing of a group's life depends on its values
        elif kind is ev.ClaimChanged:
            self.old_claims[event.claim.id] = None  # type: ignore[union-attr]
            if event.claim.group:  # type: ignore[union-attr]
                self.touched[event.claim.group] = None  # type: ignore[union-attr]
        elif kind is ev.ClaimForgotten:
            self.old_claims[event.claim] = None  # type: ignore[union-attr,index]
        elif kind is ev.SupersededGone:
            self.old_hosts[event.host] = None  # type: ignore[union-attr]
            self.freed = True
            for group_id in self.groups_on(event.host):  # type: ignore[union-attr]
                self.touched[group_id] = None  # what could not be prepared there can now
        elif kind is ev.HostRegistered:
            self.old_hosts[event.facts.name] = None  # type: ignore[union-attr]
            self.freed = True
        else:
            group = getattr(event, "group", None)
            if group is not None:
                self.touched[group] = None
                if getattr(event, "freed", False):
                    self.freed = True
                return
            host = getattr(event, "host", None)
            if host is not None:
                self.old_hosts[host] = None

    def touch(self, group_id: str) -> None:
        """Look at this group in this step, although nothing of it changed yet."""
        self.touched[group_id] = None

    def fail(self, group: Group, slot: Slot, exit: Exit, host: str = "") -> None:
        """Remember a failure for the judgement of this batch; the first of an incarnation counts."""
        self.touched[group.id] = None
        self.failures.setdefault(group.id, {}).setdefault(slot.key, Failure(exit, host))

    def set_back(self, group: Group, cause: str, message: str, *, permanent: bool = False) -> None:
        """Remember why the group's try is void; the first reason counts, a permanent one more."""
        self.touched[group.id] = None
        old = self.setbacks.get(group.id)
        if old is None or (permanent and not old.permanent):
            self.setbacks[group.id] = Setback(cause, message, permanent)


def task_key(group: Group, slot: Slot, task: int) -> TaskKey:
    """The identity of one task of the slot's present incarnation."""
    return TaskKey(group.id, slot.epoch, slot.member, slot.index, slot.incarnation, task)
