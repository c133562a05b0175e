"""A stand-in for the coordinator of RL groups: every READY rollout serves the newest weights at once, and is eligible."""

from __future__ import annotations

from collections.abc import Iterator

from gangflow.channel import ELIGIBLE, HEAD, Eligible, Head, Serving
from gangflow.member.endpoints import RUNNING_STATES, CoordinatorFacts
from gangflow.xce.core.inputs import Command, PutValue, Request, TakeCoordination
from gangflow.xce.core.launch import address
from gangflow.xce.core.state import Group, SlotState, State


class StandIn:
    """Says who is eligible in the groups that it coordinates; a group that has none of it is left alone."""

    def __init__(self) -> None:
        self._groups: dict[str, tuple[CoordinatorFacts, str]] = {}
        """Group → what its spec says, and the port of its engines."""
        self._held: set[str] = set()

    def coordinate(self, group: str, facts: CoordinatorFacts, port: str) -> None:
        """Take a group over."""
        self._groups[group] = (facts, port)

    def hold(self, group: str, *, held: bool = True) -> None:
        """Let it say nothing more about a group for a while, as a coordinator that is away; or go on."""
        (self._held.add if held else self._held.discard)(group)

    def commands(self, state: State) -> Iterator[Command]:
        """What it has to say now that it has not said yet."""
        for name, (facts, port) in self._groups.items():
            group = state.groups.get(name)
            if group is None or group.state.terminal or name in self._held:
                continue
            if not group.coordinator_term:
                yield TakeCoordination(name)
                continue
            known = state.values.get((name, ELIGIBLE))
            before = Eligible.parse(known.value) if known is not None else Eligible()
            now = eligible(state, group, facts, port, before)
            if now is not None and (known is None or now != before):
                yield PutValue(
                    name,
                    ELIGIBLE,
                    now.render(),
                    known.version if known is not None else 0,
                    request=Request(term=group.coordinator_term),
                )


def eligible(state: State, group: Group, facts: CoordinatorFacts, port: str, before: Eligible) -> Eligible | None:
    """Who is; None as long as nothing was published."""
    head = state.values.get((group.id, HEAD))
    if head is None:
        return None
    weights = Head.parse(head.value).weights
    slots = [slot for slot in group.slots.values() if slot.member == facts.rollout]
    rollouts = tuple(
        Serving(slot.index, slot.incarnation, f"http://{address(state.hosts, slot.tasks[0], port)}", weights)
        for slot in slots
        if slot.state is SlotState.READY
    )
    members = tuple(serving.key for serving in rollouts)
    grown = before.membership_version + (members != before.members)
    holding = tuple((slot.index, slot.incarnation) for slot in slots if slot.state in RUNNING_STATES)
    return Eligible(grown, group.coordinator_term, weights, rollouts, members, holding)
